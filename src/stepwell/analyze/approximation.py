"""How well a few timesteps stand for all (Kim et al. 2025, Algorithm 2), chosen and scored on other updates.

A row is the decrease of one example's loss at every timestep after one update, and y its sum. The paper
rewards its policy with the mean over a subset S of three timesteps; this measures how much of y that mean, or
a regression on S, explains. The paper's Fig. 7 is another thing, FID against time: `stepwell compare fig7`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from stepwell.analyze.gradient_rounds import Progress, no_progress, probe_setup
from stepwell.catalogue import build
from stepwell.core import require
from stepwell.core.errors import InvalidParameter, NonFiniteLoss, Unsupported
from stepwell.core.estimates import MIN_ROUNDS, Estimate, jackknife
from stepwell.core.probe import DecreaseSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import Alone
from stepwell.core.tick import Tick, stream_key
from stepwell.data.batches import Batches
from stepwell.data.source import ExampleSource
from stepwell.probes.context import ProbeContext
from stepwell.probes.decrease import Decrease
from stepwell.samplers.beta_policy.decrease import METHODS, select, spaced
from stepwell.train.step import Training, train_step

SELECTIONS = (*METHODS, "variance")
"""The samplers' selections, and a control: the timesteps whose decrease varies most, whatever y does."""
_RANDOM_SUBSETS = 8
"""Subsets that are averaged for `random` in every repeat."""


@dataclass(frozen=True)
class Measured:
    """What to measure at an update."""

    target: str = "vlb"
    """The weighting of the losses; vlb is capped as in the samplers."""
    times: int | None = None
    """How many evenly spaced timesteps; None: all of them."""
    batch: int = 64
    """How many of them go through the network at once."""

    def grid(self, process: NoiseProcess) -> Tensor:
        """The measured unit times [G]."""
        every = process.grid()
        if self.times is None:
            return every
        return every[spaced(min(require.count("grid", self.times, least=2), len(every)), len(every))]


def require_target(process: NoiseProcess, target: str) -> None:
    """Raise Unsupported if a process does not support the target's weighting."""
    try:
        build.fixed_weighting(target)(process, process.grid()[:1])
    except Unsupported as error:
        raise Unsupported(f"{error} Choose another target, such as --target simple.") from None


def decreases(
    training: Training,
    source: ExampleSource,
    steps: range,
    measured: Measured,
    progress: Progress = no_progress,
) -> Tensor:
    """Train for `steps`; return the decrease of one example's loss at all times in every update [N, G].

    Each update has a new example, with the same noise before and after and dropout off (Kim et al. 2025,
    Algorithm 2).
    """
    process = training.objective.process
    require_target(process, measured.target)
    grid = tuple(measured.grid(process).tolist())
    spec = DecreaseSpec(1, measured.target, subset=grid[:1], grid=grid)
    probe = Decrease()
    rows: list[Tensor] = []
    # A loaded network may be in eval mode.
    training.network.train()
    setup, seed = probe_setup(training), stream_key(training.seed, "approximation")
    batches = Batches(source, measured.batch, seed)

    @lru_cache(maxsize=1)
    def context(step: int) -> ProbeContext:
        tick = Tick(seed, step)
        return ProbeContext(tick, *training.encode(batches.at(tick)), Alone(), setup)

    def after(step: int) -> None:
        signal = probe.after(context(step), spec)
        assert signal is not None, "`before` was called for the same update"
        rows.append(signal.row.double().cpu())
        if not bool(rows[-1].isfinite().all()):
            raise NonFiniteLoss(f"the losses around step {step} are not finite.")

    # torch's own hooks fire once per update; a skipped fp16 step has no row.
    optimizer = getattr(training.optimizer, "optimizer", training.optimizer)
    for done, step in enumerate(steps):
        hooks = (
            optimizer.register_step_pre_hook(lambda *_, at=step: probe.before(context(at), spec)),
            optimizer.register_step_post_hook(lambda *_, at=step: after(at)),
        )
        try:
            train_step(training, step)
        finally:
            for hook in hooks:
                hook.remove()
        progress(done + 1, len(steps))
    return torch.stack(rows)


@dataclass(frozen=True)
class Split:
    """In every repeat S is chosen on `queue` rows and scored on the next `scored` rows.

    Rows that score in one repeat choose in the next, as in the method's own queue.
    """

    queue: int = 20
    """Kim et al.'s |Q|."""
    scored: int = 20
    repeats: int = 5

    def __post_init__(self) -> None:
        require.count("queue", self.queue, least=3, most=require.MOST_BINS)
        require.count("scored", self.scored, least=3, most=require.MOST_BINS)
        require.count("repeats", self.repeats, least=MIN_ROUNDS, most=require.MOST_STRATA)

    @property
    def rows(self) -> int:
        """How many rows are needed."""
        return self.queue + self.repeats * self.scored

    def parts(self, repeat: int) -> tuple[slice, slice]:
        """The rows to choose on, and the rows to score on."""
        end = self.queue + repeat * self.scored
        return slice(end - self.queue, end), slice(end, end + self.scored)


@dataclass(frozen=True)
class Fit:
    """How well `size` timesteps of one selection predict y on rows they were not chosen on."""

    selection: str
    size: int
    correlation: Estimate
    """Between the subset's mean and y; all that matters where rewards are standardised."""
    r2: Estimate
    """For the subset's mean times the number of timesteps; below 0 it is worse than a constant."""
    fitted_r2: Estimate | None
    """For a regression on the subset, fitted where it was chosen; None with too few rows."""
    same_sign: Estimate
    """The share of rows where the subset's mean and y have the same sign."""
    chosen: tuple[tuple[float, ...], ...]
    """[repeats][size]: the unit times of S (for `random`, of the first S)."""


@dataclass(frozen=True)
class Approximation:
    """All selections at all sizes."""

    times: tuple[float, ...]
    """[G]: the unit times of a row."""
    split: Split
    target: str
    helped: float
    """The share of updates that lowered the target."""
    fits: tuple[Fit, ...]

    def of(self, selection: str, size: int) -> Fit:
        """One cell of the table."""
        return next(fit for fit in self.fits if (fit.selection, fit.size) == (selection, size))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of S."""
        return tuple(fit.size for fit in self.fits if fit.selection == SELECTIONS[0])


def approximation(
    rows: Tensor, y: Tensor, times: Tensor, split: Split, largest: int = 20, target: str = "vlb"
) -> Approximation:
    """Score subsets of 1 to `largest` columns of rows [N, G], at unit times [G], to approximate y [N]."""
    if len(rows) < split.rows:
        raise InvalidParameter(
            f"{split.repeats} repeats of {split.scored} rows after a queue of {split.queue} need "
            f"{split.rows} rows, and there are {len(rows)}: measure more, or take fewer repeats."
        )
    columns = rows.shape[1]
    if not 0 < largest <= columns:
        raise InvalidParameter(f"subsets of up to {largest} of {columns} timesteps: give 1 to {columns}.")
    data = _Rows(rows.double(), y.double(), times.tolist(), split)
    fits = [_fit(data, selection, size) for selection in SELECTIONS for size in range(1, largest + 1)]
    return Approximation(tuple(data.times), split, target, float((y > 0).double().mean()), tuple(fits))


@dataclass(frozen=True)
class _Rows:
    rows: Tensor
    y: Tensor
    times: list[float]
    split: Split


def _fit(data: _Rows, selection: str, size: int) -> Fit:
    """One cell of the table, with jackknife intervals over the repeats."""
    split = data.split
    repeats = [_repeat(data, selection, size, number) for number in range(split.repeats)]
    scores = torch.stack([row for row, _ in repeats])

    def statistic(chosen: Tensor) -> Tensor:
        correlation, error, fitted_error, total, same = scores[chosen].mean(0)
        return torch.stack([correlation, 1 - error / total, 1 - fitted_error / total, same])

    correlation, r2, fitted, same = jackknife(statistic, split.repeats)
    least = float("-inf")
    return Fit(
        selection=selection,
        size=size,
        correlation=correlation.clamped(-1, 1),
        r2=r2.clamped(least, 1),
        fitted_r2=fitted.clamped(least, 1) if size + 2 <= split.queue else None,
        same_sign=same.clamped(0, 1),
        chosen=tuple(tuple(data.times[index] for index in chosen.tolist()) for _, chosen in repeats),
    )


def _repeat(data: _Rows, selection: str, size: int, repeat: int) -> tuple[Tensor, Tensor]:
    """The scores [5] of one repeat (averaged over subsets for `random`), and the first S [size]."""
    rows, y = data.rows, data.y
    earlier, later = data.split.parts(repeat)
    subsets = [
        _choose(rows[earlier], y[earlier], size, selection, stream_key("approximation", repeat, number))
        for number in range(_RANDOM_SUBSETS if selection == "random" else 1)
    ]
    scores = []
    for subset in subsets:
        picked = rows[:, subset]
        predicted = _regression(picked[earlier], y[earlier], picked[later])
        scores.append(_scores(picked[later].mean(1), rows.shape[1], predicted, y[later]))
    return torch.stack(scores).mean(0), subsets[0]


def _choose(rows: Tensor, y: Tensor, size: int, selection: str, key: int) -> Tensor:
    """The sorted indices [size] of the columns of rows [n, G] chosen to approximate y [n]."""
    if selection == "variance":
        return rows.var(0).argsort(stable=True)[-size:].sort().values
    return select(rows, y, size, selection, key)


def _scores(mean: Tensor, columns: int, predicted: Tensor, y: Tensor) -> Tensor:
    """[5]: correlation, squared errors of mean and regression, y's own squares, share of equal signs."""
    x, z = mean - mean.mean(), y - y.mean()
    both = (x.square().sum() * z.square().sum()).sqrt()
    tiny = torch.finfo(y.dtype).tiny
    return torch.stack(
        [
            (x @ z) / both.clamp(min=tiny),
            (columns * mean - y).square().sum(),
            (predicted - y).square().sum(),
            z.square().sum().clamp(min=tiny),
            (mean.sign() == y.sign()).double().mean(),
        ]
    )


def _regression(x: Tensor, y: Tensor, later: Tensor) -> Tensor:
    """[m]: the prediction at `later` [m, S] of a least-squares fit of y [n] on x [n, S] with a constant."""
    middle, level = x.mean(0), y.mean()
    # gelsd takes the shortest solution where columns are equal.
    factors: Tensor = torch.linalg.lstsq(x - middle, (y - level)[:, None], driver="gelsd").solution
    return ((later - middle) @ factors)[:, 0] + level
