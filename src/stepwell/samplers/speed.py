"""SpeeD: fewer steps where the process has converged (Wang et al. 2024, "A Closer Look at Time Steps")."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Table, edges
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.increments import converges_from
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import Lookup, PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.one_density import Static

VERSIONS = ("current", "legacy", "lognorm")
_FLAT = 1e-4
"""The official threshold: the noise level changes by less than this per step (of a thousand)."""
_OFFICIAL_TAU = 700
"""The official border, in absolute timesteps."""


def speed(
    process: NoiseProcess,
    version: str = "current",
    tau: float | Literal["auto"] = 0.7,
    suppression: float = 5.0,
    dual: bool = True,
    as_published: bool = False,
) -> TimestepSampler:
    """SpeeD's asymmetric density: `suppression` times fewer draws where the process has converged.

    `version`: current (a step at `tau`), legacy (a step where the noise level stops changing; what Kim et
    al. compare with) or lognorm (the option of that name in SpeeD's code). `tau="auto"` takes the border
    from the process's increments: where about 1 % of the variance is signal. `dual` replaces t by |m - t|, by
    a coin per example; m is one past the first timestep at which the noise level hardly changes.

    `as_published` follows the official code where it differs: it pairs within the batch, and its
    thresholds count absolute timesteps, so they move with T; ours are shares of the process.
    """
    require.one_of("version", version, VERSIONS)
    require.positive("suppression", suppression)
    if as_published and process.timesteps is None:
        raise Unsupported(f"speed as published counts discrete timesteps, and {process} is continuous.")
    level = _noise_level(process)
    if version == "lognorm":
        return Static(Table(edges(len(level)), _lognorm(level)), "speed(version=lognorm)")
    per_step = _FLAT if as_published else _FLAT * 1000 / len(level)
    (slope,) = torch.gradient(level)
    if version == "legacy":
        # 2.5 where the noise level still changes, 0.5 where it does not.
        masses = torch.tanh(1e6 * (slope - per_step) * (_FLAT / per_step)) + 1.5
    else:
        border = _border(process, tau, as_published)
        masses = 1 + (suppression - 1) * (process.grid() < border).double()
    label = (
        f"speed(version={version}, tau={tau}, suppression={suppression:g}, dual={dual}, "
        f"as_published={as_published})"
    )
    direct = Table(edges(len(level)), masses)
    if not dual:
        return Static(direct, label)
    mirror = _mirror(len(level), _first_flat(slope, per_step))
    if as_published:
        return PairedInBatch(direct, mirror, label)
    mixed = 0.5 * direct.shares + 0.5 * _mirrored(direct, mirror)
    return Static(Table(edges(len(level)), mixed), label)


def _noise_level(process: NoiseProcess) -> Tensor:
    """sqrt(1 - abar) for DDPM, and the same share of the noise for any process: [T]."""
    level = torch.sigmoid(-process.log_snr(process.grid())).sqrt()
    if len(level) < 2:
        raise Unsupported(f"speed compares neighbouring timesteps, and {process} has one.")
    return level


def _lognorm(level: Tensor) -> Tensor:
    odds = level / (1 - level)
    masses = odds * torch.exp(-0.5 * torch.log(odds) ** 2) / (level * (1 - level))
    return torch.nan_to_num(masses, nan=0.0, posinf=0.0)


def _border(process: NoiseProcess, tau: float | Literal["auto"], as_published: bool) -> float:
    if tau == "auto":
        return converges_from(process)
    if as_published and process.timesteps is not None:
        if process.timesteps <= _OFFICIAL_TAU:
            raise Unsupported(
                f"speed as published puts its border at timestep {_OFFICIAL_TAU}, and the process has "
                f"{process.timesteps}: leave out as_published for a border at a share of the process."
            )
        return _OFFICIAL_TAU / process.timesteps
    return require.between("tau", tau, 0, 1)


def _first_flat(slope: Tensor, per_step: float) -> int:
    """One past the first timestep whose noise level hardly changes; T if none does."""
    flat = slope < per_step
    # The official argmax answers 0 where no step is flat, which would pair nothing.
    return int(flat.int().argmax()) + 1 if bool(flat.any()) else len(slope)


def _mirror(count: int, middle: int) -> Tensor:
    """The partner [T] of each timestep: |m - t|, inside the process."""
    return (middle - torch.arange(count)).abs().clamp(max=count - 1)


def _mirrored(direct: Table, mirror: Tensor) -> Tensor:
    return torch.zeros_like(direct.shares).index_add_(0, mirror, direct.shares)


class PairedInBatch(TimestepSampler):
    """The official pairing: n // 2 + 1 draws, then their partners, cut to the batch."""

    def __init__(self, direct: Table, mirror: Tensor, label: str) -> None:
        self._direct, self._mirror, self._label = direct, Lookup(mirror), label
        self._partners = Table(direct.borders, _mirrored(direct, mirror))

    def __repr__(self) -> str:
        return self._label

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        first = self._direct.quantile(v[: len(v) // 2 + 1])
        count = len(self._mirror.values)
        step = (first * count).floor().clamp(0, count - 1)
        partner = self._mirror.at(step.long(), v.dtype)
        u = torch.cat([first, (partner + (first * count - step).clamp(0, 0.999)) / count])[: len(v)]
        return Draw(u, self.density(u, x0).log(), torch.ones_like(u))

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.lerp(self._partners.pdf(u), self._direct.pdf(u), self._direct_share(x0))

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.lerp(self._partners.cdf(u), self._direct.cdf(u), self._direct_share(x0))

    def _direct_share(self, x0: Tensor | None) -> float:
        """The share of a batch that is drawn directly: half for a large one."""
        return 0.5 if x0 is None or len(x0) == 0 else (len(x0) // 2 + 1) / len(x0)

    def learn(self, feedback: Feedback) -> Metrics:
        return {}

    def state_dict(self) -> State:
        return {"kind": self._label}

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self._label)
