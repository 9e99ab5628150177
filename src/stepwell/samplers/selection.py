"""Which few timesteps stand for all: those that explain the sum of the queue's rows (Kim et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.lookup import precise
from stepwell.core.random import uniforms

METHODS = ("f", "forward", "random", "grid")
_ROUNDING = 1e-12
"""A column whose centred part is smaller than this, relative to itself, does not vary."""


def select(rows: Tensor, y: Tensor, count: int, method: str, key: int = 0) -> Tensor:
    """The indices [count], rising, of the columns of rows [n, G] that stand for y [n].

    f: the largest univariate F statistics (the paper); forward: greedily, by what is left to explain;
    random: a function of `key`; grid: evenly spaced. The last two look at nothing: controls.
    """
    require.one_of("selection", method, METHODS)
    columns = rows.shape[1]
    if not 0 < count <= columns:
        raise InvalidParameter(f"{count} of {columns} columns cannot be selected.")
    if method == "grid":
        chosen = spaced(count, columns, rows.device)
    elif method == "random":
        chosen = uniforms(key, columns, rows.device).argsort()[:count]
    elif method == "forward":
        chosen = _forward(rows, y, count)
    else:
        # Stable, and the last of equals: as scikit-learn's SelectKBest decides them.
        chosen = f_statistic(rows, y).argsort(stable=True)[-count:]
    return chosen.sort().values


def spaced(count: int, total: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` indices [count] in the middles of equal parts of range(total)."""
    return (2 * torch.arange(count, device=device) + 1) * total // (2 * count)


def f_statistic(rows: Tensor, y: Tensor) -> Tensor:
    """F [G] of the regression of y [n] on each column of rows [n, G] alone: r^2 / (1 - r^2) (n - 2).

    A column that does not vary has 0, one that fits perfectly the largest number there is.
    """
    x, z = _centred(rows), _centred(y)
    both = x.square().sum(0) * z.square().sum()
    squared = ((x * z[:, None]).sum(0).square() / both.clamp(min=torch.finfo(both.dtype).tiny)).clamp(max=1)
    f = squared / (1 - squared) * (len(y) - 2)
    return f.nan_to_num(0.0)


def explained(rows: Tensor, y: Tensor, chosen: Tensor) -> Tensor:
    """R^2 of the regression of y [n] on the columns [S] of rows [n, G] together."""
    x, z = _centred(rows), _centred(y)
    total = z.square().sum()
    for index in chosen:
        x, z = _without(x, z, index)
    return 1 - z.square().sum() / total.clamp(min=torch.finfo(total.dtype).tiny)


def _forward(rows: Tensor, y: Tensor, count: int) -> Tensor:
    """Each time the column that leaves the smallest residual of y beside those chosen before."""
    x, z = _centred(rows), _centred(y)
    left = torch.zeros_like(x[0], dtype=torch.bool)
    chosen: list[Tensor] = []
    for _ in range(count):
        norms = x.square().sum(0)
        gain = (x * z[:, None]).sum(0).square() / norms.clamp(min=torch.finfo(norms.dtype).tiny)
        best = torch.where(left, -1.0, gain).argmax()
        left = left.index_fill(0, best, True)
        chosen.append(best)
        x, z = _without(x, z, best)
    return torch.stack(chosen)


def _without(x: Tensor, z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Columns [n, G] and target [n] with the direction of one column taken out (Gram-Schmidt)."""
    direction = x.index_select(1, index.reshape(1))[:, 0]
    unit = direction / direction.norm().clamp(min=torch.finfo(x.dtype).tiny)
    rest = x - unit[:, None] * (unit @ x)
    # What rounding leaves of a column that is in the span of the others is no column.
    rest = torch.where(rest.square().sum(0) > _ROUNDING * x.square().sum(0), rest, 0.0)
    return rest, z - unit * (unit @ z)


def _centred(values: Tensor) -> Tensor:
    """Columns minus their means, in float64 if the device has it; exactly 0 where only rounding is left."""
    exact = values.to(precise(values)).nan_to_num(0.0, 0.0, 0.0)
    centred = exact - exact.mean(0)
    varies = centred.square().sum(0) > _ROUNDING**2 * exact.square().sum(0)
    return torch.where(varies, centred, 0.0)
