"""Rows of decreases: how much each update of a training lowered the loss at every timestep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from stepwell.analyze.estimates import FEWEST, Estimate, jackknife
from stepwell.catalogue import build
from stepwell.core import require
from stepwell.core.errors import InvalidParameter, NonFiniteLoss, Unsupported
from stepwell.core.probe import DecreaseSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import Alone
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick, stream_key
from stepwell.data.batches import Batches
from stepwell.data.source import ExampleSource
from stepwell.probes.context import ProbeContext, ProbeSetup
from stepwell.probes.decrease import Decrease
from stepwell.samplers.beta_policy.decrease import METHODS, select, spaced
from stepwell.train.step import Training, train_step

Progress = Callable[[int, int], None]
"""(updates measured, of how many)."""


def _unseen(done: int, total: int) -> None:
    return


@dataclass(frozen=True)
class Measured:
    """What to measure at an update."""

    target: str = "vlb"
    """The weighting of the losses: the bound, with c_t capped as the samplers cap it, by default."""
    times: int | None = None
    """How many evenly spaced timesteps; None: all of them."""
    batch: int = 64
    """How many of them a call of the network takes."""

    def grid(self, process: NoiseProcess) -> Tensor:
        """The unit times [G]."""
        every = process.grid()
        if self.times is None:
            return every
        return every[spaced(min(require.count("grid", self.times, least=2), len(every)), len(every))]


def require_target(process: NoiseProcess, target: str) -> None:
    """An error if a process does not have the losses of a target."""
    try:
        build.weighting(target)(process, process.grid()[:1])
    except Unsupported as error:
        raise Unsupported(f"{error} Measure another target: --target simple, say.") from None


def decreases(
    training: Training,
    source: ExampleSource,
    steps: range,
    measured: Measured,
    progress: Progress = _unseen,
) -> Tensor:
    """Before minus after of one example's losses at all times [N, G], over every update of `steps`.

    The example is another one in each update, and its noise is the same before and after, with dropout off
    (Kim et al. 2025, Algorithm 2). It trains: `training` moves on by as many steps.
    """
    process = training.objective.process
    require_target(process, measured.target)
    grid = tuple(measured.grid(process).tolist())
    spec = DecreaseSpec(1, measured.target, subset=grid[:1], grid=grid)
    probe = Decrease()
    rows: list[Tensor] = []
    # A network that was loaded to be looked at may have its dropout off.
    training.network.train()
    views = _views(training, source, measured.batch)

    def after(step: int) -> None:
        signal = probe.after(views(step), spec)
        assert signal is not None, "`before` was called for the same update"
        rows.append(signal.row.double().cpu())

    # torch's own hooks: they fire once per real update, and the step itself stays as it is.
    optimizer = getattr(training.optimizer, "optimizer", training.optimizer)
    for done, step in enumerate(steps):
        hooks = (
            optimizer.register_step_pre_hook(lambda *_, at=step: probe.before(views(at), spec)),
            optimizer.register_step_post_hook(lambda *_, at=step: after(at)),
        )
        try:
            train_step(training, step)
        finally:
            for hook in hooks:
                hook.remove()
        progress(done + 1, len(steps))
    return _finite(rows, steps)


def _views(training: Training, source: ExampleSource, batch: int) -> Callable[[int], ProbeContext]:
    """What the probe sees at a step: fresh examples, whatever is trained on."""
    network, seed = training.network, stream_key(training.seed, "approximation")
    batches = Batches(source, batch, seed)

    def loss_at(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        return training.objective(network, x0, noise, u, condition).plain

    setup = ProbeSetup(
        training.objective.process,
        training.objective.weighting,
        loss_at,
        training.optimizer,
        network,
        build.weighting,
    )

    @lru_cache(maxsize=1)
    def view(step: int) -> ProbeContext:
        tick = Tick(seed, step)
        return ProbeContext(tick, *training.encode(batches.at(tick)), Alone(), setup)

    return view


def _finite(rows: list[Tensor], steps: range) -> Tensor:
    """The rows [N, G] of all updates that there were (a skipped one of fp16 has none)."""
    for step, row in zip(steps, rows, strict=False):
        if not bool(row.isfinite().all()):
            raise NonFiniteLoss(f"the losses around step {step} are not finite: there is nothing to compare.")
    return torch.stack(rows)


SELECTIONS = (*METHODS, "loudest")
"""Those that samplers know, and a control: the columns that vary most, whose noise is most of the sum's."""
_RANDOM_DRAWS = 8
"""Subsets that stand for `random` in every repeat: one would mostly show its own luck."""


@dataclass(frozen=True)
class Split:
    """Which rows choose and which score: in every repeat `queue` rows choose, and the next `scored` score.

    The rows that score in one repeat choose in the next, as in the method's own queue; never in the same.
    """

    queue: int = 20
    """Kim et al.'s |Q|."""
    scored: int = 20
    repeats: int = 5

    def __post_init__(self) -> None:
        require.count("queue", self.queue, least=3)
        require.count("scored", self.scored, least=3)
        require.count("repeats", self.repeats, least=FEWEST)

    @property
    def rows(self) -> int:
        """How many rows there must be."""
        return self.queue + self.repeats * self.scored

    def parts(self, repeat: int) -> tuple[slice, slice]:
        """The rows that choose and those that score."""
        end = self.queue + repeat * self.scored
        return slice(end - self.queue, end), slice(end, end + self.scored)


@dataclass(frozen=True)
class Fit:
    """How well `size` timesteps of one selection tell y on rows that did not choose them."""

    selection: str
    size: int
    correlation: Estimate
    """Of the subset's mean with y: what counts where rewards are standardised."""
    r2: Estimate
    """Of the subset's mean as it stands, scaled to all timesteps; below 0 it is worse than a constant."""
    fitted_r2: Estimate | None
    """Of a regression on the subset, fitted where it was chosen; None if that had too few rows."""
    same_sign: Estimate
    """The share of rows where the subset's mean and y have the same sign."""
    chosen: tuple[tuple[float, ...], ...]
    """[repeats][size]: the unit times of S; the first of the random ones."""


@dataclass(frozen=True)
class Approximation:
    """All selections at all sizes."""

    times: tuple[float, ...]
    """[G]: the unit times that a row has."""
    split: Split
    target: str
    helped: float
    """The share of updates that lowered the target at all."""
    fits: tuple[Fit, ...]

    def of(self, selection: str, size: int) -> Fit:
        """One cell of the table."""
        return next(fit for fit in self.fits if (fit.selection, fit.size) == (selection, size))

    @property
    def sizes(self) -> tuple[int, ...]:
        """All |S|."""
        return tuple(fit.size for fit in self.fits if fit.selection == SELECTIONS[0])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def approximation(
    rows: Tensor, y: Tensor, times: Tensor, split: Split, largest: int = 20, target: str = "vlb"
) -> Approximation:
    """Score subsets of 1 to `largest` columns of rows [N, G], at unit times [G], as stand-ins for y [N]."""
    if len(rows) < split.rows:
        raise InvalidParameter(
            f"{split.repeats} repeats of {split.scored} rows after a queue of {split.queue} need "
            f"{split.rows} rows, and there are {len(rows)}: measure more, or take fewer repeats."
        )
    columns = rows.shape[1]
    if not 0 < largest <= columns:
        raise InvalidParameter(f"subsets of up to {largest} of {columns} timesteps: give 1 to {columns}.")
    fits = [
        _fit(_Rows(rows.double(), y.double(), times.tolist(), split), selection, size)
        for selection in SELECTIONS
        for size in range(1, largest + 1)
    ]
    return Approximation(tuple(times.tolist()), split, target, float((y > 0).double().mean()), tuple(fits))


@dataclass(frozen=True)
class _Rows:
    """What all cells are made of."""

    rows: Tensor
    y: Tensor
    times: list[float]
    split: Split


def _fit(given: _Rows, selection: str, size: int) -> Fit:
    """One cell; its intervals are a jackknife over repeats, in each of which S was chosen anew."""
    split = given.split
    repeats = [_repeat(given, selection, size, number) for number in range(split.repeats)]
    found = torch.stack([sums for sums, _ in repeats])

    def statistic(chosen: Tensor) -> Tensor:
        correlation, error, fitted_error, total, same = found[chosen].mean(0)
        return torch.stack([correlation, 1 - error / total, 1 - fitted_error / total, same])

    correlation, r2, fitted, same = jackknife(statistic, split.repeats)
    least = float("-inf")
    return Fit(
        selection=selection,
        size=size,
        correlation=correlation.within(-1, 1),
        r2=r2.within(least, 1),
        fitted_r2=fitted.within(least, 1) if size + 2 <= split.queue else None,
        same_sign=same.within(0, 1),
        chosen=tuple(tuple(given.times[index] for index in chosen.tolist()) for _, chosen in repeats),
    )


def _repeat(given: _Rows, selection: str, size: int, repeat: int) -> tuple[Tensor, Tensor]:
    """The sums [5] of one repeat, a mean over several subsets if they are random, and the first S [size]."""
    rows, y = given.rows, given.y
    chooses, scores = given.split.parts(repeat)
    subsets = [
        _chosen(rows[chooses], y[chooses], size, selection, stream_key("approximation", repeat, draw))
        for draw in range(_RANDOM_DRAWS if selection == "random" else 1)
    ]
    found = []
    for chosen in subsets:
        picked = rows[:, chosen]
        predicted = _regression(picked[chooses], y[chooses], picked[scores])
        found.append(_sums(picked[scores].mean(1), rows.shape[1], predicted, y[scores]))
    return torch.stack(found).mean(0), subsets[0]


def _chosen(rows: Tensor, y: Tensor, size: int, selection: str, key: int) -> Tensor:
    """The indices [size], rising, of the columns of rows [n, G] that stand for y [n]."""
    if selection == "loudest":
        return rows.var(0).argsort(stable=True)[-size:].sort().values
    return select(rows, y, size, selection, key)


def _sums(mean: Tensor, columns: int, predicted: Tensor, y: Tensor) -> Tensor:
    """[5]: correlation, squared error of mean and of regression, y's own, and the share of equal signs."""
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
    """Least squares of y [n] on x [n, S] with a constant, at later rows [m, S]: [m]."""
    middle, level = x.mean(0), y.mean()
    # Columns that are copies of each other have no unique factors: the driver takes the shortest.
    factors: Tensor = torch.linalg.lstsq(x - middle, (y - level)[:, None], driver="gelsd").solution
    return ((later - middle) @ factors)[:, 0] + level
