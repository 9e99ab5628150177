"""Laws that every sampler obeys: shape, range, determinism, density and state.

Statistical checks use fixed seeds and fail once in a million (`RATE`) if the draws are right.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from conformance import CASES, NEEDED, NOW, PROCESSES, X0, Case, deep, every_case, named
from odds import assert_follows_masses, assert_uniform
from synthetic import START, cell_borders, cell_masses, lesson, profile, steps_of, teach
from torch import Tensor

import stepwell
from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import SAMPLERS
from stepwell.core.density import edges
from stepwell.core.errors import StateMismatch
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tick import Tick

RATE = 1e-6


def test_every_process_has_several_samplers() -> None:
    for process in PROCESSES:
        assert sum(process in case.name.split("-") for case in CASES if not case.full) >= 2, process


def _pooled(sampler: TimestepSampler, batch: int, steps: int, dependent: bool) -> Tensor:
    """Draws of two ranks over many steps: all of them, or if they depend on each other one per step."""
    drawn, x0 = [], torch.zeros(batch, 1, 1)
    for step in range(START, START + steps):
        for rank in (step % 2,) if dependent else range(2):
            tick = Tick(seed=7, step=step, rank=rank, world=2)
            u = sampler.draw(x0, tick).u
            if dependent:
                slot = int(tick.uniform("slot", 1) * batch)
                u = u[slot : slot + 1]
            drawn.append(u)
    return torch.cat(drawn).double()


@every_case
def test_a_draw_is_one_float32_in_unit_time_per_example(case: Case) -> None:
    for shape in [(4,), (1,), (4, 3, 8, 8), (2, 5, 4, 4, 4), (1, 3, 8, 8), (3, 7, 2)]:
        if case.by_shape and len(shape) < 3:
            continue
        drawn = case.drawn_from.draw(torch.zeros(shape), NOW)
        for values in (drawn.u, drawn.log_prob, drawn.correction):
            assert values.shape == shape[:1]
            assert values.dtype == torch.float32
            assert values.device == torch.device("cpu")
        assert ((drawn.u >= 0) & (drawn.u < 1)).all()


@every_case
def test_the_dtype_of_the_examples_does_not_change_the_draw(case: Case) -> None:
    one = case.drawn_from.draw(X0, NOW)
    for dtype in (torch.bfloat16, torch.float64, torch.uint8):
        other = case.drawn_from.draw(X0.to(dtype), NOW)
        assert other.u.dtype == torch.float32
        assert torch.equal(one.u, other.u)


@every_case
def test_draws_corrections_and_log_probs_are_sound(case: Case) -> None:
    sampler, x0 = case.drawn_from, torch.zeros(20_000, 1, 1)
    drawn = sampler.draw(x0, NOW)
    assert ((drawn.u >= 0) & (drawn.u < 1)).all()
    assert (drawn.correction > 0).all()
    assert drawn.correction.isfinite().all()
    off = (drawn.log_prob - sampler.density(drawn.u, x0).log()).abs()
    # Through a warp, a draw on the border of two bins may be read in the other: one in a thousand at most.
    assert (off > 1e-4).float().mean() <= 1e-3
    if sampler.reference is None:
        assert torch.equal(drawn.correction, torch.ones(20_000))
    else:
        restored = drawn.correction * sampler.density(drawn.u, x0)
        aimed = sampler.reference.pdf(drawn.u)
        assert ((restored / aimed - 1).abs() > 1e-4).float().mean() <= 1e-3


@every_case
def test_densities_in_float32_and_float64_agree(case: Case) -> None:
    u = (torch.arange(3000, dtype=torch.float64) + 0.5) / 3000
    exact, rounded = case.drawn_from.density(u), case.drawn_from.density(u.float()).double()
    # As above: a few u may lie on the border of two bins.
    assert ((exact - rounded).abs() > 1e-3 * exact + 1e-5).double().mean() <= 1e-3


@every_case
def test_the_same_tick_draws_the_same_bits(case: Case) -> None:
    sampler = case.sampler()
    one = sampler.draw(X0, NOW)
    sampler.draw(X0, Tick(seed=1, step=START + 1))
    other, fresh = sampler.draw(X0, NOW), case.drawn_from.draw(X0, NOW)
    for again in (other, fresh):
        assert torch.equal(one.u, again.u)
        assert torch.equal(one.log_prob, again.log_prob)
        assert torch.equal(one.correction, again.correction)


@every_case
def test_another_tick_draws_other_times(case: Case) -> None:
    here = Tick(seed=1, step=START, world=2)
    one = case.drawn_from.draw(X0, here).u
    for change in ({"seed": 2}, {"step": START + 1}, {"micro": 1}, {"rank": 1}):
        other = case.drawn_from.draw(X0, replace(here, **change)).u
        # Coarse floats may meet by chance; a shared stream would repeat everything.
        assert (one == other).sum() <= 1, change


@every_case
def test_the_density_is_the_derivative_of_the_cdf_and_integrates_to_one(case: Case) -> None:
    sampler, coarse = case.drawn_from, edges(50)
    sampler.draw(X0, NOW)
    borders = cell_borders(edges(4096))
    masses = cell_masses(sampler, borders)
    assert (masses >= 0).all()
    # The midpoint rule errs where a cell straddles a step of the density: 64 000 cells keep that small.
    assert abs(float(masses.sum()) - 1) < 1e-3
    ends = sampler.cdf(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert torch.allclose(ends, torch.tensor([0.0, 1.0], dtype=torch.float64), atol=1e-6)
    bin_of = torch.bucketize((borders[1:] + borders[:-1]) / 2, coarse[1:-1])
    by_quadrature = torch.zeros(50, dtype=torch.float64).index_add_(0, bin_of, masses)
    by_cdf = sampler.cdf(coarse).diff()
    assert torch.allclose(by_quadrature, by_cdf, rtol=2e-3, atol=2e-4)
    assert torch.allclose(sampler.masses(coarse), by_cdf, atol=1e-6)


@every_case
def test_the_density_is_defined_at_time_zero(case: Case) -> None:
    for dtype in (torch.float32, torch.float64):
        height = case.drawn_from.density(torch.zeros(1, dtype=dtype))
        assert (height >= 0).all()


@every_case
def test_draws_follow_the_density(case: Case) -> None:
    sampler = case.drawn_from
    # Pooling one example per step is right where a batch is dependent: over steps draws are independent.
    sizes = {1: 200, 7: 200, 512: 200} if case.dependent else {1: 100, 7: 40, 4096: 2}
    for batch, steps in sizes.items():
        u = _pooled(sampler, batch, steps, case.dependent)
        x0 = torch.zeros(batch, 1, 1)
        assert_uniform(sampler.cdf(u, x0), failure_rate=RATE)
        bins = min(50, len(u) // 10)
        masses = sampler.cdf(edges(bins), x0).diff()
        # A sum of squares of rounding errors is no mass.
        masses = torch.where(masses < 1e-9, 0.0, masses)
        assert_follows_masses((u * bins).long(), masses, failure_rate=RATE)


@every_case
def test_drawing_and_learning_leave_the_global_random_state_alone(case: Case) -> None:
    before = torch.get_rng_state()
    teach(case.build(), 2, 64)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in SAMPLERS])
def test_a_sampler_says_whether_it_learns_also_through_combinators(entry: Entry) -> None:
    for shaping in ({}, {"floor": 0.5, "shift": 2.0, "stratified": True, "warm_up_steps": 3}):
        assert named(entry.name, "flow", **shaping)().learns is entry.learns
    assert deep(entry.name, "flow", **NEEDED.get(entry.name, {})).learns is entry.learns


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in SAMPLERS if e.learns])
def test_what_a_taught_sampler_draws_has_changed(entry: Entry) -> None:
    sampler, x0 = named(entry.name, "linear")(), torch.zeros(512, 1, 1)
    before = sampler.draw(x0, NOW).u
    # Otherwise the suite would test it as it was built, twice.
    assert (teach(sampler).draw(x0, NOW).u != before).float().mean() > 0.5


@every_case
def test_learning_twice_from_the_same_gives_the_same_bits(case: Case) -> None:
    one, other = teach(case.build(), 2, 512), teach(case.build(), 2, 512)
    assert torch.equal(one.draw(X0, NOW).u, other.draw(X0, NOW).u)


@every_case
def test_a_reloaded_sampler_goes_on_with_the_same_bits(case: Case) -> None:
    sampler, reloaded = teach(case.sampler(), 2, 512), case.build()
    stored = io.BytesIO()
    torch.save(sampler.state_dict(), stored)
    stored.seek(0)
    reloaded.load_state_dict(torch.load(stored, weights_only=True))
    u = torch.linspace(0.01, 0.99, 99)
    # Before any draw: a warm-up remembers its step.
    assert torch.equal(sampler.density(u), reloaded.density(u))
    for step in steps_of(sampler, 3):
        tick = Tick(seed=9, step=step)
        one, other = sampler.draw(X0, tick), reloaded.draw(X0, tick)
        assert torch.equal(one.u, other.u)
        assert torch.equal(one.log_prob, other.log_prob)
        assert torch.equal(one.correction, other.correction)
        for each in (sampler, reloaded):
            each.learn(lesson(each.probe, one, profile(one.u), tick))


@every_case
def test_a_saved_state_does_not_change_with_the_sampler(case: Case) -> None:
    sampler = teach(case.build(), 1, 512)
    state = sampler.state_dict()
    before = io.BytesIO()
    torch.save(state, before)
    teach(sampler, 1, 512)
    after = io.BytesIO()
    torch.save(state, after)
    assert before.getvalue() == after.getvalue()


def _leaves(state: Any) -> Iterator[Any]:
    if type(state) is dict:
        for key, value in state.items():
            assert type(key) is str
            yield from _leaves(value)
    else:
        yield state


@every_case
def test_the_state_holds_only_tensors_numbers_and_strings(case: Case) -> None:
    for leaf in _leaves(case.drawn_from.state_dict()):
        assert isinstance(leaf, (Tensor, int, float, str))


@every_case
def test_the_state_of_another_sampler_is_refused(case: Case) -> None:
    sampler = case.drawn_from
    stranger = stepwell.sampler("table", "linear", masses=[0.25, 0.75])
    nested = stepwell.sampler("uniform", "linear", floor=0.125)
    for state in (stranger.state_dict(), nested.state_dict(), {}, {"kind": None}, None):
        with pytest.raises(StateMismatch, match="saved"):
            sampler.load_state_dict(state)
    with pytest.raises(StateMismatch):
        stranger.load_state_dict(sampler.state_dict())
