"""Everything that draws, for the conformance suites: catalogue entries, their variants and combinators.

Every sampler is here on a process that counts and on a continuous one, every combinator around a sampler that
learns; what only `make test-all` has is `full`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pytest
import torch
from cases import case
from synthetic import START, teach

import stepwell
from stepwell.catalogue.find import SAMPLERS, find
from stepwell.core.density import Uniform
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tick import Tick
from stepwell.samplers.one_density import Static

NOW = Tick(seed=1, step=START)
X0 = torch.zeros(64, 1, 1)
"""A packed sequence of one token, so that densities by shape have one."""
PROCESSES = ("linear", "cosine", "flow", "edm", "vp", "ve")
MASSES = (1.0, 0.0, 3.0, 2.0, 5.0)
NEEDED: dict[str, dict[str, Any]] = {
    "table": {"masses": MASSES},
    "over-steps": {
        "stages": f"[0 uniform; {START - 10} logit-normal; {START + 30} cosmap]",
        "blend": "linear",
    },
}
"""Parameters that have no default."""


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
    by_shape: bool = False
    """Whether it refuses examples that are no images and no sequences."""

    def sampler(self) -> TimestepSampler:
        sampler = self.build()
        # density() of a warm-up is that of the step last drawn for.
        sampler.draw(X0, NOW)
        return teach(sampler) if self.taught else sampler

    @cached_property
    def drawn_from(self) -> TimestepSampler:
        """One sampler for all tests that only draw from it."""
        return self.sampler()


def named(name: str, process: str, **parameters: Any) -> Callable[[], TimestepSampler]:
    parameters = {**NEEDED.get(name, {}), **parameters}
    return lambda: stepwell.sampler(name, process, **parameters)


def _catalogue() -> Iterator[Case]:
    """Every sampler on a process that counts and on a continuous one; every process with several samplers.

    Learners meet EDM, whose reference is not uniform: fresh on one process and taught on the other, and the
    other way round with `make test-all`, which has a third process for what was taught.
    """
    for number, entry in enumerate(SAMPLERS):
        discrete, others = ("linear", "cosine")[number % 2], ("flow", "vp", "ve")
        if not entry.learns:
            either = (discrete, (*others, "edm")[number % 4])
            for process in (entry.process, f"{entry.process}:timesteps=500") if entry.process else either:
                build = named(entry.name, process)
                by_shape = "shape" in (parameter.name for parameter in entry.parameters)
                yield Case(f"{entry.name}-{process}", build, dependent=entry.stratified, by_shape=by_shape)
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
            yield Case(name, named(entry.name, process), taught, entry.stratified, full)


def _variants() -> Iterator[Case]:
    yield Case("logit-normal-as-published", named("logit-normal", "linear", as_published=True))
    for process in ("linear", "cosine"):
        paired = named("speed", process, as_published=True)
        yield Case(f"speed-as-published-{process}", paired, dependent=True, full=process == "cosine")
    for version in ("current", "legacy", "lognorm"):
        yield Case(f"speed-{version}-auto", named("speed", "flow", version=version, tau="auto"))
    policies = {
        "alignment": {"credit": "alignment"},
        "as-published": {"as_published": True},
        "paper": {"paper": True},
    }
    for name, own in policies.items():
        yield Case(f"beta-policy-{name}", named("beta-policy", "linear", **own), taught=True)
    yield Case("table-borders", named("table", "linear", borders=(0, 0.1, 0.15, 0.5, 0.95, 1)))


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


def deep(name: str, process_name: str, **parameters: Any) -> TimestepSampler:
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
            # A shift is for flows.
            process = "flow" if combinator == "deep" or "shift" in shaping else process
            build = named(inner, process, **{**own, **shaping})
            if combinator == "deep":
                build = partial(deep, inner, process, **own)
            dependent = combinator == "deep" or "stratified" in shaping
            yield Case(f"{combinator}({name})", build, learns, dependent, full=offset in (1, 4))


CASES = [*_catalogue(), *_variants(), *_combined()]
every_case = pytest.mark.parametrize(
    "case", [case(each, quick=not each.full, id=each.name) for each in CASES]
)
