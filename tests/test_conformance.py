"""One suite over everything that draws: each catalogue entry on two processes or three, and each combinator.

Statistical checks use fixed seeds and fail once in a million (`RATE`) if the draws are right.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import pytest
import torch
from accelerator import DEVICE, Copies, accelerator
from cases import case
from odds import assert_follows_masses, assert_uniform
from synthetic import START, cell_borders, cell_masses, lesson, profile, steps_of, teach
from torch import Tensor

import stepwell
from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import SAMPLERS, find
from stepwell.core.density import Uniform, edges
from stepwell.core.errors import StateMismatch
from stepwell.core.feedback import Feedback
from stepwell.core.probe import GradientSpec
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler
from stepwell.core.tick import Tick
from stepwell.samplers.one_density import Static

RATE = 1e-6
NOW = Tick(seed=1, step=START)
X0 = torch.zeros(64, 1)
PROCESSES = ("linear", "cosine", "flow", "edm", "vp", "ve")
MASSES = (1.0, 0.0, 3.0, 2.0, 5.0)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], TimestepSampler]
    taught: bool = False
    """Whether it has learned from a few batches before it is tested."""
    dependent: bool = False
    """Whether the draws of one batch depend on each other by design."""
    full: bool = False
    """Whether only `make test-all` has it."""

    def sampler(self) -> TimestepSampler:
        sampler = self.build()
        # density() of a warm-up is that of the step last drawn for.
        sampler.draw(X0, NOW)
        return teach(sampler) if self.taught else sampler

    @cached_property
    def drawn_from(self) -> TimestepSampler:
        """One sampler for all tests that only draw from it."""
        return self.sampler()


def _named(name: str, process: str, **parameters: Any) -> Callable[[], TimestepSampler]:
    if name == "table":
        parameters["masses"] = MASSES
    return lambda: stepwell.sampler(name, process, **parameters)


def _catalogue() -> Iterator[Case]:
    """Every sampler on a process that counts and on a continuous one; every process with several samplers.

    Learners meet EDM, whose reference is not uniform: fresh on one process and taught on the other, and the
    other way round with `make test-all`, which has a third process for what was taught.
    """
    for number, entry in enumerate(SAMPLERS):
        discrete, others = ("linear", "cosine")[number % 2], ("flow", "vp", "ve")
        if not entry.learns:
            for process in (discrete, (*others, "edm")[number % 4]):
                yield Case(f"{entry.name}-{process}", _named(entry.name, process), dependent=entry.stratified)
            continue
        swapped = number % 2 == 1
        for process, taught, full in (
            (discrete, swapped, False),
            ("edm", not swapped, False),
            (discrete, not swapped, True),
            ("edm", swapped, True),
            (others[number % 3], True, True),
        ):
            name = f"{entry.name}-{process}{'-taught' if taught else ''}"
            yield Case(name, _named(entry.name, process), taught, entry.stratified, full)


def _variants() -> Iterator[Case]:
    yield Case("logit-normal-as-published", _named("logit-normal", "linear", as_published=True))
    for process in ("linear", "cosine"):
        paired = _named("speed", process, as_published=True)
        yield Case(f"speed-as-published-{process}", paired, dependent=True, full=process == "cosine")
    for version in ("current", "legacy", "lognorm"):
        yield Case(f"speed-{version}-auto", _named("speed", "flow", version=version, tau="auto"))
    for name, own in {"alignment": {"credit": "alignment"}, "as-published": {"as_published": True}}.items():
        yield Case(f"beta-policy-{name}", _named("beta-policy", "linear", **own), taught=True)
    yield Case("table-borders", _named("table", "linear", borders=(0, 0.1, 0.15, 0.5, 0.95, 1)))


COMBINATORS: dict[str, dict[str, Any]] = {
    "floor": {"floor": 0.2},
    "stratified": {"stratified": True},
    "unbiased": {"unbiased": True},
    "warm-up-over": {"warm_up_steps": START - 5},
    "warm-up": {"warm_up_steps": START + 10**6},
    "within": {"within": (0.2, 0.8), "unbiased": False},
    "shift": {"shift": 3.0},
    "stratified-unbiased": {"stratified": True, "floor": 0.1, "unbiased": True},
    "keywords": {
        "shift": 0.5,
        "floor": 0.1,
        "warm_up_steps": 3,
        "within": (0.1, 0.9),
        "stratified": True,
        "unbiased": False,
    },
}

INSIDE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "logit-normal": ("logit-normal", "linear", {}),
    "speed": ("speed", "edm", {}),
    "loss-second-moment": ("loss-second-moment", "flow", {"bins": 40, "history": 4}),
    "loss-ema": ("loss-ema", "edm", {"bins": 30, "decay": 0.99}),
    "neyman": ("neyman", "edm", {"strata": 7, "stratified": False}),
    "alignment": ("alignment", "linear", {"strata": 10, "stratified": False}),
}


def _deep(name: str, process_name: str, **parameters: Any) -> TimestepSampler:
    """Every combinator at once, each around the others."""
    process, uniform = stepwell.process(process_name), Static(Uniform(), "uniform")
    inner = stepwell.sampler(name, process, **{**parameters, "stratified": False, "unbiased": False})
    warmed = stepwell.warm_up(stepwell.mix(inner, uniform, 0.1), 3)
    ranged = stepwell.within(stepwell.shift(warmed, 2.0, process), 0.1, 0.9)
    floored = stepwell.mix(ranged, uniform, 0.2)
    return stepwell.unbiased(stepwell.stratified(floored), process.reference)


def _combined() -> Iterator[Case]:
    """Every combinator around two samplers, at least one of which learns, and around two more in full."""
    for number, combinator in enumerate((*COMBINATORS, "deep")):
        for offset in (0, 3, 1, 4):
            name = list(INSIDE)[(number + offset) % len(INSIDE)]
            inner, process, own = INSIDE[name]
            learns, shaping = find("sampler", inner).learns, COMBINATORS.get(combinator, {})
            build = _named(inner, process, **{**own, **shaping})
            if combinator == "deep":
                build = partial(_deep, inner, process, **own)
            dependent = combinator == "deep" or "stratified" in shaping
            yield Case(f"{combinator}({name})", build, learns, dependent, full=offset in (1, 4))


CASES = [*_catalogue(), *_variants(), *_combined()]
every_case = pytest.mark.parametrize(
    "case", [case(each, quick=not each.full, id=each.name) for each in CASES]
)


def test_every_process_has_several_samplers() -> None:
    for process in PROCESSES:
        assert sum(process in case.name.split("-") for case in CASES if not case.full) >= 2, process


def _pooled(sampler: TimestepSampler, batch: int, steps: int, dependent: bool) -> Tensor:
    """Draws of two ranks over many steps: all of them, or if they depend on each other one per step."""
    drawn, x0 = [], torch.zeros(batch, 1)
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
    for shape in [(4,), (1,), (4, 3, 8, 8), (2, 5, 4, 4, 4), (1, 3, 8, 8)]:
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
    sampler, x0 = case.drawn_from, torch.zeros(20_000, 1)
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
        x0 = torch.zeros(batch, 1)
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
        assert _named(entry.name, "linear", **shaping)().learns is entry.learns
    assert (
        _deep(entry.name, "linear", **({"masses": MASSES} if entry.name == "table" else {})).learns
        is entry.learns
    )


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in SAMPLERS if e.learns])
def test_what_a_taught_sampler_draws_has_changed(entry: Entry) -> None:
    sampler, x0 = _named(entry.name, "linear")(), torch.zeros(512, 1)
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


@cache
def _on_device(case: Case) -> tuple[list[Draw], list[Metrics], list[str]]:
    """Draws, metrics and, after the first step, copies of three steps on a stand-in accelerator."""
    sampler, draws, metrics = case.build(), [], []
    # The spec belongs to the host: it is asked for where tensors are real.
    spec, steps = sampler.probe, list(steps_of(sampler, 3))[:3]
    spec = spec if isinstance(spec, GradientSpec) else None
    with accelerator():
        x0, losses = torch.zeros(16, 3, device=DEVICE), torch.ones(16, device=DEVICE)
        for step in steps:
            with Copies() as copies:
                draws.append(sampler.draw(x0, Tick(step=step, rank=1, world=2)))
            told = lesson(spec, draws[-1], losses, Tick(step=step))
            with copies:
                metrics.append(sampler.learn(told))
    return draws, metrics, copies.found


@every_case
def test_drawing_and_learning_never_look_at_a_value(case: Case) -> None:
    draws, metrics, _ = _on_device(case)
    for drawn in draws:
        for values in (drawn.u, drawn.log_prob, drawn.correction):
            assert values.device == DEVICE
            assert values.shape == (16,)
    assert all(value.device == DEVICE for step in metrics for value in step.values())


@every_case
def test_after_the_first_steps_nothing_is_copied_between_host_and_device(case: Case) -> None:
    assert _on_device(case)[2] == []


class _Careless(TimestepSampler):
    """Does to its values whatever a test hands it: the checks above must notice."""

    def __init__(self, look: Callable[[Tensor], Any]) -> None:
        self._look = look

    def from_uniform(self, v: Tensor, x0: Tensor, tick: Tick) -> Draw:
        self._look(v)
        return Draw(v, torch.zeros_like(v), torch.ones_like(v))

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.ones_like(u)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return u

    def learn(self, feedback: Feedback) -> Metrics:
        return {}

    def state_dict(self) -> State:
        return {"kind": "careless"}

    def load_state_dict(self, state: State) -> None:
        pass


@pytest.mark.parametrize(
    "look",
    [
        lambda v: v.max().item(),
        lambda v: v.tolist(),
        lambda v: bool((v > 0.5).any()),
        lambda v: v[v > 0.5],
        lambda v: v + torch.ones(len(v)),
    ],
    ids=["item", "tolist", "bool", "mask", "devices"],
)
def test_a_sampler_that_looks_at_a_value_is_caught(look: Callable[[Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        test_drawing_and_learning_never_look_at_a_value(Case("careless", lambda: _Careless(look)))


@pytest.mark.parametrize(
    "look",
    [
        lambda v: v.cpu(),
        lambda v: torch.ones(3).to(v.device),
        lambda v: torch.ones(()).to(v),
        lambda v: torch.as_tensor(0.5, device=v.device),
    ],
    ids=["to-host", "to-device", "scalar", "constant"],
)
def test_a_sampler_that_copies_in_every_step_is_caught(look: Callable[[Tensor], Any]) -> None:
    case = Case("careless", lambda: _Careless(look))
    with pytest.raises(AssertionError):
        test_after_the_first_steps_nothing_is_copied_between_host_and_device(case)
