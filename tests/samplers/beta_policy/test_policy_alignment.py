"""The Beta policy paid by how well gradients agree with those of the target."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from accelerator import DEVICE, Copies, accelerator
from cases import case
from samplers.beta_policy.policy_updates import LINEAR, due, gradients, in_two_bands, noise, told

import stepwell
from stepwell.core.density import Uniform, edges
from stepwell.core.errors import StateMismatch
from stepwell.core.feedback import Feedback, GradientSignal
from stepwell.core.probe import GradientSpec
from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.alignment import MIN_MEASUREMENTS, SignificantGains
from stepwell.samplers.beta_policy.sampler import beta_policy


def test_alignment_asks_for_gradients_of_the_target() -> None:
    spec = beta_policy(LINEAR, credit="alignment", target="min-snr").probe
    assert isinstance(spec, GradientSpec)
    assert (spec.every_steps, spec.target, spec.strata, spec.preconditioned) == (16, "min-snr", 10, True)


@pytest.mark.parametrize("conditional", [case(each, quick=not each) for each in (True, False)])
def test_gains_in_a_band_move_the_draws_there(conditional: bool) -> None:
    sampler, x0 = beta_policy(LINEAR, credit="alignment", conditional=conditional), noise(32, 6)
    gradients(sampler, MIN_MEASUREMENTS - 1, in_two_bands, x0)
    band = torch.tensor([0.2, 0.4], dtype=torch.float64)
    start = float(beta_policy(LINEAR).masses(band))
    assert float(sampler.masses(band)) == pytest.approx(start), "two visits of a stratum say nothing yet"
    metrics = gradients(sampler, 15, in_two_bands, x0, MIN_MEASUREMENTS - 1)
    sampler.draw(x0, Tick())
    assert float(sampler.masses(band)) > 0.7
    assert float(metrics["sure_gains"]) == pytest.approx(0.2)
    assert sampler.diagnostics()["interdependence"].shape == (10, 10)


def test_alignment_never_looks_at_a_value() -> None:
    sampler = beta_policy(LINEAR, credit="alignment")
    ticks, spec = [due(sampler, number) for number in range(3)], sampler.probe
    assert isinstance(spec, GradientSpec)
    with accelerator():
        x0, halves = torch.zeros(4, 1, 8, 8, device=DEVICE), torch.ones(2, 6, device=DEVICE)
        nothing = torch.zeros(4, device=DEVICE)
        for tick in ticks:
            signal = GradientSignal(spec.stratum(tick.step), halves, 16)
            with Copies() as copies:
                drawn = sampler.draw(x0, tick)
                metrics = sampler.learn(Feedback(tick, nothing, nothing, nothing, drawn.action, signal))
    assert all(value.device == DEVICE for value in metrics.values())
    assert "policy_move" in metrics
    assert copies.found == []


def test_noise_pays_nobody() -> None:
    def luck(u: float, visit: int) -> float:
        return float(noise(1, seed=int(u * 100) + 1000 * visit))

    sampler, x0 = beta_policy(LINEAR, credit="alignment"), noise(32, 6)
    gradients(sampler, 20, luck, x0)
    sampler.draw(x0, Tick())
    # Ten strata of gains that are all chance: the draws stay about even.
    assert sampler.masses(edges(10)).max() < 0.2


def test_a_gain_shrinks_by_what_noise_would_give() -> None:
    # One stratum gives the target's direction, the other is 60 or 30 degrees away in turn.
    spec = GradientSpec(1, "vlb", (0.0, 0.5, 1.0), 16)
    gains, target = SignificantGains("test", Uniform(), spec, decay=1 - 1e-5), torch.tensor([2.0, 0.0])
    for turn in range(4):
        for stratum, angle in enumerate((0.0, (math.pi / 3, -math.pi / 6)[turn % 2])):
            trained = 3 * torch.tensor([math.cos(angle), math.sin(angle)])
            halves = torch.stack([trained, target])
            gains.learn(told(Tick(), None, GradientSignal(stratum, halves, 16)))
    # Cosines of the second: 1 / 2 and sqrt(3) / 2 in turn, of four visits; gains 6 and 6 times their mean.
    mean, spread = (0.5 + 0.75**0.5) / 2, (0.75**0.5 - 0.5) / 2
    left = 1 - 4 * (spread**2 / 3) / mean**2
    expected = torch.tensor([1.0, mean]) / ((1 + mean) / 2) * torch.tensor([1, left])
    assert gains.significant().tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert bool(gains.ready)


def test_gradients_that_shrink_together_are_no_noise() -> None:
    sampler, x0 = beta_policy(LINEAR, credit="alignment"), noise(8, 2)
    metrics = gradients(sampler, 8, lambda u, visit: (1.0 if 0.2 < u < 0.4 else 0.1) * 0.5**visit, x0)
    assert float(metrics["sure_gains"]) == 1


def test_alignment_continues_with_the_same_bits() -> None:
    one, x0 = beta_policy(LINEAR, credit="alignment"), noise(8, 2, 6, 6)
    gradients(one, 5, in_two_bands, x0)
    other = beta_policy(LINEAR, credit="alignment")
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for each in (one, other):
        gradients(each, 2, in_two_bands, x0, 5)
    assert torch.equal(one.draw(x0, Tick()).u, other.draw(x0, Tick()).u)
    with pytest.raises(StateMismatch):
        beta_policy(LINEAR).load_state_dict(one.state_dict())


def test_strata_of_another_reference_are_paid_alike() -> None:
    sampler, x0 = beta_policy(stepwell.process("edm"), credit="alignment"), noise(32, 6)
    gradients(sampler, 15, lambda u, visit: float(u > 0.6), x0)
    sampler.draw(x0, Tick())
    reference = stepwell.process("edm").reference
    border = torch.tensor([0.6, 1.0], dtype=torch.float64)
    assert float(sampler.masses(border)) > 1.5 * float(reference.masses(border))


def test_with_aligned_credit_the_policy_moves_as_soon_as_every_stratum_was_seen_three_times() -> None:
    """Found on fashion16: with one fast round it stood still for the first 360 steps."""
    sampler = stepwell.sampler("beta-policy", stepwell.process("linear"), credit="alignment")
    spec = sampler.probe
    assert isinstance(spec, GradientSpec)
    due = [step for step in range(2000) if spec.due(step)]
    turns = [spec.stratum(step) for step in due]
    assert turns == [turn % spec.strata for turn in range(len(due))], (
        "round-robin, also where the pace changes"
    )
    assert due[3 * spec.strata - 1] == 119
    assert due[3 * spec.strata] == 119 + spec.every_steps
