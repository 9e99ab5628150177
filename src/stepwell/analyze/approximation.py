"""How well a few timesteps stand for all (Kim et al. 2025, Fig. 7): chosen on some updates, scored on later.

A row is what one update took off the loss of one example at every timestep, and y its sum. The paper pays its
policy the mean over a subset S of three; this asks how much of y that mean, or a regression on S, tells.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.analyze.gradients import FEWEST, Estimate, jackknife
from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.tick import stream_key
from stepwell.samplers.beta_policy.rewards import METHODS, select

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
