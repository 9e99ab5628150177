"""What goes wrong in one batch, or in a saved state, is told once; the pacer works afterwards as before."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stepwell
from stepwell.catalogue.find import find, names
from stepwell.core.density import edges
from stepwell.core.errors import InvalidParameter, NonFiniteLoss, StateMismatch
from stepwell.core.feedback import Feedback
from stepwell.core.tick import Tick
from stepwell.pacer import CallOrderError, Pacer

LEARNERS = [name for name in names("sampler") if find("sampler", name).learns]
FROM_LOSSES = [name for name in LEARNERS if stepwell.sampler(name, "linear").learns_from_losses]
QUICK = {
    "neyman": ":strata=2,every_steps=1,images=4",
    "gradient-variance": ":strata=2,every_steps=1,images=4",
    "alignment": ":strata=2,every_steps=1,images=4",
    "beta-policy": ":every_steps=1,queue=4,grid=6,subset=2",
}


class Loop:
    """A host's loop around a small network, one update at a time."""

    def __init__(self, sampler: str, attached: bool = False) -> None:
        torch.manual_seed(0)
        self.network = nn.Linear(16, 16)
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-3)
        self.x0 = torch.randn(6, 16)
        self.attached = attached
        self.pacer = Pacer(
            f"{sampler}{QUICK.get(sampler, '')}",
            "linear",
            loss_at=self.losses,
            optimizer=None if attached else self.optimizer,
        )
        if attached:
            self.pacer.attach(self.optimizer)

    def losses(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return (self.network(x0 + u[:, None] * noise) - noise).square().mean(1)

    def step(self, factor: float = 1.0) -> Tensor:
        """One update; its losses are reported as multiples of what they are."""
        pace = self.pacer.draw(self.x0)
        plain = self.losses(self.x0, torch.randn_like(self.x0), pace.u, None)
        self.optimizer.zero_grad()
        (plain * pace.weight).mean().backward()
        self.pacer.observe(plain.detach() * factor)
        if not self.attached:
            self.pacer.before_update()
        self.optimizer.step()
        if not self.attached:
            self.pacer.after_update()
        return pace.u


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("name", FROM_LOSSES)
def test_after_one_nan_batch_the_next_step_works(name: str, attached: bool) -> None:
    loop = Loop(name, attached)
    loop.step()
    before = loop.pacer.sampler.state_dict()
    with pytest.raises(NonFiniteLoss, match="Nothing was learned"):
        loop.step(torch.nan)
    assert same(loop.pacer.sampler.state_dict(), before)
    loop.step()
    assert not same(loop.pacer.sampler.state_dict(), before)
    assert loop.pacer.state_dict()["counter"]["step"] == 3


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_a_batch_that_failed_before_its_losses_is_replaced_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, learned = Loop("loss-ema"), []
    monkeypatch.setattr(loop.pacer.sampler, "learn", lambda feedback: learned.append(feedback) or {})
    loop.step()
    loop.pacer.draw(loop.x0)  # and then the host's forward pass ran out of memory
    last = loop.step()
    assert [len(feedback.u) for feedback in learned] == [6, 6]
    assert torch.equal(learned[1].u, last)


def test_a_loop_whose_first_batch_fails_is_told_once_to_observe_and_goes_on() -> None:
    loop = Loop("loss-ema")
    loop.pacer.draw(loop.x0)
    with pytest.raises(CallOrderError, match=r"Add pacer\.observe"):
        loop.pacer.draw(loop.x0)
    loop.step()
    loop.step()


def leaves(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(state, (dict, list)):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from leaves(value, (*path, key))
    yield path


def changed(state: Any, path: tuple[Any, ...], how: str) -> Any:
    """A copy of a state with one part changed; None where that changes nothing."""
    top = {"top": copy.deepcopy(state)}
    holder, key = top, "top"
    for step in path:
        holder, key = holder[key], step
    value = holder[key]
    if how == "none":
        holder[key] = None
    elif how == "empty" and isinstance(value, dict) and value:
        holder[key] = {}
    elif how == "shape" and isinstance(value, Tensor):
        holder[key] = torch.zeros(*value.shape, 3)
    elif how == "nan" and isinstance(value, Tensor) and value.is_floating_point() and value.numel():
        holder[key] = torch.full_like(value, torch.nan)
    else:
        return None
    return top["top"]


# Images and losses as the host gave them, and metrics, may be NaN; networks and metrics may be none yet.
MAY_BE_NAN = {"pool", "metrics", "earlier", "u", "plain", "weighted"}
MAY_BE_OTHER = {"metrics", "pool", "earlier", "seed", "signs", "kind", "probe", "policy"}


@pytest.mark.parametrize("name", LEARNERS)
def test_states_that_do_not_fit_are_refused_and_change_nothing(name: str) -> None:
    loop = Loop(name)
    for _ in range(6):
        loop.step()
    good, tried, silent = loop.pacer.state_dict(), 0, []
    for path in leaves(good):
        for how in ("none", "empty", "shape", "nan"):
            bad = changed(good, path, how)
            allowed = MAY_BE_NAN if how == "nan" else MAY_BE_OTHER
            if (bad is None and path) or allowed & set(path):
                continue
            tried += 1
            try:
                loop.pacer.load_state_dict(bad)
                silent.append((path, how))
            except StateMismatch:
                assert same(loop.pacer.state_dict(), good), (path, how)
    assert tried > 30
    assert silent == []
    assert loop.step().isfinite().all()


@pytest.mark.parametrize("x0", [[1.0, 2.0], torch.tensor(1.0), np.zeros((2, 3)), None, 3])
def test_what_is_no_batch_is_one_error(x0: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"a tensor \[B, \.\.\.\], and not"):
        Pacer("loss-ema", "linear").draw(x0)


def test_losses_that_are_no_tensor_are_one_error() -> None:
    pacer = Pacer("loss-ema", "linear")
    pacer.draw(torch.zeros(2, 3))
    with pytest.raises(InvalidParameter, match=r"one per example, \(2,\), not a list"):
        pacer.observe([0.1, 0.2])  # type: ignore[arg-type]


def test_a_network_may_be_copied_and_saved_between_draw_and_forward_pass() -> None:
    network = nn.Linear(16, 16)
    pacer = Pacer("uniform", "linear", network=network)
    pacer.draw(torch.zeros(8, 16))
    hooks = len(network._forward_pre_hooks)
    average, loaded = copy.deepcopy(network), pickle.loads(pickle.dumps(network))
    for other in (average, loaded):
        other(torch.ones(8, 16))
    assert len(network._forward_pre_hooks) == hooks == 1, "the copies' passes are not the training's"
    network(torch.ones(8, 16))
    assert not network._forward_pre_hooks


def test_images_that_are_not_finite_get_a_timestep_and_the_others_their_own() -> None:
    loop = Loop("beta-policy")
    for _ in range(6):
        loop.step()
    x0 = loop.x0.clone()
    expected = loop.pacer.sampler.draw(x0, Tick(step=99))
    x0[0], x0[1] = torch.nan, torch.inf
    drawn = loop.pacer.sampler.draw(x0, Tick(step=99))
    assert drawn.u.isfinite().all()
    assert drawn.correction.isfinite().all()
    assert torch.equal(drawn.u[2:], expected.u[2:])


def test_a_replaced_optimizer_is_noticed_after_two_updates() -> None:
    loop = Loop("loss-ema", attached=True)
    loop.step()
    loop.optimizer = torch.optim.SGD(loop.network.parameters(), 1e-3)
    loop.step()
    loop.step()
    with pytest.raises(CallOrderError, match=r"attached to Adam, and a SGD .* call pacer\.detach"):
        loop.step()
    loop.pacer.detach()
    loop.pacer.attach(loop.optimizer)
    loop.step()
    loop.step()
    loop.step()


def test_another_optimizer_of_the_same_parameters_may_step_too() -> None:
    loop = Loop("loss-ema", attached=True)
    for other in (torch.optim.SGD(loop.network.parameters(), 1e-3), torch.optim.SGD([nn.Parameter(loop.x0)])):
        for _ in range(4):
            loop.step()
            other.step()


@pytest.mark.parametrize("large", [1e20, 3e38])
@pytest.mark.parametrize("name", FROM_LOSSES)
def test_huge_losses_leave_a_density_that_recovers(name: str, large: float) -> None:
    sampler, u = stepwell.sampler(name, "linear"), (torch.arange(4096) + 0.5) / 4096
    x0 = torch.zeros(len(u), 1)
    for step in range(12):
        losses = torch.where(u < 0.1, large, 1.0) if step == 5 else torch.ones_like(u)
        sampler.learn(Feedback(Tick(step=step), u, losses, losses * 2))
        density, drawn = sampler.density(u), sampler.draw(x0, Tick(step=step))
        assert density.isfinite().all()
        assert (density > 0).all()
        assert float(sampler.masses(edges(1000)).sum()) == pytest.approx(1, abs=1e-4)
        assert drawn.u.isfinite().all()
        assert same(sampler.state_dict(), _reloaded(name, sampler.state_dict()))


def _reloaded(name: str, state: Any) -> Any:
    again = stepwell.sampler(name, "linear")
    again.load_state_dict(state)
    return again.state_dict()
