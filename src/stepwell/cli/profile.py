"""The numbers behind `stepwell show`: one sampler, weighting and process, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.catalogue.spec import Spec
from stepwell.core.sampler import pmf


@dataclass(frozen=True)
class Profile:
    """Everything over [T]: one value per timestep, or per thousandth of continuous time."""

    parts: tuple[str, str, str]
    """Sampler, weighting and process, as they were asked for."""
    source: str
    learns: bool
    unbiased: bool
    timesteps: int | None
    u: Tensor
    density: Tensor
    """Relative to uniform."""
    effective: Tensor
    """The share of the objective's weight on the network's own loss, relative to uniform."""

    @property
    def title(self) -> str:
        """All three in one line."""
        return " · ".join(self.parts)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "title": self.title,
            "source": self.source,
            "learns": self.learns,
            "unbiased": self.unbiased,
            "timesteps": self.timesteps,
            "u": self.u.tolist(),
            "density": self.density.tolist(),
            "effective": self.effective.tolist(),
        }


def profile(sampler: Spec, weighting: Spec, process: Spec) -> Profile:
    """Build the three and read them over time."""
    over = build.process(process)
    chosen = build.sampler(sampler, over)
    weight = build.weighting(weighting)(over, over.grid())
    entry = sampler.entry
    u = over.grid()
    density = pmf(chosen, over) * len(u)
    # Corrected draws weigh as the reference does, whatever the density.
    drawn = density if chosen.reference is None else chosen.reference.pdf(u)
    effective = drawn * weight
    return Profile(
        parts=(_written(sampler), f"weighting {_written(weighting)}", _written(process)),
        source=f"{entry.summary} ({entry.source})",
        learns=entry.learns,
        unbiased=chosen.reference is not None,
        timesteps=over.timesteps,
        u=u,
        density=density,
        effective=effective / effective.mean().clamp(min=torch.finfo(effective.dtype).tiny),
    )


def _written(spec: Spec) -> str:
    inside = ", ".join(f"{key}={value}" for key, value in spec.parameters.items())
    return f"{spec.name}({inside})" if inside else spec.name
