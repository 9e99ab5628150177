"""Laws that every weighting that learns obeys: shape, determinism, state, and no look at the device."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerator import DEVICE, Copies, accelerator
from synthetic import feedback
from torch import Tensor

import stepwell
from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import WEIGHTINGS
from stepwell.core.errors import InvalidParameter, NonFiniteLoss, StateMismatch
from stepwell.core.tick import Tick
from stepwell.core.weighting import LearnedWeighting, frozen

PROCESSES = ("linear:zero_terminal_snr=true", "flow", "edm")
U = torch.cat([torch.tensor([0.0, 2**-24, 1 - 2**-24]), torch.linspace(0.01, 0.99, 97)])

every_learner = pytest.mark.parametrize(
    "name", [pytest.param(entry.name, id=entry.name) for entry in WEIGHTINGS if entry.learns]
)
every_process = pytest.mark.parametrize("process", PROCESSES)


def new(name: str) -> LearnedWeighting:
    weighting = stepwell.weighting(name)
    assert isinstance(weighting, LearnedWeighting)
    return weighting


def teach(weighting: LearnedWeighting, process: str = "flow", updates: int = 20) -> LearnedWeighting:
    for step in range(updates):
        tick = Tick(seed=2, step=step)
        weighting.learn(stepwell.process(process), feedback(tick.uniform("times", 64), tick=tick))
    return weighting


def weights(weighting: LearnedWeighting, process: str = "flow") -> Tensor:
    return weighting(stepwell.process(process), U)


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in WEIGHTINGS])
def test_the_catalogue_says_whether_it_learns(entry: Entry) -> None:
    assert isinstance(stepwell.weighting(entry.name), LearnedWeighting) is entry.learns


@every_learner
@every_process
def test_weights_are_one_positive_number_per_example_before_and_after_learning(
    name: str, process: str
) -> None:
    weighting, over = new(name), stepwell.process(process)
    assert weights(weighting, process).tolist() == [1.0] * len(U), "nothing is known before the first loss"
    teach(weighting, process)
    for u in (U, U.double(), U[:1], U[:0]):
        found = weighting(over, u)
        assert (found.shape, found.dtype) == (u.shape, u.dtype)
        assert (found.isfinite() & (found > 0)).all()
        assert not found.requires_grad
    assert (weights(weighting, process) != 1).any()


@every_learner
def test_learning_twice_from_the_same_gives_the_same_bits_and_leaves_the_random_state_alone(
    name: str,
) -> None:
    before = torch.get_rng_state()
    assert torch.equal(weights(teach(new(name))), weights(teach(new(name))))
    assert torch.equal(before, torch.get_rng_state())


@every_learner
@pytest.mark.parametrize("updates", [0, 1, 65])
def test_a_reloaded_weighting_goes_on_with_the_same_bits(name: str, updates: int) -> None:
    # After 65 updates the losses of three wait to be taken in by uncertainty-mean.
    weighting, reloaded, stored = teach(new(name), updates=updates), new(name), io.BytesIO()
    torch.save(weighting.state_dict(), stored)
    stored.seek(0)
    reloaded.load_state_dict(torch.load(stored, weights_only=True))
    assert torch.equal(weights(weighting), weights(reloaded))
    for each in (weighting, reloaded):
        teach(each, updates=19)
    assert torch.equal(weights(weighting), weights(reloaded))
    teach(weighting, updates=30)
    assert not torch.equal(weights(weighting), weights(reloaded)), "otherwise it had stopped learning"


def _leaves(state: Any) -> Iterator[Any]:
    if type(state) is not dict:
        yield state
        return
    for key, value in state.items():
        assert type(key) is str
        yield from _leaves(value)


@every_learner
def test_a_state_holds_only_tensors_numbers_and_strings_and_stays_as_it_was_saved(name: str) -> None:
    weighting = teach(new(name))
    state = weighting.state_dict()
    assert all(isinstance(leaf, (Tensor, int, float, str)) for leaf in _leaves(state))
    before = weights(weighting)
    teach(weighting)
    reloaded = new(name)
    reloaded.load_state_dict(state)
    assert torch.equal(weights(reloaded), before)
    teach(reloaded)
    again = new(name)
    again.load_state_dict(state)
    assert torch.equal(weights(again), before)


@every_learner
def test_the_state_of_another_is_refused(name: str) -> None:
    other = next(entry.name for entry in WEIGHTINGS if entry.learns and entry.name != name)
    for state in (new(other).state_dict(), {}, {"kind": None}, None):
        with pytest.raises(StateMismatch, match="build the weighting it was saved from"):
            new(name).load_state_dict(state)  # type: ignore[arg-type]


@every_learner
def test_a_frozen_one_stays_while_it_learns_on(name: str) -> None:
    weighting = teach(new(name))
    kept, before = frozen(weighting), weights(weighting)
    teach(weighting)
    assert not isinstance(kept, LearnedWeighting)
    assert torch.equal(kept(stepwell.process("flow"), U), before)
    assert not torch.equal(weights(weighting), before)
    fixed = stepwell.weighting("min-snr")
    assert frozen(fixed) is fixed


@every_learner
@pytest.mark.parametrize(
    ("bad", "error", "said"),
    [
        (torch.nan, NonFiniteLoss, r"1 of 4 losses given to uncertainty.*NaN or infinite, at u = 0\.6000"),
        (torch.inf, NonFiniteLoss, r"1 of 4 losses given to uncertainty.*NaN or infinite, at u = 0\.6000"),
        (-0.5, InvalidParameter, r"1 of 4 losses given to uncertainty.*negative, at u = 0\.6000"),
    ],
)
def test_of_losses_that_cannot_be_nothing_is_learned(
    name: str, bad: float, error: type[Exception], said: str
) -> None:
    weighting, u = teach(new(name)), torch.tensor([0.2, 0.4, 0.6, 0.8])
    losses, before = torch.tensor([1.0, 1.0, bad, 1.0]), weighting.state_dict()
    with pytest.raises(error, match=said):
        weighting.learn(stepwell.process("flow"), feedback(u, losses))
    after = weighting.state_dict()
    assert all(torch.equal(torch.as_tensor(after[key]), torch.as_tensor(before[key]))
               for key in before if key != "kind")  # fmt: skip


@every_learner
@every_process
def test_on_an_accelerator_no_value_is_looked_at_and_nothing_copied_after_the_first_step(
    name: str, process: str
) -> None:
    weighting, over = new(name), stepwell.process(process)
    with accelerator():
        # A process copies its tables when it is first asked.
        over.log_snr(torch.zeros(16, device=DEVICE))
        for step in range(4):
            u = torch.rand(16, device=DEVICE)
            with Copies() as copies:
                found = weighting(over, u)
                metrics = weighting.learn(over, feedback(u, torch.ones(16, device=DEVICE), Tick(step=step)))
            assert found.device == DEVICE
            assert all(value.device == DEVICE for value in metrics.values())
            assert step == 0 or copies.found == []
