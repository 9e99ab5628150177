"""Learning rates, tuned alike for every method: short runs on other seeds than those that are reported.

The grid is widened until the best rate of every method lies inside it. Where it still ends at an edge, the
verdict says so. A rate at which a run failed is not chosen. Two methods that are compared train at one rate,
unless one of them clearly wants another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from stepwell.compare.curves import final
from stepwell.compare.results import TUNING
from stepwell.compare.study import EACH, Study, Tuning
from stepwell.compare.trials import Trial, plan_of, started, trial_of
from stepwell.recipes.unnamed import how_often
from stepwell.runs.directory import safe_name


@dataclass(frozen=True)
class Tuned:
    """The tuning runs of a study and what they chose so far."""

    trials: tuple[Trial, ...]
    rates: dict[str, float]
    """By method, or by workload/method if each workload tunes for itself."""
    edges: tuple[str, ...]
    """Those without a best rate inside the grid: it lies at its edge, or every rate failed."""

    def of(self, study: Study) -> Study:
        """The study with the rates that were chosen."""
        return replace(study, rates=self.rates, edges=self.edges)


def tuned(study: Study, out: Path, records: Path | None, failed: Collection[Path] = ()) -> Tuned:
    """What is known from the runs that are there; runs in `failed` (their folders) will not be there."""
    tune, study = study.tune, started(study, out)
    if tune is None:
        return Tuned((), study.rates, study.edges)
    each = tune.workload == EACH
    workloads = list(study.workloads) if each else [tune.workload or next(iter(study.workloads))]
    trials: list[Trial] = []
    rates: dict[str, float] = {}
    edges: list[str] = []
    for workload in workloads:
        grid = tuple(sorted(tune.lr))
        for turn in range(tune.widen + 1):
            short = _trials(study, tune, workload, grid, (out, records))
            known = {method: _ends(study, method, short, failed) for method in study.methods}
            best = {method: _best(ends, grid, tune.caution) for method, ends in known.items() if ends}
            missing = [t for t in short if t.outcome() is None and t.folders[0] not in failed]
            wider = _widened(grid, set(best.values()))
            if missing or wider == grid or turn == tune.widen:
                break
            grid = wider
        trials += short
        for method in study.methods:
            key = f"{workload}/{method}" if each else method
            if method in best:
                rates[key] = _agreed(study, method, known, best)
            # While runs are missing, nothing is known of a method without a rate.
            if best.get(method) not in grid[1:-1] and (method in best or not missing):
                edges.append(key)
    return Tuned(tuple(trials), rates, tuple(edges))


def _trials(
    study: Study, tune: Tuning, workload: str, grid: Sequence[float], roots: Sequence[Path | None]
) -> list[Trial]:
    """Every method at every rate, on a share of the steps."""
    plans = {method: plan_of(study, workload, method) for method in study.methods}
    parent = Path(TUNING, safe_name(workload)) if tune.workload == EACH else Path(TUNING)
    trials = []
    for seed, rate, method in product(tune.seeds, grid, study.methods):
        plan = plans[method]
        every = plan.recipe.steps
        steps = max(round(every * tune.share), min(tune.least_steps, every))
        short = plan.with_settings(
            seed=seed, lr=rate, steps=steps, samples=0, evaluate_every=how_often(steps, tune.evaluations)
        )
        name = f"{rate:g}" if seed == tune.seeds[0] else f"{rate:g}-{seed}"
        trial = trial_of(workload, short, parent / safe_name(method) / name, roots)
        trials.append(replace(trial, scored=False))
    return trials


def _ends(study: Study, method: str, trials: Sequence[Trial], failed: Collection[Path]) -> dict[float, float]:
    """The mean log final loss by rate, of the rates at which no run failed, over the seeds that are there."""
    key = study.metric_of(method).key
    ends: dict[float, list[float]] = {}
    for trial in (trial for trial in trials if trial.recipe.method == method):
        outcome = trial.outcome()
        if outcome is not None:
            # A loss that is no lower than before the first step is a failure too.
            end, first = final(outcome, key), outcome.values(key)[0]
            ends.setdefault(trial.recipe.lr, []).append(math.log(end) if 0 < end < first else math.inf)
        elif trial.folders[0] in failed:
            ends.setdefault(trial.recipe.lr, []).append(math.inf)
    return {rate: sum(logs) / len(logs) for rate, logs in ends.items() if math.inf not in logs}


FAILS = 0.1
"""A rate fails if its loss is this share above the best one's: the run diverged and came back, or will."""


def _best(ends: dict[float, float], grid: Sequence[float], caution: float) -> float:
    """The rate of the lowest loss, or the one below if that is nearly as good and the one above fails."""
    best = min(ends, key=ends.__getitem__)
    place = grid.index(best)
    if not 0 < place < len(grid) - 1:
        return best
    below, above = (ends.get(grid[place + side], math.inf) - ends[best] for side in (-1, 1))
    return grid[place - 1] if above > math.log1p(FAILS) and below <= math.log1p(caution) else best


def _agreed(study: Study, method: str, ends: dict[str, dict[float, float]], best: dict[str, float]) -> float:
    """The rate of the method that this one is judged against, if it is as good here; else its own best one.

    Otherwise luck would decide between rates that are level, and the comparison would be one of rates.
    """
    assert study.tune is not None
    chain = [method]
    while (other := study.against_of(chain[-1], study.methods)) in best and other not in chain:
        chain.append(other)
    rate = best[chain.pop()]
    for one in reversed(chain):
        loss = ends[one].get(rate, math.inf) - min(ends[one].values())
        rate = rate if loss <= math.log1p(study.tune.tie) else best[one]
    return rate


def _widened(grid: tuple[float, ...], best: set[float]) -> tuple[float, ...]:
    """One more rate beyond each edge that is best for some method, at the distance of its neighbour."""
    below = (_round(grid[0] * grid[0] / grid[1]),) if grid[0] in best else ()
    above = (_round(grid[-1] * grid[-1] / grid[-2]),) if grid[-1] in best else ()
    return (*below, *grid, *above)


def _round(rate: float) -> float:
    return float(f"{rate:.6g}")
