"""The pacer keeps the turns of a loop, and carries losses and signals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.core.feedback import Feedback, ProbeSpec, Signal
from stepwell.core.probe import View
from stepwell.core.sampler import Draw, Metrics, State
from stepwell.core.tick import Tick
from stepwell.pacer import OutOfTurn, Pacer
from stepwell.samplers.static import Static


def pacer(name: str = "loss-ema", **more: Any) -> Pacer:
    process = stepwell.process("linear")
    return Pacer(stepwell.sampler(name, process), process, stepwell.weighting("min-snr"), **more)


def test_a_pace_is_what_a_loop_needs() -> None:
    process = stepwell.process("linear")
    sampler, weighting = stepwell.sampler("speed", process, unbiased=True), stepwell.weighting("min-snr")
    pace = Pacer(sampler, process, weighting).draw(torch.zeros(32, 2), Tick(step=3))
    drawn = sampler.draw(torch.zeros(32, 2), Tick(step=3))
    assert torch.equal(pace.u, drawn.u)
    assert torch.equal(pace.timesteps, process.time(drawn.u))
    assert torch.equal(pace.weight, drawn.correction * weighting(process, drawn.u))


def test_pieces_may_be_named() -> None:
    named = stepwell.Pacer("logit-normal", "cosine", "min-snr")
    process = stepwell.process("cosine")
    made = Pacer(stepwell.sampler("logit-normal", process), process, stepwell.weighting("min-snr"))
    one, two = (paced.draw(torch.zeros(8, 2), Tick(step=1)) for paced in (named, made))
    assert torch.equal(one.u, two.u)
    assert torch.equal(one.weight, two.weight)


def test_losses_of_all_micro_batches_reach_the_sampler_as_one_feedback() -> None:
    heard: list[Feedback] = []
    process = stepwell.process("linear")

    class Listener(Static):
        learns = True

        def learn(self, feedback: Feedback) -> Metrics:
            heard.append(feedback)
            return {"heard": feedback.plain.sum()}

    listener = Listener(stepwell.process("linear").reference, "listener")
    paced = Pacer(listener, process, stepwell.weighting("min-snr"))
    times = []
    for micro in range(3):
        pace = paced.draw(torch.zeros(4, 2), Tick(step=1, micro=micro))
        times.append(pace.u)
        paced.observe(torch.full((4,), float(micro), requires_grad=True))
    paced.before_update()
    assert float(paced.after_update()["heard"]) == 12.0
    (feedback,) = heard
    assert torch.equal(feedback.u, torch.cat(times))
    assert not feedback.plain.requires_grad
    weight = stepwell.weighting("min-snr")(process, feedback.u)
    assert torch.allclose(feedback.weighted, feedback.plain * weight)


def test_calls_out_of_turn_say_what_comes_first() -> None:
    paced = pacer()
    with pytest.raises(OutOfTurn, match="before any draw"):
        paced.before_update()
    with pytest.raises(OutOfTurn, match="call draw before it"):
        paced.observe(torch.zeros(2))
    paced.draw(torch.zeros(2, 3), Tick())
    with pytest.raises(OutOfTurn, match="observe the losses of the last draw first"):
        paced.draw(torch.zeros(2, 3), Tick(micro=1))
    with pytest.raises(OutOfTurn, match="observe them before after_update"):
        paced.after_update()
    with pytest.raises(InvalidParameter, match=r"one per example, \(2,\), not \(\)"):
        paced.observe(torch.zeros(()))
    paced.observe(torch.ones(2))
    paced.after_update()
    with pytest.raises(OutOfTurn, match="before any draw"):
        paced.after_update()


def test_static_samplers_need_no_losses() -> None:
    paced = pacer("logit-normal")
    for step in range(3):
        paced.draw(torch.zeros(2, 3), Tick(step=step))
        paced.before_update()
        assert paced.after_update() == {}


class Measured(Static):
    """A sampler that asks for a probe."""

    learns = True
    seen: Signal | None = None

    @property
    def probe(self) -> ProbeSpec | None:
        return ProbeSpec("gradients", 1, borders=(0.0, 0.5, 1.0))

    def learn(self, feedback: Feedback) -> Metrics:
        self.seen = feedback.signal
        return {}


class GradientNorm:
    """A probe that measures before and after."""

    def before(self, view: View) -> None:
        u = torch.full((len(view.x0),), 0.25)
        losses = view.loss_at(view.x0, torch.ones_like(view.x0), u, view.condition)
        (gradient,) = torch.autograd.grad(losses.mean(), list(view.parameters()))
        self.norm = gradient.norm()

    def after(self, view: View) -> Signal | None:
        return Signal("gradients", {"norm": self.norm})

    def state_dict(self) -> State:
        return {"kind": "norm"}

    def load_state_dict(self, state: State) -> None:
        return


def test_a_probe_measures_the_weighted_loss_and_the_sampler_hears_it() -> None:
    process = stepwell.process("linear")
    weight = torch.nn.Parameter(torch.tensor(2.0))

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return (weight * x0).square().mean(1)

    def parameters() -> Iterable[torch.nn.Parameter]:
        return [weight]

    sampler = Measured(process.reference, "measured")
    paced = Pacer(
        sampler,
        process,
        stepwell.weighting("p2"),
        probe=GradientNorm(),
        loss_at=loss_at,
        parameters=parameters,
    )
    paced.draw(torch.ones(3, 2), Tick())
    paced.observe(torch.ones(3))
    paced.before_update()
    paced.after_update()
    assert sampler.seen is not None
    wanted = 2 * 2.0 * stepwell.weighting("p2")(process, torch.tensor([0.25]))
    assert torch.allclose(sampler.seen.values["norm"], wanted)


def test_a_probe_without_a_loss_says_what_to_give() -> None:
    process = stepwell.process("linear")
    paced = Pacer(Measured(process.reference, "measured"), process, probe=GradientNorm())
    paced.draw(torch.ones(3, 2), Tick())
    with pytest.raises(OutOfTurn, match="give the Pacer loss_at"):
        paced.before_update()


def test_state_round_trip_continues_bit_for_bit() -> None:
    def train(paced: Pacer, steps: range) -> list[Draw]:
        drawn = []
        for step in steps:
            pace = paced.draw(torch.zeros(16, 2), Tick(step=step))
            drawn.append(pace.u)
            paced.observe(pace.u.square())
            paced.before_update()
            paced.after_update()
        return drawn

    one, two = pacer(), pacer()
    train(one, range(5))
    two.load_state_dict(one.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(train(one, range(5, 9)), train(two, range(5, 9)), strict=True)
    )
