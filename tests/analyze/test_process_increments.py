"""The picture of a process against SpeeD's theorem and SpeeD's own borders."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

import stepwell
from stepwell.analyze.increments import OFFICIAL_TAU, process_increments
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.sampler import pmf

SCHEDULES = {"linear": 642, "cosine": 959, "quadratic": 829}
"""With `meaningful_steps` of SpeeD's own code, run on the three."""


@pytest.mark.parametrize("name", SCHEDULES)
def test_variances_are_the_theorems(name: str) -> None:
    process = stepwell.process(name)
    abar = process.scales(process.grid())[0] ** 2
    found = process_increments(name, process)
    theorem = 2 - abar[:-1] * (1 + abar[1:] / abar[:-1])
    assert found.variance == pytest.approx(theorem.tolist())
    assert len(found.u) == len(found.mean) == 999
    assert found.official_first_flat == SCHEDULES[name]


def test_the_borders_are_where_the_variance_turns_and_where_it_has_arrived() -> None:
    found = process_increments("linear", stepwell.process("linear"))
    variance = torch.tensor(found.variance)
    second = found.timestep(found.converges_from)
    assert second is not None
    assert float(variance[second - 1]) >= 0.99 * float(variance.max()) > float(variance[second - 2])
    assert 0 < found.accelerates_until < found.converges_from < 1
    assert second == pytest.approx(674, abs=1)
    first = found.timestep(found.accelerates_until)
    slope = variance.diff()
    assert first is not None
    assert first - 1 == pytest.approx(int(slope.argmax()), abs=1)


def test_the_official_border_is_where_its_density_falls() -> None:
    process = stepwell.process("linear")
    table = pmf(stepwell.sampler("speed", process, dual=False, as_published=True), process)
    assert int(table.diff().argmin()) + 1 == OFFICIAL_TAU
    assert process_increments("linear", process).official_converges_from == OFFICIAL_TAU
    assert (
        process_increments("short", stepwell.process("linear", timesteps=100)).official_converges_from is None
    )


@pytest.mark.parametrize("name", ["flow", "edm"])
def test_continuous_processes_have_areas_in_their_own_time(name: str) -> None:
    process = stepwell.process(name)
    found = process_increments(name, process)
    assert found.official_converges_from is found.official_first_flat is found.timestep(0.5) is None
    assert 0 < found.accelerates_until <= found.converges_from < 1
    borders = [found.accelerates_until, found.converges_from]
    wanted = process.time(torch.tensor(borders, dtype=torch.float64))
    assert found.own_times == pytest.approx(wanted.tolist())
    assert json.loads(json.dumps(asdict(found)))["process"] == name


def test_flow_increments_in_closed_form() -> None:
    # x_u = (1 - u) x0 + u eps: u^2 / ((1 - u)^2 + u^2) of its variance is noise, steepest in the middle.
    process = stepwell.process("flow")
    u = process.grid()
    noise = u**2 / ((1 - u) ** 2 + u**2)
    found = process_increments("flow", process)
    assert found.variance == pytest.approx((noise[1:] + noise[:-1]).tolist(), rel=1e-6)
    assert found.accelerates_until == pytest.approx(0.5, abs=0.001)


def test_what_cannot_be_parted_is_refused() -> None:
    with pytest.raises(Unsupported, match="has 3 timesteps, and the areas need at least 4"):
        process_increments("linear", stepwell.process("linear", timesteps=3))
    with pytest.raises(InvalidParameter, match="converged must lie between 0 and 1"):
        process_increments("linear", stepwell.process("linear"), converged=2)
