"""What samplers make of the gradients of strata, on gradients that are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from synthetic import feedback, planted
from torch import Tensor

import stepwell
from stepwell.core.density import Density, Table, centres, edges
from stepwell.core.errors import InvalidParameter, StateMismatch, UnknownName, Unsupported
from stepwell.core.feedback import DecreaseSignal, GradientSignal
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, TimestepSampler
from stepwell.core.tick import Tick
from stepwell.samplers.gradients import Tilted

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


def test_the_variance_ratio_is_what_neyman_leaves_of_the_variance() -> None:
    sampler = _taught(_sampler("neyman", PROCESSES["linear"]))
    found = _heard(sampler, planted(torch.tensor(0.0), SPREADS[0], 0))["variance_ratio"]
    torch.testing.assert_close(found, SPREADS.sum() ** 2 / (STRATA * (SPREADS**2).sum()))


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
