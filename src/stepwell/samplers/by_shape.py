"""Samplers whose density follows the shape of the examples: large images are drawn with more noise.

A large image shows its content through more noise than a small one (Esser et al. 2024, Section 5.3.2). A
flow's shift by s = exp(mu) moves the logit of its time by mu, and trainers take mu from the count of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.density import Density, Moved, Shift, Table, Uniform
from stepwell.core.errors import InvalidParameter, StateMismatch, Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.log_snr import Normal
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.static import FINE_BINS, LogitNormal

Shape = tuple[int, ...]
"""Of one example, without the batch: (C, H, W), (C, F, H, W) of a video, (n, d) of a packed sequence."""
MEGAPIXEL: Shape = (16, 128, 128)
"""The latent of an image of 1024 x 1024 pixels, in FLUX's and Qwen-Image's autoencoders."""
BASES = ("logit-normal", "uniform")


def resolution_shift(
    process: NoiseProcess,
    low: Sequence[float] = (256, 0.5),
    high: Sequence[float] = (4096, 1.15),
    patch: int = 2,
    base: str = "logit-normal",
    std: float = 1.0,
    shape: Sequence[int] = MEGAPIXEL,
) -> TimestepSampler:
    """A density shifted by exp(mu), mu on the line through (tokens, mu) at `low` and `high` (FLUX.1)."""
    require_flow(process, "a resolution shift")
    patch = require.count("patch", patch)
    (few, at_few), (many, at_many) = _point("low", low), _point("high", high)
    if few == many:
        raise InvalidParameter(f"low={low!r} and high={high!r} must be of different counts of tokens.")
    require.one_of("base", base, BASES)
    require.positive("std", std)
    if base == "uniform" and std != 1:
        raise InvalidParameter(f"std={std:g} is the width of a logit-normal, and base=uniform has none.")

    def density_of(one: Shape) -> Density:
        mu = at_few + (at_many - at_few) / (many - few) * (tokens(one, patch) - few)
        return LogitNormal(Normal(mu, std)) if base == "logit-normal" else Moved(Uniform(), Shift(_exp(mu)))

    line = f"({few:g}, {at_few:g}) to ({many:g}, {at_many:g})"
    label = f"resolution-shift({line}, patch={patch}, base={base}, std={std:g})"
    return ByShape(density_of, shape, label)


def dimension_shift(
    process: NoiseProcess, dimension: int = 4096, std: float = 1.0, shape: Sequence[int] = (768, 16, 16)
) -> TimestepSampler:
    """Logit-normal shifted by the root of (numbers in an example / `dimension`) (Zheng et al. 2025, RAE)."""
    require_flow(process, "dimension-shift")
    dimension = require.count("dimension", dimension)
    normal = Normal(0.0, std)

    def density_of(one: Shape) -> Density:
        return LogitNormal(Normal(math.log(math.prod(one) / dimension) / 2, normal.std))

    return ByShape(density_of, shape, f"dimension-shift(dimension={dimension}, std={std:g})")


LTX_PERCENTILES = (-2.5758, 3.0902)
"""Normal quantiles of 0.5 % and 99.9 %, to the digits of the published code."""
_LTX_LEAST = 1e-3


def ltx_2(
    process: NoiseProcess,
    std: float = 1.0,
    uniform_share: float = 0.1,
    shape: Sequence[int] = (128, 1, 32, 32),
) -> TimestepSampler:
    """LTX-2's logit-normal, its mean on a line of tokens, stretched over [0, 1] (Lightricks, its trainer).

    Draws between its percentiles 0.5 and 99.9 fill [0, 1]; those below 0.001 are reflected there and those
    above 1 are 1, which is the last bin here. Every token counts, also those of other frames.
    """
    require_flow(process, "ltx-2")
    require.positive("std", std)
    require.between("uniform_share", uniform_share, 0, 1)
    borders = torch.cat(
        [torch.zeros(1, dtype=torch.float64), torch.linspace(_LTX_LEAST, 1, FINE_BINS, dtype=torch.float64)]
    )

    def density_of(one: Shape) -> Density:
        normal = Normal(0.95 + 1.1 * (tokens(one, 1, frames=True) - 1024) / 3072, std)
        ends = torch.tensor([normal.mean + std * z for z in LTX_PERCENTILES], dtype=torch.float64)
        least, most = torch.sigmoid(ends)

        def below(stretched: Tensor) -> Tensor:
            return normal.cdf(torch.logit((least + stretched * (most - least)).clamp(0, 1)))

        mass = below(borders) - below(2 * _LTX_LEAST - borders)
        mass[0], mass[-1] = 0.0, 1.0
        uniform = ((borders - _LTX_LEAST) / (1 - _LTX_LEAST)).clamp(min=0)
        return Table(borders, torch.lerp(mass, uniform, uniform_share).diff())

    return ByShape(density_of, shape, f"ltx-2(std={std:g}, uniform_share={uniform_share:g})")


def tokens(shape: Shape, patch: int, frames: bool = False) -> int:
    """Tokens of an example: of an image or of one frame in squares of `patch`, or the n of (n, d).

    With `frames`, those of all frames of a video.
    """
    count = 0
    if len(shape) == 2:
        count = shape[0]
    elif len(shape) in (3, 4):
        count = (shape[-2] // patch) * (shape[-1] // patch)
        count *= shape[-3] if frames and len(shape) == 4 else 1
    if count < 1:
        raise InvalidParameter(
            f"examples of shape {shape} have no tokens in patches of {patch}: a shift by resolution needs "
            "images (C, H, W), videos (C, F, H, W) or packed sequences (n, d), without the batch."
        )
    return count


def require_flow(process: NoiseProcess, what: str) -> None:
    """Raise Unsupported unless the process is a flow that is not shifted yet."""
    if not process.interpolates:
        raise Unsupported(
            f"{what} is stated on a flow's share of noise, and {process} is no flow: use the process flow, "
            "or a density over log-SNR such as log-normal-sigma or style-friendly."
        )
    if process.shift != 1:
        raise Unsupported(
            f"{process} already shifts its timesteps by {process.shift:g}, and {what} would shift them "
            "again: build the process without its shift."
        )


class ByShape(TimestepSampler):
    """One density for all examples of a batch, by their shape.

    Without x0, `density` and `cdf` are those of the shape drawn last, and of `shape` before any draw.
    """

    def __init__(self, density_of: Callable[[Shape], Density], shape: Sequence[int], label: str) -> None:
        self._density_of, self._shape, self.label = density_of, _checked(shape), label
        self._known: dict[Shape, Density] = {}
        self._at(self._shape)

    def __repr__(self) -> str:
        return self.label

    def _at(self, shape: Shape) -> Density:
        # Trainers with aspect-ratio buckets have some dozens of shapes.
        if shape not in self._known:
            self._known[shape] = self._density_of(shape)
        return self._known[shape]

    def _of(self, x0: Tensor | None) -> Density:
        return self._at(self._shape if x0 is None else tuple(x0.shape[1:]))

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        u, density = self._of(x0).drawn(v)
        self._shape = tuple(x0.shape[1:])
        return Draw(u, density.log(), torch.ones_like(u))

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._of(x0).pdf(u)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._of(x0).cdf(u)

    def masses(self, borders: Tensor) -> Tensor:
        return self._of(None).masses(borders)

    def learn(self, feedback: Feedback) -> Metrics:
        return {}

    def state_dict(self) -> State:
        return {"kind": self.label, "shape": torch.tensor(self._shape)}

    def load_state_dict(self, state: State) -> None:
        shape = saved_state.tensor(require_kind(state, self.label), "shape", self, (None,))
        try:
            self._shape = _checked(shape.tolist())
        except InvalidParameter as error:
            raise StateMismatch(f"the state that was given to {self} is none of its own: {error}") from None


def _checked(shape: Sequence[int]) -> Shape:
    whole = isinstance(shape, Sequence) and all(type(size) is int and size > 0 for size in shape)
    if not whole or not shape:
        raise InvalidParameter(
            f"shape={shape!r} must be the sizes of one example, such as (16, 128, 128), without the batch."
        )
    return tuple(shape)


def _point(name: str, point: Sequence[float]) -> tuple[float, float]:
    if not isinstance(point, (tuple, list)) or len(point) != 2:
        raise InvalidParameter(f"{name} must be a pair (tokens, mu) such as (256, 0.5), not {point!r}.")
    return require.positive(name, point[0]), require.finite(name, point[1])


def _exp(mu: float) -> float:
    try:
        return math.exp(mu)
    except OverflowError:
        raise InvalidParameter(f"a shift by exp({mu:g}) is no number: the line is too steep.") from None
