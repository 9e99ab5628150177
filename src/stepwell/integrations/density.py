"""A pacer as diffusers' `compute_density_for_timestep_sampling`, for SD3, Flux and the scripts after them.

Those scripts turn its u into places in `scheduler.timesteps`, which fall: their 0 is noise, ours is data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.pacer import OutOfTurn, Pace, Pacer


class HostDensity:
    """Called as diffusers' function is; what the call means in our terms stays in `pace`."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._pace: Pace | None = None

    @property
    def pace(self) -> Pace:
        """Of the last call: `pace.weight` is for the losses."""
        if self._pace is None:
            raise OutOfTurn("no timesteps were asked for yet: call the function before you read its pace.")
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
        """[B] in [0, 1), 0 is noise. The pacer has its sampler and seed: only size and device are read."""
        # Without a width: a sampler that does look at examples fails here instead of drawing from nothing.
        self._pace = self._pacer.draw(torch.empty(batch_size, 0, device=device))
        count = self._pacer.process.timesteps
        if count is None:
            return (1 - self._pace.u).clamp(0, 1 - 2**-24)
        # The middle of the place: the host multiplies by T and rounds down.
        return (self._pace.indices + 0.5) / count


def density_from(pacer: Pacer) -> HostDensity:
    """The function that takes the place of `compute_density_for_timestep_sampling`."""
    if not isinstance(pacer, Pacer):
        raise InvalidParameter(
            f"density_from needs a Pacer, not {type(pacer).__name__}: write density_from(stepwell.Pacer("
            "'logit-normal', noise_scheduler).attach(optimizer))."
        )
    if pacer.sampler.probe is not None:
        raise Unsupported(
            f"{pacer.sampler!r} measures on the examples, and this function is told how many there are, no "
            "more: write pace = pacer.draw(model_input) in its place, and indices = pace.indices."
        )
    return HostDensity(pacer)
