"""What samplers make of the gradients of strata, on gradients that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from synthetic import feedback, planted
from torch import Tensor

import stepwell
from stepwell.core.density import Density, Table, Tilted, centres, edges
from stepwell.core.errors import InvalidParameter, StateMismatch, UnknownName, Unsupported
from stepwell.core.feedback import DecreaseSignal, GradientSignal
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, TimestepSampler
from stepwell.core.tick import Tick

STRATA = 5
SPREADS = torch.tensor([0.5, 3.0, 1.0, 0.2, 2.0])
PROCESSES: dict[str, NoiseProcess] = {
    "linear": stepwell.process("linear"),
    "edm": stepwell.process("edm"),
    "logit-normal": stepwell.process("flow", reference="logit-normal"),
}
REFERENCES: dict[str, Density] = {name: process.reference for name, process in PROCESSES.items()}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


def _sampler(name: str, process: NoiseProcess, **parameters: Any) -> TimestepSampler:
    return stepwell.sampler(name, process, **{"strata": STRATA, "floor": 0.0, **parameters})


def _heard(sampler: TimestepSampler, signal: Any) -> Metrics:
    return sampler.learn(feedback(torch.rand(1), tick=Tick(), signal=signal))


def _masses(sampler: TimestepSampler) -> Tensor:
    """[K]: of the strata."""
    return sampler.masses(torch.tensor(sampler.probe.borders, dtype=torch.float64)).float()


def _taught(sampler: TimestepSampler, spreads: Tensor = SPREADS, images: int = 16) -> TimestepSampler:
    """Every stratum measured once, with distances between its halves that are known."""
    for stratum, spread in enumerate(spreads):
        _heard(sampler, planted(torch.tensor(3.0), spread, stratum, images))
    return sampler


# strata


@every_process
@pytest.mark.parametrize("name", ["neyman", "gradient-variance", "alignment"])
@pytest.mark.parametrize("strata", [2, 7, 20])
def test_the_objective_holds_every_stratum_equally_often(
    name: str, process: NoiseProcess, strata: int
) -> None:
    borders = _sampler(name, process, strata=strata).probe.borders
    assert (borders[0], borders[-1], len(borders)) == (0.0, 1.0, strata + 1)
    masses = process.reference.masses(torch.tensor(borders, dtype=torch.float64))
    torch.testing.assert_close(masses, torch.full((strata,), 1 / strata, dtype=torch.float64))


@every_process
def test_before_every_stratum_was_measured_the_draws_are_the_objectives(process: NoiseProcess) -> None:
    sampler, u = _sampler("neyman", process), centres(500)
    for stratum in range(STRATA):
        torch.testing.assert_close(sampler.density(u), process.reference.pdf(u), rtol=1e-5, atol=1e-6)
        found = _heard(sampler, planted(torch.tensor(1.0), SPREADS[stratum], stratum))
        assert float(found["strata_seen"]) == pytest.approx((stratum + 1) / STRATA)
    assert (sampler.density(u) / process.reference.pdf(u) - 1).abs().max() > 0.5


# neyman and gradient-variance


@every_process
@pytest.mark.parametrize(("name", "power"), [("neyman", 1), ("gradient-variance", 2)])
def test_masses_are_in_proportion_to_the_spread(name: str, power: int, process: NoiseProcess) -> None:
    sampler = _taught(_sampler(name, process))
    wanted = SPREADS**power / (SPREADS**power).sum()
    torch.testing.assert_close(_masses(sampler), wanted, rtol=1e-4, atol=0)
    # Inside a stratum the draws stay the objective's.
    u = process.reference.quantile(centres(50 * STRATA))
    tilt = (sampler.density(u) / process.reference.pdf(u)).view(STRATA, 50)
    torch.testing.assert_close(tilt.float(), (STRATA * wanted)[:, None].expand(-1, 50), rtol=1e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
@pytest.mark.parametrize("images", [1, 64])
def test_neither_scale_nor_number_of_images_changes_the_masses(scale: float, images: int) -> None:
    sampler = _taught(_sampler("neyman", PROCESSES["linear"]), scale * SPREADS, images)
    torch.testing.assert_close(_masses(sampler), SPREADS / SPREADS.sum(), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("name", "power"), [("neyman", 1), ("gradient-variance", 2)])
def test_masses_of_sampled_gradients_approach_the_planted_deviations(name: str, power: int) -> None:
    # One example's gradient: a mean of its own, and noise of a planted deviation in each of 400 coordinates.
    sampler, width, images, rounds = _sampler(name, PROCESSES["linear"], decay=0.9), 400, 16, 60
    generator = torch.Generator().manual_seed(0)
    for turn in range(rounds * STRATA):
        stratum = turn % STRATA
        noise = torch.randn(2, width, generator=generator) * SPREADS[stratum] / images**0.5
        _heard(sampler, GradientSignal(stratum, torch.full((2, width), 5.0) + noise, images))
    # A measured log variance is off by sqrt(2 / 400) = 0.07; a running mean remembers 19 of them, so that a
    # deviation is off by 0.8 %, and a share of all by less than 1 %: five of these fail once in a million.
    wanted = SPREADS**power / (SPREADS**power).sum()
    assert (_masses(sampler) / wanted - 1).abs().max() < power * 0.05


def test_the_mean_of_the_gradients_does_not_count() -> None:
    one, other = (_sampler("neyman", PROCESSES["linear"]) for _ in range(2))
    for stratum, spread in enumerate(SPREADS):
        _heard(one, planted(torch.tensor(0.0), spread, stratum))
        _heard(other, planted(torch.tensor(50.0 * stratum), spread, stratum))
    assert torch.equal(_masses(one), _masses(other))


def test_a_running_mean_forgets_at_the_rate_of_its_decay() -> None:
    sampler = _taught(_sampler("neyman", PROCESSES["linear"], decay=0.75), torch.ones(STRATA))
    for _ in range(2):
        _heard(sampler, planted(torch.tensor(0.0), torch.tensor(4.0), 2))
    # Of log deviations, newest first: 1/4 (1, 3/4, 9/16), over their sum.
    weights = torch.tensor([1, 3 / 4, 9 / 16]) / (1 + 3 / 4 + 9 / 16)
    ratio = _masses(sampler)[2] / _masses(sampler)[0]
    torch.testing.assert_close(ratio, 4 ** weights[:2].sum())


def test_a_running_mean_of_variances_forgets_at_the_same_rate() -> None:
    sampler = _taught(_sampler("gradient-variance", PROCESSES["linear"], decay=0.75), torch.ones(STRATA))
    for spread in (4.0, 2.0):
        _heard(sampler, planted(torch.tensor(0.0), torch.tensor(spread), 2))
    # Squares, newest first, with 1, 3/4 and 9/16 over their sum.
    wanted = (4 + 3 / 4 * 16 + 9 / 16) / (1 + 3 / 4 + 9 / 16)
    assert float(_masses(sampler)[2] / _masses(sampler)[0]) == pytest.approx(wanted, rel=1e-5)


def test_gradient_variance_draws_in_proportion_to_the_variance_however_few_directions_it_has() -> None:
    """A noisier half of time: its gradients differ in fewer directions, so that logarithms lie lower."""
    variances = np.array([4.0, 2.0, 1.0, 1.0, 0.5, 0.25, 0.25, 0.72])
    degrees = np.array([1.6] * 4 + [1.2] * 4)
    wanted = variances[4:].sum() / variances.sum()
    assert wanted == pytest.approx(0.177, abs=5e-4)
    # 100 evenly spaced quantiles of chi-square, scaled to a mean of 1, in random order.
    quantiles = stats.chi2.ppf((np.arange(100) + 0.5)[:, None] / 100, degrees)
    measured = variances * quantiles / quantiles.mean(0)
    measured = np.random.default_rng(0).permuted(measured, axis=0)
    sampler = _sampler("gradient-variance", PROCESSES["linear"], strata=8, decay=1 - 1e-6)
    for row in measured:
        for stratum, variance in enumerate(row):
            _heard(sampler, _measurement(stratum, variance))
    share = float(_masses(sampler)[4:].sum())
    assert share == pytest.approx(wanted, abs=1e-3)


def _measurement(stratum: int, variance: float, images: int = 16) -> GradientSignal:
    """Two halves whose distance says that one example's gradient has this variance."""
    return GradientSignal(stratum, torch.tensor([[(2 * variance / images) ** 0.5], [0.0]]), images)


# the variance ratio


def _left(variances: Tensor, deviations: Tensor, floor: float) -> float:
    """What draws in proportion to deviations, with a floor, leave: mean(v / density) / mean(v)."""
    density = (1 - floor) * deviations / deviations.mean() + floor
    return float((variances / density).mean() / variances.mean())


@every_process
@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
def test_the_variance_ratio_is_what_the_draws_leave_with_their_floor(
    process: NoiseProcess, floor: float
) -> None:
    sampler = _taught(_sampler("neyman", process, floor=floor))
    told = [
        float(_heard(sampler, planted(torch.tensor(0.0), spread, stratum))["variance_ratio"])
        for stratum, spread in enumerate(SPREADS)
    ]
    assert told[:-1] == [1.0] * (STRATA - 1), "not known before every stratum was measured under these draws"
    assert told[-1] == pytest.approx(_left(SPREADS.square(), SPREADS, floor), rel=1e-5)


def test_the_variance_ratio_divides_by_draws_that_do_not_know_the_measurement() -> None:
    sampler = _taught(_sampler("neyman", PROCESSES["linear"], decay=0.0, floor=0.2))
    new = SPREADS.flip(0)
    variance = left = 0.0
    drawn = SPREADS.clone()
    for stratum, spread in enumerate(new):
        density = 0.8 * drawn[stratum] / drawn.mean() + 0.2
        variance, left = variance + float(spread**2), left + float(spread**2 / density)
        told = _heard(sampler, planted(torch.tensor(0.0), spread, stratum))["variance_ratio"]
        drawn[stratum] = spread
    assert left / variance > 1.3, "draws for the old deviations are worse than the reference's"
    assert float(told) == pytest.approx(left / variance, rel=1e-5)


@pytest.mark.full
def test_the_variance_ratio_has_no_bias_however_noisy_the_measurements() -> None:
    """Planted variances, chi-square of 1.6 degrees; four runs of 60 rounds, without the first 15.

    A reading is off by 0.06 and remembers 9 rounds, so that the mean of 180 is off by 0.013; with a bias of
    0.006, 0.05 fails once in 1000 other seeds. The estimates that draws are made from would say 0.09 less.
    """
    variances, degrees = np.exp(-9 * (np.arange(20) + 0.5) / 20) + 0.05, 1.6
    generator = np.random.default_rng(3)
    told, true, from_estimates = [], [], []
    for _ in range(4):
        sampler = stepwell.sampler("neyman", PROCESSES["linear"])
        for turn in range(60):
            for stratum, variance in enumerate(variances):
                luck = generator.chisquare(degrees) / degrees
                metrics = _heard(sampler, _measurement(stratum, variance * luck))
            if turn >= 15:
                density = 20 * _masses(sampler).double()
                estimate = ((density - 0.2) / 0.8).square()
                true.append(float((variances / density.numpy()).mean() / variances.mean()))
                from_estimates.append(float((estimate / density).mean() / estimate.mean()))
                told.append(float(metrics["variance_ratio"]))
    assert np.mean(from_estimates) < np.mean(true) - 0.07
    assert abs(np.mean(told) - np.mean(true)) < 0.05


def test_a_state_of_version_0_1_still_opens() -> None:
    """It had means of logarithms only, and no readings of the ratio."""
    for name, power in (("neyman", 1), ("gradient-variance", 2)):
        old, new = (_sampler(name, PROCESSES["linear"]) for _ in range(2))
        state = _taught(old).state_dict()
        inner: dict[str, Any] = state
        while "seen" not in inner:
            inner = inner["sampler"]
        inner.pop("told", None)
        inner.pop("variance", None)
        # Two halves of 16 at a distance of 2 s have the variance 2 s^2 x 16.
        inner["log_variance"] = 0.3 * (32 * SPREADS**2).log()
        new.load_state_dict(state)
        torch.testing.assert_close(_masses(new), _masses(old))
        # Measured as before, nothing changes.
        _taught(new)
        wanted = SPREADS**power / (SPREADS**power).sum()
        torch.testing.assert_close(_masses(new), wanted, rtol=1e-4, atol=0)


@every_process
@pytest.mark.parametrize("floor", [0.1, 0.2, 0.5])
def test_corrections_are_exact_and_bounded_by_the_floor(process: NoiseProcess, floor: float) -> None:
    spreads = torch.tensor([1e-6, 1.0, 1e4, 1e-2, 1.0])
    sampler = _taught(_sampler("neyman", process, floor=floor), spreads)
    drawn = sampler.draw(torch.zeros(20_000, 1), Tick(step=3))
    aimed = process.reference.pdf(drawn.u)
    off = (drawn.correction * sampler.density(drawn.u) / aimed - 1).abs()
    # In float32 a draw on the border of two strata may be read in the other.
    assert (off > 1e-4).float().mean() <= 1e-3
    assert drawn.correction.max() <= (1 + 1e-5) / floor
    assert drawn.correction.max() > 0.99 / floor
    # 20 000 stratified draws: their mean is the objective's to within a few of them.
    assert abs(float(drawn.correction.mean()) - 1) < 5e-3


# alignment


def _gram(sampler: TimestepSampler, trained: Tensor, target: Tensor) -> Tensor:
    """The interdependence after every stratum was measured, in turn, three times."""
    for stratum in [*range(len(trained))] * 3:
        _heard(sampler, GradientSignal(stratum, torch.stack([trained[stratum], target[stratum]]), 16))
    return sampler.diagnostics()["interdependence"]


def _vectors(seed: int) -> Tensor:
    return torch.randn(STRATA, 12, generator=torch.Generator().manual_seed(seed))


@every_process
def test_the_interdependence_is_the_planted_gram_matrix(process: NoiseProcess) -> None:
    trained, target = _vectors(0), _vectors(1)
    found = _gram(_sampler("alignment", process, target="vlb"), trained, target)
    torch.testing.assert_close(found, trained @ target.T)
    assert not torch.allclose(found, found.T)


def test_with_one_objective_both_halves_are_used_both_ways() -> None:
    one, other = _vectors(0), _vectors(1)
    found = _gram(_sampler("alignment", PROCESSES["linear"], target=None), one, other)
    torch.testing.assert_close(found, (one @ other.T + other @ one.T) / 2)


@every_process
def test_masses_are_the_gains_where_they_are_positive(process: NoiseProcess) -> None:
    trained, target = _vectors(0), _vectors(1)
    sampler = _sampler("alignment", process, target="vlb")
    gains = (_gram(sampler, trained, target)).mean(1)
    assert ((gains > 0).sum() >= 2) & ((gains < 0).sum() >= 1), "both kinds are tested"
    wanted = gains.clamp(min=0) / gains.clamp(min=0).sum()
    torch.testing.assert_close(_masses(sampler), wanted, rtol=1e-4, atol=1e-6)


@every_process
@pytest.mark.parametrize("chosen", [(2, 3), (0, 1), (8, 9), (2, 7)], ids=str)
def test_alignment_draws_where_gradients_agree(process: NoiseProcess, chosen: tuple[int, int]) -> None:
    """Two strata of ten have something to learn; the rest is noise of the same size."""
    sampler = _sampler("alignment", process, strata=10, floor=0.3)
    generator = torch.Generator().manual_seed(1)
    for turn in range(20 * 10):
        stratum = turn % 10
        halves = torch.randn(2, 200, generator=generator) / 14
        halves[:, 0] += float(stratum in chosen)
        _heard(sampler, GradientSignal(stratum, halves, 16))
    share = _masses(sampler)[list(chosen)].sum()
    # All but the floor's eight tenths, and a little that noise earns.
    assert share > 0.6


def test_where_nothing_gains_the_draws_are_the_objectives() -> None:
    sampler = _sampler("alignment", PROCESSES["linear"], target="vlb")
    _gram(sampler, torch.eye(STRATA), -torch.eye(STRATA))
    torch.testing.assert_close(_masses(sampler), torch.full((STRATA,), 1 / STRATA))


def test_a_stratum_may_be_left_out_so_that_no_correction_restores_it_without_a_floor() -> None:
    with pytest.raises(Unsupported, match="Mix it with a floor first"):
        _sampler("alignment", PROCESSES["linear"], unbiased=True)
    corrected = _sampler("alignment", PROCESSES["linear"], unbiased=True, floor=0.1)
    trained = torch.eye(STRATA)[:1].repeat(STRATA, 1)
    trained[3:] *= -1
    _gram(corrected, trained, torch.eye(STRATA)[:1].repeat(STRATA, 1))
    drawn = corrected.draw(torch.zeros(5000, 1), Tick())
    assert drawn.correction.max() == pytest.approx(10, rel=1e-4)


# what all of them refuse and keep


@pytest.mark.parametrize("name", ["neyman", "gradient-variance", "alignment"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_measurement_that_is_not_finite_changes_nothing(name: str, broken: float) -> None:
    sampler = _taught(_sampler(name, PROCESSES["linear"]))
    before = _masses(sampler)
    for half in range(2):
        signal = planted(torch.tensor(3.0), torch.tensor(9.0), 2)
        signal.halves[half, 5] = broken
        _heard(sampler, signal)
        assert torch.equal(_masses(sampler), before)
    _heard(sampler, planted(torch.tensor(1.0), torch.tensor(9.0), 2))
    assert not torch.equal(_masses(sampler), before)


@pytest.mark.parametrize("name", ["neyman", "gradient-variance", "alignment"])
def test_gradients_of_exactly_zero_are_survived(name: str) -> None:
    sampler = _sampler(name, PROCESSES["linear"])
    for stratum in range(STRATA):
        _heard(sampler, GradientSignal(stratum, torch.zeros(2, 8), 16))
    torch.testing.assert_close(_masses(sampler), torch.full((STRATA,), 1 / STRATA))


@pytest.mark.parametrize("name", ["neyman", "gradient-variance", "alignment"])
def test_only_gradients_teach(name: str) -> None:
    sampler = _taught(_sampler(name, PROCESSES["linear"]))
    before = _masses(sampler)
    assert _heard(sampler, None) == {}
    assert torch.equal(_masses(sampler), before)
    with pytest.raises(Unsupported, match="learns from gradients, not from DecreaseSignal"):
        _heard(sampler, DecreaseSignal(torch.zeros(3), torch.zeros(1, 2)))


@pytest.mark.parametrize("name", ["neyman", "gradient-variance", "alignment"])
def test_the_state_of_other_strata_is_refused(name: str) -> None:
    sampler = _taught(_sampler(name, PROCESSES["linear"]))
    metric = "plain" if sampler.probe.preconditioned else "adam"
    others = [
        _sampler(name, PROCESSES["linear"], strata=4),
        _sampler(name, PROCESSES["linear"], decay=0.5),
        _sampler(name, PROCESSES["linear"], metric=metric),
        _sampler(name, PROCESSES["edm"]),
    ]
    for other in others:
        with pytest.raises(StateMismatch, match="build the sampler it was saved from"):
            other.load_state_dict(sampler.state_dict())


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"strata": 1}, "strata"),
        ({"every_steps": 0}, "every_steps"),
        ({"images": 0}, "images"),
        ({"decay": 1.0}, "decay"),
        ({"floor": 1.5}, "floor"),
        ({"metric": "adamw"}, "Did you mean 'adam'"),
    ],
    ids=str,
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidParameter, UnknownName), match=said):
        _sampler("neyman", PROCESSES["linear"], **parameters)


# tilted densities

TABLES = {
    "flat": [1.0, 1.0, 1.0, 1.0],
    "steep": [1.0, 1000.0, 0.01, 5.0],
    "with-holes": [0.0, 2.0, 0.0, 3.0],
}


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
@pytest.mark.parametrize("name", TABLES)
def test_a_tilted_density_is_a_proper_one(name: str, reference: Density) -> None:
    table = Table(edges(4), torch.tensor(TABLES[name], dtype=torch.float64))
    tilted, v = Tilted(reference, table), centres(4000)
    u = tilted.quantile(v)
    assert ((u >= 0) & (u < 1)).all()
    assert (u.diff() >= 0).all()
    torch.testing.assert_close(tilted.cdf(u), v, rtol=0, atol=1e-6)
    ends = tilted.cdf(torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ends, torch.tensor([0.0, 1.0], dtype=torch.float64))
    # The density is the slope of the mass, but in the few cells that hold a border.
    borders = edges(20_000)
    slope = tilted.cdf(borders).diff() * 20_000
    off = (tilted.pdf(centres(20_000)) - slope).abs() > 1e-3 * slope + 1e-4
    assert off.sum() <= 3
    torch.testing.assert_close(
        tilted.masses(reference.quantile(edges(4)[1:-1])), table.shares[1:-1], rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_a_tilt_of_equal_masses_is_the_reference(reference: Density) -> None:
    tilted = Tilted(reference, Table(edges(7), torch.ones(7, dtype=torch.float64)))
    u = centres(1000)
    torch.testing.assert_close(tilted.pdf(u), reference.pdf(u), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(tilted.cdf(u), reference.cdf(u).double(), rtol=1e-9, atol=1e-12)
