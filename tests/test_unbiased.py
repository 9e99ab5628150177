"""Unbiased means it: under any sampler, the expected corrected loss is the one under the reference.

Expectations are quadratures, not samples. A draw is a function of one uniform v, so its expectation is an
integral over v, and N midpoints miss that by at most the integrand's variation / 2N (Koksma). The variation
is measured on the grid itself, which every test allows to be `SLACK` short.
"""

from __future__ import annotations

import pytest
import torch
from cases import case
from oracles import (
    OptimalDenoiser,
    gaussian_nodes,
    optimal_eps_loss,
    optimal_loss,
    optimal_output,
    optimal_x0,
    reference_times,
)
from synthetic import teach

import stepwell
from stepwell.catalogue.find import all_entries, find
from stepwell.core.density import centres

STD = 0.7
POINTS = 2**17
SLACK = 1.1
ROUNDING = 2e-6  # learners keep their masses in float32

PROCESSES = ("linear", "cosine", "flow", "edm")
WEIGHTINGS = ("none", "min-snr")
PAIRS = (
    *(("linear", "none"), ("edm", "min-snr"), ("cosine", "min-snr"), ("flow", "none")),
    *(("linear", "min-snr"), ("edm", "none"), ("cosine", "none"), ("flow", "min-snr")),
)
SAMPLERS = [name for kind, name in all_entries() if kind == "sampler"]
LEARNERS = [name for (kind, name), entry in all_entries().items() if kind == "sampler" and entry.learns]
# auto would rather draw the reference where little can be won.
NEEDED = {
    "table": {"masses": [1.0, 4.0, 2.0, 0.5]},
    "auto": {"least_gain": 0.0},
    "over-steps": {"stages": "0 uniform; 5 cosmap"},
}

# Where a density has next to no mass its correction has no bound: logit-normal's is 4e8 at t = 0, and no grid
# of v would see it. A floor of a tenth keeps it under 10, and is what one would train with.
BY_SHAPE = [name for (kind, name), entry in all_entries().items() if kind == "sampler" and entry.process]
HEAVY_TAILED = (
    *("logit-normal", "laplace", "log-normal-sigma", "info-noise", "gradient-variance"),
    *(*BY_SHAPE, "jit", "style-friendly", "pi0"),
)


def on_processes(names):
    """Every name on a process that counts and on a continuous one; every crossing with `make test-all`."""
    for number, name in enumerate(names):
        for place, pair in enumerate(PAIRS):
            if not pair[0].startswith(find("sampler", name).process or ""):
                continue
            quick = place in ((0, 1), (2, 3))[number % 2]
            yield case(name, *pair, quick=quick, id="-".join((name, *pair)))


def build(name, process, **parameters):
    # On EDM style-friendly is far from the reference: a tenth would leave the quadrature too coarse.
    share = 0.3 if name == "style-friendly" else 0.1
    floor = {"floor": share} if name in HEAVY_TAILED else {}
    return stepwell.sampler(name, process, **NEEDED.get(name, {}), **floor, **parameters)


def losses(process, weighting, u):
    return optimal_loss(process, u, STD) * weighting(process, u)


def reference_expectation(process, weighting):
    u, mass = reference_times(process, POINTS)
    return float((mass * losses(process, weighting, u)).sum())


def expectation(sampler, process, weighting, v=None):
    """E[correction x weighted loss] over v, and how far off that can be."""
    v = centres(POINTS) if v is None else v
    draw = sampler.from_uniform(v, torch.zeros(len(v), 1, 1), stepwell.Tick(step=10))
    values = draw.correction * losses(process, weighting, draw.u)
    return float(values.mean()), SLACK * float(values.diff().abs().sum()) / (2 * len(v))


def assert_keeps_the_objective(sampler, process, weighting):
    found, error = expectation(sampler, process, weighting)
    wanted = reference_expectation(process, weighting)
    assert error < 1e-3 * wanted, "the quadrature is too coarse to show anything"
    assert abs(found - wanted) <= error + ROUNDING * wanted


def taught(name, process, weighting, **parameters):
    """A learner that has seen the oracle's losses, ten at every timestep, or signals of every stratum."""
    sampler = build(name, process, **parameters)
    if sampler.probe is not None:
        return teach(sampler, batch=64)
    u = process.grid()
    for step in range(10):
        plain = optimal_loss(process, u, STD)
        feedback = stepwell.Feedback(stepwell.Tick(step=step), u, plain, losses(process, weighting, u))
        sampler.learn(feedback)
    return sampler


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("name", PROCESSES)
def test_the_oracle_is_what_an_objective_measures(name, weighting):
    process = stepwell.process(name)
    objective = stepwell.Objective(process, stepwell.weighting(weighting))
    x0, noise, mass = gaussian_nodes(STD)
    for u in (process.grid()[index] for index in (0, 10, 300, 700, 990)):
        times = u.expand(len(x0))
        found = objective(OptimalDenoiser(process, STD), x0, noise, times)
        plain, weighted = (mass * found.plain).sum(), (mass * found.weighted).sum()
        # Discrete processes answer unit_time in float32, so for them the denoiser's time is rounded.
        torch.testing.assert_close(plain, optimal_loss(process, u, STD), rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(weighted, losses(process, objective.weighting, u), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_oracle_is_the_same_seen_from_x0_and_from_eps(name):
    process = stepwell.process(name)
    u = process.grid()
    xt = torch.linspace(-2, 2, len(u), dtype=torch.float64)
    output = optimal_output(process, xt, u, STD)
    torch.testing.assert_close(
        process.recover(output, xt, u), optimal_x0(process, xt, u, STD), rtol=1e-6, atol=1e-9
    )
    seen_as_eps = optimal_loss(process, u, STD) * process.eps_factor(u)
    torch.testing.assert_close(seen_as_eps, optimal_eps_loss(process, u, STD))


@pytest.mark.parametrize(("name", "process", "weighting"), list(on_processes(SAMPLERS)))
def test_unbiased_samplers_keep_the_objective(name, process, weighting):
    process, weighting = stepwell.process(process), stepwell.weighting(weighting)
    sampler = build(name, process, unbiased=True)
    assert sampler.reference is process.reference
    assert_keeps_the_objective(sampler, process, weighting)


@pytest.mark.parametrize(("name", "process", "weighting"), list(on_processes(LEARNERS)))
def test_learners_keep_the_objective_once_they_have_learned(name, process, weighting):
    process, weighting = stepwell.process(process), stepwell.weighting(weighting)
    fresh, sampler = build(name, process), taught(name, process, weighting, unbiased=True)
    u = process.grid()
    assert (sampler.density(u) - fresh.density(u)).abs().max() > 0.1, "it has learned nothing"
    assert_keeps_the_objective(sampler, process, weighting)


OTHERS = [name for name in SAMPLERS if name not in (*LEARNERS, "uniform", "reference")]


@pytest.mark.parametrize("name", OTHERS)
def test_samplers_that_do_not_correct_change_the_objective(name):
    process = stepwell.process(find("sampler", name).process or "linear")
    weighting = stepwell.weighting("none")
    sampler = build(name, process, unbiased=False)
    assert sampler.reference is None
    found, error = expectation(sampler, process, weighting)
    assert abs(found - reference_expectation(process, weighting)) > 10 * error


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_that_do_not_correct_change_the_objective(name):
    process, weighting = stepwell.process("linear"), stepwell.weighting("none")
    sampler = taught(name, process, weighting, unbiased=False)
    found, error = expectation(sampler, process, weighting)
    assert abs(found - reference_expectation(process, weighting)) > 10 * error


@pytest.mark.parametrize("version", ["current", "legacy"])
@pytest.mark.parametrize("process", ["linear", "cosine"])
def test_speed_as_published_keeps_the_objective_over_a_batch(process, version):
    # Its second half is made of partners of the first: only the mean over all slots is an expectation.
    process, weighting = stepwell.process(process), stepwell.weighting("none")
    sampler = build("speed", process, version=version, as_published=True, unbiased=True)
    first = POINTS // 2 + 1
    v = torch.cat([centres(first), torch.full((POINTS - first,), 0.5, dtype=torch.float64)])
    found, error = expectation(sampler, process, weighting, v)
    wanted = reference_expectation(process, weighting)
    # Two grids of half the points, and partners of the last few that the batch cuts off.
    assert abs(found - wanted) <= 2 * error + 4 / POINTS * wanted
    assert error < 1e-3 * wanted
