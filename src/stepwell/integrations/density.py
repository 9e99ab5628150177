"""A pacer as diffusers' `compute_density_for_timestep_sampling`, for SD3, Flux and similar scripts.

Those scripts turn its u into positions in `scheduler.timesteps`, which fall: their 0 is noise, ours is data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.integrations.shared import as_examples, require_no_probe, require_pacer
from stepwell.pacer import CallOrderError, Pace, Pacer

_CALL = "pace = pacer.draw(model_input) and indices = pace.indices"


class HostDensity:
    """Called as diffusers' function is; `pace` has the draw of the last call in our units."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._pace: Pace | None = None

    @property
    def pace(self) -> Pace:
        """The pace of the last call: `pace.weight` is for the losses."""
        if self._pace is None:
            raise CallOrderError("nothing was drawn yet: call the function before you read its pace.")
        return self._pace

    def __call__(
        self,
        weighting_scheme: str,
        batch_size: int,
        logit_mean: float | None = None,
        logit_std: float | None = None,
        mode_scale: float | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B] in [0, 1), 0 is noise. Only size and device are used: sampler and seed are the pacer's."""
        self._pace = self._pacer.draw(as_examples(self._pacer, batch_size, device, _CALL))
        count = self._pacer.process.timesteps
        if count is None:
            return (1 - self._pace.u).clamp(0, 1 - 2**-24)
        # The middle of the position: the host multiplies by T and rounds down.
        return (self._pace.indices + 0.5) / count


def density_from(pacer: Pacer) -> HostDensity:
    """The replacement of `compute_density_for_timestep_sampling`."""
    require_no_probe(require_pacer(pacer, "density_from(pacer)"), _CALL)
    return HostDensity(pacer)
