"""A weighting that learns, in a loop: its weights, losses, ranks and state."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from test_pacer import Line, Measured
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter, NonFiniteLoss, StateMismatch
from stepwell.core.weighting import LearnedWeighting
from stepwell.pacer import CallOrderError, Pacer
from stepwell.weightings.uncertainty import Learned

FORMS = ("uncertainty", "uncertainty-mean")
both_forms = pytest.mark.parametrize("name", FORMS)
ONE, U = torch.ones(8, 2), torch.linspace(0.05, 0.95, 19)


class Host:
    """A loop of one parameter, w, whose loss is ((w - 3)^2 + 0.1) (1 + 9 u), with an attached pacer."""

    def __init__(self, weighting: str, sampler: str = "auto") -> None:
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.optimizer = torch.optim.Adam([self.w], lr=0.05)
        self.pacer = Pacer(sampler, "flow", weighting).attach(self.optimizer)

    def losses(self, u: Tensor) -> Tensor:
        return ((self.w - 3).square() + 0.1) * (1 + 9 * u)

    def train(self, updates: int, spoil: Callable[[Tensor], Tensor] = lambda losses: losses) -> None:
        for _ in range(updates):
            pace = self.pacer.draw(torch.zeros(16, 1))
            losses = self.losses(pace.u)
            self.optimizer.zero_grad()
            (losses * pace.weight).mean().backward()
            self.pacer.observe(spoil(losses))
            self.optimizer.step()

    def weights(self) -> Tensor:
        return self.pacer.weighting(self.pacer.process, U)


@both_forms
def test_a_host_needs_observe_and_nothing_else(name: str) -> None:
    host = Host(name)
    host.train(600)
    assert len(host.optimizer.param_groups) == 1
    assert [p is host.w for group in host.optimizer.param_groups for p in group["params"]] == [True]
    # w is 3 by now, and v follows the losses as they fell.
    assert float(host.pacer.metrics["weighted_loss"]) == pytest.approx(1, rel=0.3)
    assert 3 < float(host.weights()[0] / host.weights()[-1]) < 12
    pace = host.pacer.eval().draw(torch.zeros(64, 1))
    assert torch.equal(pace.weight, pace.correction * host.pacer.weighting(host.pacer.process, pace.u))


def test_network_and_layer_move_as_if_one_optimizer_trained_both_on_edm2s_loss() -> None:
    host = Host("uncertainty", "uniform")
    assert isinstance(host.pacer.weighting, Learned)
    features, level = host.pacer.weighting._features, torch.zeros(())
    w, layer = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(128))
    together = torch.optim.Adam(
        [{"params": [w], "lr": 0.05}, {"params": [layer], "betas": (0.9, 0.99)}], 0.005
    )
    for step in range(25):
        u = host.pacer.sampler.draw(torch.zeros(16, 1), stepwell.Tick(step=step)).u
        v = level + features(host.pacer.process.log_snr(u).clamp(-12, 12)) @ layer
        losses = ((w - 3).square() + 0.1) * (1 + 9 * u)
        together.zero_grad()
        (losses / v.exp() + v).mean().backward()
        if step == 0:
            # The first losses only say where v starts.
            layer.grad, level = None, losses.mean().log().detach()
        together.step()
        host.train(1)
    torch.testing.assert_close(host.w, w, rtol=1e-5, atol=0)
    v = level + features(host.pacer.process.log_snr(U)) @ layer
    torch.testing.assert_close(host.weights(), torch.exp(-v).detach(), rtol=1e-4, atol=0)


@both_forms
def test_without_losses_the_next_draw_says_who_learns_from_them(name: str) -> None:
    pacer = Pacer("uniform", "flow", name)
    pacer.draw(ONE)
    with pytest.raises(CallOrderError, match=rf"losses of the last draw, which {name}\(.*Add pacer\.observe"):
        pacer.draw(ONE)


@both_forms
def test_what_the_network_is_trained_with_is_detached(name: str) -> None:
    host = Host(name)
    host.train(20)
    pace = host.pacer.draw(torch.zeros(16, 1))
    assert not pace.weight.requires_grad
    (losses := host.losses(pace.u) * pace.weight).mean().backward()
    assert losses.requires_grad


@both_forms
@pytest.mark.parametrize("sampler", ["auto", "uniform"])
def test_a_resumed_loop_has_the_same_bits(name: str, sampler: str) -> None:
    host, again = Host(name, sampler), Host(name, sampler)
    host.train(25)
    again.pacer.load_state_dict(host.pacer.state_dict())
    # The optimizer changes the tensors that it loads.
    again.optimizer.load_state_dict(deepcopy(host.optimizer.state_dict()))
    again.w.data = host.w.data.clone()
    for each in (host, again):
        each.train(25)
    assert torch.equal(host.w, again.w)
    assert torch.equal(host.weights(), again.weights())


def test_states_of_other_weightings_are_refused() -> None:
    learned, fixed = Pacer("uniform", "flow", "uncertainty"), Pacer("uniform", "flow", "min-snr")
    with pytest.raises(StateMismatch, match=r"uncertainty.* learned, and the weighting of this pacer"):
        fixed.load_state_dict(learned.state_dict())
    with pytest.raises(StateMismatch, match="not a weighting"):
        learned.load_state_dict(fixed.state_dict())


@both_forms
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda losses: losses * torch.nan, NonFiniteLoss),
        (lambda losses: losses - losses.max() - 0.1, InvalidParameter),
    ],
    ids=["nan", "negative"],
)
@pytest.mark.parametrize("sampler", ["auto", "uniform"])
def test_losses_that_cannot_be_are_one_error_and_the_loop_goes_on(
    name: str, spoil: Callable[[Tensor], Tensor], error: type[Exception], sampler: str
) -> None:
    host = Host(name, sampler)
    host.train(10)
    weights, density = host.weights(), host.pacer.sampler.density(U)
    with pytest.raises(error, match="Nothing was learned from this batch"):
        host.train(1, spoil)
    assert torch.equal(host.weights(), weights)
    assert torch.equal(host.pacer.sampler.density(U), density)
    host.train(30)
    assert not torch.equal(host.weights(), weights)
    assert host.pacer.forecast().least < 1.001, "the forecast left them out as well"


class TwoRanks:
    """A group of two, whose other rank has the losses of this one times 4."""

    rank, world = 0, 2

    def mean(self, value: Tensor) -> Tensor:
        return value

    def gather(self, value: Tensor) -> Tensor:
        other = value.clone()
        other[:, 1:] *= 4
        return torch.cat([value, other])


def test_it_learns_from_the_losses_of_all_ranks() -> None:
    pacer = Pacer("uniform", "flow", "uncertainty-mean", group=TwoRanks())
    for _ in range(60):
        pace = pacer.draw(torch.zeros(64, 1))
        pacer.observe(torch.full((64,), 0.2))
        pacer.before_update()
        pacer.after_update()
    # The mean of 0.2 and 0.8.
    assert pacer.weighting(pacer.process, pace.u).mean().item() == pytest.approx(2, rel=0.02)


def test_a_probe_measures_with_the_weights_of_now() -> None:
    line, sampler = Line(), Measured()
    pacer = line.pacer(sampler, "uncertainty-mean")
    assert isinstance(pacer.weighting, LearnedWeighting)
    u = torch.rand(4096)
    pacer.weighting.learn(
        pacer.process, stepwell.Feedback(stepwell.Tick(), u, torch.full_like(u, 0.1), torch.ones_like(u))
    )
    pacer.draw(torch.ones(4, 2), stepwell.Tick(step=3))
    pacer.observe(torch.full((4,), 0.1))
    pacer.before_update()
    pacer.after_update()
    (heard,) = sampler.received
    # d/dw of (w x)^2 at w = 2, x = 1 is 4, and the weight is 1 / 0.1.
    assert heard.signal.halves.abs().flatten().tolist() == pytest.approx([40.0, 40.0], rel=1e-3)
    assert heard.weighted.tolist() == pytest.approx([1.0] * 4, rel=1e-3)
