"""Held-out losses of the best denoiser for normal data are its closed form, band by band.

An error of the best denoiser is normal with variance L, the closed form, so the mean of D squares has
variance 2 L^2 / D and every tolerance is known: SIGMAS standard errors, which chance exceeds less than
once in 10^8 comparisons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from oracles import OptimalDenoiser, optimal_loss, reference_times

import stepwell
from stepwell.catalogue.find import WEIGHTINGS
from stepwell.core.errors import InvalidParameter
from stepwell.evaluate.bands import BandLosses, HeldOutLoss

STD, COUNT, DIMENSIONS, SIGMAS = 0.7, 600, 64, 6
PROCESSES = {
    "eps": ("linear", {}),
    "v": ("cosine", {"prediction": "v"}),
    "x0": ("cosine", {"prediction": "x0"}),
    "zero-snr": ("linear", {"prediction": "v", "zero_terminal_snr": True}),
    "few": ("linear", {"timesteps": 10}),
    "flow": ("flow", {}),
    "flow-logit-normal": ("flow", {"reference": "logit-normal", "shift": 3.0}),
    "flow-discrete": ("flow", {"timesteps": 1000}),
    "edm": ("edm", {}),
    "vp": ("vp", {}),
    "ve": ("ve", {}),
}


def process_of(name):
    schedule, parameters = PROCESSES[name]
    return stepwell.process(schedule, **parameters)


def images(count=COUNT, dimensions=DIMENSIONS):
    return STD * torch.randn(count, dimensions, generator=torch.Generator().manual_seed(5))


def zero(input, time, condition):
    return torch.zeros_like(input)


@pytest.mark.parametrize("name", PROCESSES)
def test_losses_per_band_are_the_closed_form(name):
    process = process_of(name)
    held_out = HeldOutLoss(process, images(), bands=20)
    found = held_out(OptimalDenoiser(process, STD))
    for band in range(20):
        expected = optimal_loss(process, held_out.times(band).double(), STD)
        error = math.sqrt(2 / DIMENSIONS * float(expected.square().sum())) / COUNT
        # 1e-6: the network is told, and answers, in float32.
        assert abs(found.plain[band] - expected.mean()) < SIGMAS * error + 1e-6


@pytest.mark.parametrize("name", PROCESSES)
def test_objectives_are_the_closed_form(name):
    process = process_of(name)
    held_out = HeldOutLoss(process, images(), bands=20)
    found = held_out(OptimalDenoiser(process, STD)).objectives
    u = torch.cat([held_out.times(band) for band in range(20)]).double()
    exact, exact_mass = reference_times(process, 200_000)
    for key, value in found.items():
        weighting = stepwell.weighting(key)
        mass = process.reference.pdf(u) / process.reference.pdf(u).sum()
        terms = mass * weighting(process, u) * optimal_loss(process, u, STD)
        error = math.sqrt(2 / DIMENSIONS * float(terms.square().sum()))
        whole = float((exact_mass * weighting(process, exact) * optimal_loss(process, exact, STD)).sum())
        # The sum over 12,000 times, and over 1,000 timesteps twelve times each, is the integral to 2e-3.
        assert abs(value - whole) < SIGMAS * error + 2e-3 * whole, key


def test_objectives_are_those_that_the_process_has():
    names = {entry.name for entry in WEIGHTINGS if not entry.learns}
    of_flows = {"bsmntw", "linear-sigma"}
    assert set(HeldOutLoss(process_of("eps"), images(8))(zero).objectives) == names - of_flows - {
        "likelihood"
    }
    assert set(HeldOutLoss(process_of("flow"), images(8))(zero).objectives) == names - {"vlb"}
    assert set(HeldOutLoss(process_of("edm"), images(8))(zero).objectives) == names - of_flows - {"vlb"}


def test_the_simple_loss_is_the_mean_of_the_bands():
    found = HeldOutLoss(process_of("eps"), images(50), bands=7)(zero)
    assert found.objectives["none"] == pytest.approx(float(found.plain.mean()), rel=1e-12)
    assert found.borders.tolist() == pytest.approx([k / 7 for k in range(8)])
    assert found.plain.shape == (7,)


def test_times_cover_every_band_evenly_and_differ_between_bands():
    held_out = HeldOutLoss(process_of("flow"), images(40), bands=5)
    orders = []
    for band in range(5):
        u = held_out.times(band)
        # 200 times from the middle of the first thousandth to the middle of the last.
        even = 0.0005 + 0.999 * (40 * band + torch.arange(40)) / 199
        torch.testing.assert_close(u.sort().values, even)
        assert band / 5 <= float(u.min()) < float(u.max()) < (band + 1) / 5
        orders.append(tuple(u.argsort().tolist()))
    assert len(set(orders)) == 5
    assert sorted(orders[0]) != list(orders[0])


def equal(a: BandLosses, b: BandLosses, tolerance: float) -> bool:
    close = torch.allclose(a.plain, b.plain, rtol=tolerance, atol=0)
    return close and all(
        math.isclose(a.objectives[key], b.objectives[key], rel_tol=tolerance) for key in a.objectives
    )


def test_the_same_seed_is_the_same_measurement_whatever_the_batch():
    process, x0 = process_of("eps"), images(100)
    first = HeldOutLoss(process, x0, seed=1)(zero)
    torch.manual_seed(123)
    assert equal(first, HeldOutLoss(process, x0, seed=1)(zero), 0)
    assert equal(first, HeldOutLoss(process, x0, seed=1, batch=7)(zero), 1e-6)
    assert not equal(first, HeldOutLoss(process, x0, seed=2)(zero), 1e-6)


def test_losses_are_in_float32_for_bf16_networks_and_images():
    process, x0 = process_of("eps"), images(200)
    best = OptimalDenoiser(process, STD)

    def half(input, time, condition):
        return best(input, time, condition).to(torch.bfloat16)

    exact, found = HeldOutLoss(process, x0)(best), HeldOutLoss(process, x0)(half)
    # bf16 rounds an output by up to 2^-9 of itself, which adds up to 4e-6 to the loss.
    torch.testing.assert_close(found.plain, exact.plain, rtol=1e-2, atol=1e-5)
    assert HeldOutLoss(process, x0.bfloat16()).losses(zero, 0).dtype == torch.float64
    assert HeldOutLoss(process, x0.bfloat16()).x0.dtype == torch.float32


def test_no_gradient_is_recorded():
    weight = torch.ones((), requires_grad=True)

    def network(input, time, condition):
        output = weight * input
        assert not output.requires_grad
        return output

    HeldOutLoss(process_of("eps"), images(4), bands=2)(network)


@dataclass(frozen=True)
class Told:
    labels: torch.Tensor
    channels: torch.Tensor | None = None


@pytest.mark.parametrize(
    ("wrapped", "labels_of"),
    [
        (lambda labels: labels, lambda condition: condition),
        (lambda labels: {"labels": labels}, lambda condition: condition["labels"]),
        (lambda labels: (None, labels), lambda condition: condition[1]),
        (Told, lambda condition: condition.labels),
    ],
    ids=["tensor", "mapping", "tuple", "dataclass"],
)
def test_conditions_travel_with_their_images(wrapped, labels_of):
    x0 = torch.arange(10.0)[:, None].expand(10, 3)
    seen = []

    def network(input, time, condition):
        labels = labels_of(condition)
        # There is next to no noise, so an input is its image.
        torch.testing.assert_close(input * 0.5, labels[:, None].expand(-1, 3).float(), rtol=0, atol=0.1)
        seen.extend(labels.tolist())
        return torch.zeros_like(input)

    process = stepwell.process("edm", sigma_min=1e-3, sigma_max=2e-3, mean=-6.5)
    HeldOutLoss(process, x0, wrapped(torch.arange(10)), bands=3, batch=4)(network)
    assert sorted(seen) == sorted([*range(10)] * 3)


def test_a_learned_variance_is_left_out_of_the_loss():
    process, x0 = process_of("eps"), images(20).reshape(20, 1, 8, 8)

    def learned(input, time, condition):
        return torch.cat([torch.zeros_like(input), torch.full_like(input, 9.0)], dim=1)

    assert equal(HeldOutLoss(process, x0)(learned), HeldOutLoss(process, x0)(zero), 0)


def test_bad_input_says_what_would_work():
    process = process_of("eps")
    with pytest.raises(InvalidParameter, match=r"127\.5"):
        HeldOutLoss(process, torch.zeros(4, 1, 2, 2, dtype=torch.uint8))
    with pytest.raises(InvalidParameter, match="at least one example"):
        HeldOutLoss(process, torch.zeros(0, 4))
    with pytest.raises(InvalidParameter, match="bands"):
        HeldOutLoss(process, images(4), bands=0)
    with pytest.raises(InvalidParameter, match="one entry per example"):
        HeldOutLoss(process, images(4), "a text")(lambda x, time, condition: x)
    with pytest.raises(InvalidParameter, match="as large"):
        HeldOutLoss(process, images(4))(lambda x, time, condition: x[:, :5])


def schedule(name):
    """abar [1000] of Ho et al. 2020 and of Nichol and Dhariwal 2021, and the bound's weights (Eq. 7)."""
    betas = np.linspace(1e-4, 0.02, 1000)
    if name == "cosine":
        kept = np.cos((np.arange(1001) / 1000 + 0.008) / 1.008 * np.pi / 2) ** 2
        betas = np.minimum(1 - kept[1:] / kept[:-1], 0.999)
    abar = np.cumprod(1 - betas)
    return abar, np.minimum(betas / (2 * (1 - betas) * (1 - abar)), 1)


class Planted:
    """A network whose loss at t is exactly that of the best one for N(0, 0.25^2), on images of zeros."""

    def __init__(self, name):
        abar, self.bound = schedule(name)
        self.noise = torch.from_numpy(np.sqrt(1 - abar))
        self.loss = 0.0625 * abar / (0.0625 * abar + 1 - abar)
        self.seen = []

    def __call__(self, input, time, condition):
        self.seen += time.tolist()
        eps = input.double() / self.noise[time][:, None]
        return eps + torch.from_numpy(self.loss).sqrt()[time][:, None]


SIZES = [
    (10, 48),
    (10, 1),
    (2, 1),
    (1, 2),
    (3, 7),
    (7, 50),
    (20, 32),
    (20, 64),
    (10, 100),
    (999, 1),
    (1001, 1),
]


@pytest.mark.parametrize(("bands", "count"), SIZES)
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_first_and_the_last_timestep_are_always_evaluated(name, bands, count):
    network = Planted(name)
    HeldOutLoss(stepwell.process(name), torch.zeros(count, 4), bands=bands)(network)
    assert min(network.seen) == 0
    assert max(network.seen) == 999
    assert len(network.seen) == bands * count, "and nothing more"
    middle = Planted(name)
    HeldOutLoss(stepwell.process(name), torch.zeros(1, 4), bands=1)(middle)
    assert middle.seen == [500], "one evaluation cannot be at both ends"


def by_midpoints(network, count):
    """The rule before: as many times in the middles of equal slots, each with its own weight."""
    t = ((np.arange(count) + 0.5) / count * 1000).astype(int)
    return (network.bound * network.loss)[t].mean()


@pytest.mark.parametrize(
    ("bands", "count", "error"),
    [(10, 1, 0.02), (10, 8, 0.002), (10, 48, 1e-4), (20, 32, 1e-4), (20, 64, 1e-5)],
)
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_bound_is_its_sum_over_all_timesteps(name, bands, count, error):
    network = Planted(name)
    exact = (network.bound * network.loss).mean()
    held_out = HeldOutLoss(stepwell.process(name), torch.zeros(count, 4), bands=bands)
    found = held_out(network)
    off = abs(found.objectives["vlb"] / exact - 1)
    assert off < error
    assert off < 0.1 * abs(by_midpoints(network, bands * count) / exact - 1)
    if bands * count >= 480:
        assert found.plain.numpy() == pytest.approx(network.loss.reshape(bands, -1).mean(1), rel=1e-3)


def test_the_bound_of_vp_is_its_integral_whatever_the_number_of_times():
    """Its weight has 1 / t down to t = 1e-5: half of it lies below the 300th part of time."""

    def network(input, time, condition):
        t = (time.double() / 999)[:, None]
        return input.double() / torch.sqrt(-torch.expm1(-0.1 * t - 9.95 * t**2)) + 1

    # The loss is 1 everywhere, which leaves the mean weight: half the change of log-SNR, in thousandths.
    ends = [math.log(math.expm1(0.1 * t + 9.95 * t**2)) for t in (1e-5, 1.0)]
    exact = (ends[1] - ends[0]) / 2000
    for bands, count in ((20, 8), (20, 64), (20, 256)):
        found = HeldOutLoss(stepwell.process("vp"), torch.zeros(count, 4), bands=bands)(network)
        assert found.objectives["vlb"] == pytest.approx(exact, rel=0.02)
        assert found.objectives["likelihood"] == pytest.approx(1000 * exact, rel=0.02)
