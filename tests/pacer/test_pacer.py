"""The order of calls in a loop, and the losses and signals that reach the sampler."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe import GradientSpec
from stepwell.core.sampler import Draw, Metrics, TimestepSampler
from stepwell.core.tick import Tick
from stepwell.pacer import CallOrderError, Pacer
from stepwell.samplers.one_density import Static


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
    received: list[Feedback] = []
    process = stepwell.process("linear")

    class Listener(Static):
        learns = True

        def learn(self, feedback: Feedback) -> Metrics:
            received.append(feedback)
            return {"losses": feedback.plain.sum()}

    listener = Listener(stepwell.process("linear").reference, "listener")
    paced = Pacer(listener, process, stepwell.weighting("min-snr"))
    times = []
    for micro in range(3):
        pace = paced.draw(torch.zeros(4, 2), Tick(step=1, micro=micro))
        times.append(pace.u)
        paced.observe(torch.full((4,), float(micro), requires_grad=True))
    paced.before_update()
    assert float(paced.after_update()["losses"]) == 12.0
    (feedback,) = received
    assert torch.equal(feedback.u, torch.cat(times))
    assert not feedback.plain.requires_grad
    weight = stepwell.weighting("min-snr")(process, feedback.u)
    assert torch.allclose(feedback.weighted, feedback.plain * weight)


def test_calls_in_the_wrong_order_say_what_comes_first() -> None:
    paced = pacer()
    with pytest.raises(CallOrderError, match="before any draw"):
        paced.before_update()
    with pytest.raises(CallOrderError, match="observe was called without a draw"):
        paced.observe(torch.zeros(2))
    paced.draw(torch.zeros(2, 3), Tick())
    with pytest.raises(CallOrderError, match=r"a second draw came before the losses.* Add pacer\.observe"):
        paced.draw(torch.zeros(2, 3), Tick(micro=1))
    with pytest.raises(CallOrderError, match="after_update came before the losses"):
        paced.after_update()
    with pytest.raises(InvalidParameter, match=r"one per example, \(2,\), not \(\)"):
        paced.observe(torch.zeros(()))
    paced.observe(torch.ones(2))
    paced.after_update()
    with pytest.raises(CallOrderError, match="before any draw"):
        paced.after_update()


def test_sampler_process_and_weighting_are_named_with_their_parameters() -> None:
    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return u

    paced = Pacer("neyman:strata=8", "linear:timesteps=100", "min-snr:gamma=3", loss_at=loss_at)
    process = stepwell.process("linear", timesteps=100)
    assert repr(paced.sampler) == repr(stepwell.sampler("neyman", process, strata=8))
    assert paced.process.timesteps == 100
    u = process.grid()
    assert torch.equal(paced.weighting(paced.process, u), stepwell.weighting("min-snr", gamma=3)(process, u))
    host = Pacer("uniform:within=(0.2,0.4)", "flow", host_weighting="p2:gamma=0.5")
    assert host.draw(torch.zeros(64, 1)).u.min() >= 0.2
    assert torch.equal(host.draw(torch.zeros(4, 1)).weight, torch.ones(4))
    with pytest.raises(InvalidParameter, match="Did you mean 'gamma'"):
        Pacer("uniform", "linear", "min-snr:gama=3")


def test_static_samplers_need_no_losses() -> None:
    paced = pacer("logit-normal")
    for step in range(3):
        paced.draw(torch.zeros(2, 3), Tick(step=step))
        paced.before_update()
        assert paced.after_update() == {}


class Measured(Static):
    """A sampler that asks for gradients in steps 1 and 3, then in every eighth, and keeps what it hears."""

    learns, learns_from_losses = True, False

    def __init__(self) -> None:
        super().__init__(stepwell.process("linear").reference, "measured")
        self.received: list[Feedback] = []

    @property
    def probe(self) -> GradientSpec:
        return GradientSpec(8, borders=(0.0, 0.5, 1.0), images=2)

    def learn(self, feedback: Feedback) -> Metrics:
        self.received.append(feedback)
        return {"turn": torch.tensor(float(feedback.signal.stratum))}


class Line:
    """A loss of one parameter, and a note of the times at which it was asked for."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)
        self.asked: list[Tensor] = []

    def loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        self.asked.append(u)
        return (self.weight * x0).square().mean(1)

    def pacer(self, sampler: TimestepSampler, weighting: str = "none") -> Pacer:
        return Pacer(sampler, "linear", weighting, loss_at=self.loss_at, optimizer=self.optimizer)


def _update(paced: Pacer, step: int, observed: bool = False) -> Metrics:
    paced.draw(torch.ones(4, 2), Tick(step=step))
    if observed:
        paced.observe(torch.full((4,), 3.0))
    paced.before_update()
    return paced.after_update()


def test_a_probe_measures_the_weighted_loss_and_the_sampler_hears_it() -> None:
    line, sampler = Line(), Measured()
    _update(line.pacer(sampler, "p2"), step=3)
    (feedback,) = sampler.received
    assert (feedback.signal.stratum, feedback.signal.images) == (1, 2)
    assert all(((u >= 0.5) & (u < 1)).all() for u in line.asked)
    process = stepwell.process("linear")
    # d/dw of (w x)^2 at w = 2, x = 1, times the weights; a sketch keeps it up to its sign.
    wanted = [4 * stepwell.weighting("p2")(process, u).mean() for u in line.asked]
    assert torch.allclose(feedback.signal.halves.abs().flatten(), torch.stack(wanted))


def test_nothing_is_measured_or_learned_between_the_steps_that_are_due() -> None:
    line, sampler = Line(), Measured()
    paced = line.pacer(sampler)
    for step in range(20):
        _update(paced, step)
    assert [one.tick.step for one in sampler.received] == [1, 3, 11, 19]
    assert [one.signal.stratum for one in sampler.received] == [0, 1, 0, 1]
    assert len(line.asked) == 8


def test_who_learns_from_signals_alone_needs_no_losses() -> None:
    line, sampler = Line(), Measured()
    paced = line.pacer(sampler)
    for micro in range(2):
        paced.draw(torch.ones(4, 2), Tick(step=1, micro=micro))
    paced.before_update()
    paced.after_update()
    _update(paced, step=3, observed=True)
    without, with_losses = sampler.received
    assert without.u.shape == (8,)
    assert without.plain.isnan().all()
    assert with_losses.plain.tolist() == [3.0] * 4


def test_every_update_returns_the_newest_of_every_metric() -> None:
    line, sampler = Line(), Measured()
    paced = line.pacer(sampler)
    found = [_update(paced, step).get("turn") for step in range(5)]
    assert found == [None, 0, 0, 1, 1]


def test_corrections_report_how_many_draws_they_are_worth() -> None:
    process = stepwell.process("linear")
    paced = Pacer(stepwell.sampler("logit-normal", process, floor=0.2, unbiased=True), process)
    drawn = paced.draw(torch.zeros(64, 2), Tick()).correction
    paced.before_update()
    share = paced.after_update()["effective_sample_share"]
    assert float(share) == pytest.approx(float(drawn.sum() ** 2 / (64 * drawn.square().sum())))
    assert 0 < share < 1


def test_the_pacer_counts_its_own_seconds() -> None:
    class Slow(Measured):
        def learn(self, feedback: Feedback) -> Metrics:
            time.sleep(0.02)
            return super().learn(feedback)

    paced = Line().pacer(Slow())
    assert paced.seconds == 0
    _update(paced, step=1)
    assert 0.02 <= paced.seconds < 5


def test_a_sampler_that_measures_says_what_the_pacer_needs() -> None:
    line = Line()
    with pytest.raises(InvalidParameter, match=r"measured measures losses itself: give the Pacer loss_at="):
        Pacer(Measured(), "linear", optimizer=line.optimizer)
    without = Pacer(Measured(), "linear", loss_at=line.loss_at)
    with pytest.raises(
        CallOrderError, match=r"measuring needs the optimizer.*call pacer\.attach\(optimizer\)"
    ):
        without.draw(torch.ones(4, 2))


def test_a_target_that_the_process_does_not_have_is_refused_before_any_work() -> None:
    line = Line()
    with pytest.raises(Unsupported, match="which flow does not have"):
        Pacer("alignment", "flow", loss_at=line.loss_at, optimizer=line.optimizer)


def test_losses_that_are_not_one_per_example_are_refused() -> None:
    line = Line()
    wrong = Pacer(Measured(), "linear", loss_at=lambda *_: line.weight.sum(), optimizer=line.optimizer)
    with pytest.raises(InvalidParameter, match=r"one loss per example, \(2,\), not \(\)"):
        _update(wrong, step=1)


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
