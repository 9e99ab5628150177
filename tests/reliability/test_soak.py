"""Long trainings on bad losses: what learns stays finite, normalised and small, and memory stays flat."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import named
from synthetic import measured, profile
from torch import Tensor
from train.small_runs import words

from stepwell.catalogue.find import SAMPLERS
from stepwell.core.density import edges
from stepwell.core.errors import NonFiniteLoss
from stepwell.core.feedback import DecreaseSignal, Feedback, GradientSignal, Signal
from stepwell.core.pending import TOGETHER
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tick import Tick

BATCH = 16
GOOD = 1000
"""Updates after the bad ones: every stratum is measured at least twice."""
LEARNERS: dict[str, dict[str, Any]] = {entry.name: {} for entry in SAMPLERS if entry.learns}
VARIANTS = {**LEARNERS, "beta-policy": {"credit": "alignment"}}

Harm = Callable[[Tensor], Tensor]


def _one(value: float) -> Harm:
    """One example of the batch."""
    return lambda losses: torch.cat([losses.new_full((1,), value), losses[1:]])


HARMS: tuple[Harm, ...] = (
    _one(torch.nan),
    _one(torch.inf),
    _one(0.0),
    _one(3e38),
    _one(1e20),
    _one(1e-45),
    lambda losses: losses * 0,
    lambda losses: torch.full_like(losses, 3e38),
    lambda losses: torch.full_like(losses, torch.nan),
    lambda losses: losses * 1e-30,
)


def _harmed(signal: Signal | None, harm: Harm) -> Signal | None:
    """What a probe measures where losses are like that."""

    def flat(values: Tensor) -> Tensor:
        return harm(values.flatten()).view_as(values)

    if isinstance(signal, GradientSignal):
        return replace(signal, halves=flat(signal.halves))
    if isinstance(signal, DecreaseSignal):
        return replace(signal, row=flat(signal.row), rewards=flat(signal.rewards))
    return None


def _leaves(state: Any) -> Iterator[Any]:
    for value in state.values() if isinstance(state, dict) else state if isinstance(state, list) else ():
        yield from _leaves(value) if isinstance(value, dict | list) else [value]


def _size(sampler: TimestepSampler) -> int:
    """Numbers in the state."""
    return sum(leaf.numel() if isinstance(leaf, Tensor) else 1 for leaf in _leaves(sampler.state_dict()))


def _assert_sound(sampler: TimestepSampler, tick: Tick, support: Tensor) -> None:
    x0 = torch.zeros(BATCH, 1, 1)
    drawn = sampler.draw(x0, tick)
    assert ((drawn.u >= 0) & (drawn.u < 1)).all()
    assert drawn.log_prob.isfinite().all()
    assert (drawn.correction.isfinite() & (drawn.correction > 0)).all()
    density = sampler.density((edges(2000)[1:] + edges(2000)[:-1]) / 2, x0)
    assert (density.isfinite() & (density >= 0)).all()
    masses = sampler.cdf(edges(50), x0[:1].expand(51, 1, 1)).diff()
    assert abs(float(masses.sum()) - 1) < 1e-5
    assert (masses[support] > 0).all(), "a time that is never drawn again is never learned about"
    for leaf in _leaves(sampler.state_dict()):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.isnan().all():
            assert not leaf.isinf().any()


def _soak(name: str, parameters: dict[str, Any], updates: int) -> int:
    """Draw and learn so often, four times in ten from something bad; how many batches were refused."""
    sampler, x0, refused = named(name, "linear", **parameters)(), torch.zeros(BATCH, 1, 1), 0
    sampler.draw(x0, Tick(seed=5))
    support = sampler.cdf(edges(50), x0[:1].expand(51, 1, 1)).diff() > 0
    size = 0
    for step in range(updates + GOOD):
        tick = Tick(seed=5, step=step)
        drawn = sampler.draw(x0, tick)
        losses = profile(drawn.u) * (0.5 + tick.uniform("loss", BATCH))
        signal = measured(sampler.probe, tick, BATCH, drawn.u.device)
        luck = float(tick.uniform("harm", 1))
        if luck < 0.4 and step < updates:
            harm = HARMS[int(luck / 0.4 * len(HARMS))]
            losses, signal = harm(losses), _harmed(signal, harm)
        # As the pacer does: with losses if it learns from them, else when something was measured.
        if sampler.learns_from_losses or signal is not None:
            try:
                sampler.learn(Feedback(tick, drawn.u, losses, losses, drawn.action, signal))
            except NonFiniteLoss:
                refused += 1
        if (step + 1) % (updates // 10) == 0:
            # A stratum whose gradient is measured as zero may get no draws until it is measured again.
            kept = support if sampler.probe is None else torch.zeros_like(support)
            _assert_sound(sampler, Tick(seed=6, step=step), kept)
            # All that is kept of the past has come together after a tenth.
            size = size or _size(sampler)
            # Losses may wait: three values of each, of so many updates.
            assert _size(sampler) <= 1.01 * size + 3 * BATCH * TOGETHER
    _assert_sound(sampler, Tick(seed=6, step=updates), support)
    return refused


CASES = [
    pytest.param(name, own, id="-".join([name, *own.values()]))
    for name, own in (*LEARNERS.items(), ("beta-policy", VARIANTS["beta-policy"]))
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_two_thousand_draws_on_bad_losses(name: str, parameters: dict[str, Any]) -> None:
    _soak(name, parameters, 2000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_a_hundred_thousand_draws_on_bad_losses(name: str, parameters: dict[str, Any]) -> None:
    refused = _soak(name, parameters, 100_000)
    print(f"\n{name} {parameters or ''}: 100,000 draws, {refused:,} batches refused, sound at the end")


MEMORY = """
import sys, torch
torch.set_num_threads(1)
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan

early, seen = int(sys.argv[1]), []

def progress(step, values):
    if step >= early:
        resident = int(open("/proc/self/statm").read().split()[1]) * 4096
        seen.append((step, resident))

run_plan(load("fashion16", sys.argv[2:]), say=lambda text: None, progress=progress)
print(*seen[0], *seen[-1])
"""


def _growth(tmp_path: Path, early: int, steps: int) -> tuple[int, int]:
    """How many steps and bytes lie between an early step and the last."""
    changes = {"method": "neyman", "batch": 2, "record_every": 50, "evaluate_every": steps // 10}
    given = words(tmp_path / "run", **changes, steps=steps, checkpoint_every=steps // 4)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(early), *given], capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, before, last, after = map(int, done.stdout.split())
    return last - first, after - before


@pytest.mark.full
def test_memory_is_flat_over_two_thousand_steps(tmp_path: Path) -> None:
    _, bytes_more = _growth(tmp_path, 500, 2500)
    assert bytes_more < 8e6


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_twenty_thousand_steps(tmp_path: Path) -> None:
    steps, bytes_more = _growth(tmp_path, 2000, 20_000)
    print(f"\nmemory: {bytes_more / 1e6:+.1f} MB over {steps:,} steps")
    assert bytes_more < 8e6
