"""A pacer as k-diffusion's `sample_density`, and its weighting (Crowson; Karras et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import PerExample
from stepwell.integrations.shared import as_examples, require_pacer
from stepwell.pacer import Pace, Pacer
from stepwell.processes.edm import EdmProcess


class SampleDensity:
    """sample_density([n], device) -> sigma [n], as `make_sample_density` returns one.

    `weighting` is for `Denoiser.weighting`: the pacer's weighting and, at sigmas drawn last, its correction.
    """

    def __init__(self, pacer: Pacer) -> None:
        process = require_pacer(pacer, "SampleDensity(pacer)").process
        if not isinstance(process, EdmProcess):
            raise InvalidParameter(
                f"k-diffusion trains on sigma, and the Pacer was made for {process}: make it for "
                "stepwell.process('edm', sigma_min=..., sigma_max=..., sigma_data=...)."
            )
        self.pacer, self._process = pacer, process
        self._last: tuple[Tensor, Pace] | None = None
        self._applied: PerExample | None = None

    def __call__(
        self,
        batch: Sequence[int] | Tensor,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
        condition: Any = None,
    ) -> PerExample:
        """Sigmas [n] for a batch: its shape [n], or the examples themselves if the sampler measures."""
        x0 = as_examples(self.pacer, batch, device, "sample_density(reals, device=device)")
        pace = self.pacer.draw(x0, condition=condition)
        sigma = pace.sigma.to(x0.device if device is None else device, dtype)
        self._last, self._applied = (sigma, pace), None
        return sigma

    def weighting(self, sigma: PerExample) -> PerExample:
        """[n]: the factor on Karras' loss of the network; corrected only at the sigmas drawn last."""
        if self._last is not None:
            drawn, pace = self._last
            if sigma.shape == drawn.shape and torch.equal(sigma, drawn):
                self._applied = pace.weight.to(sigma)
                return self._applied
        u = self._process.unit_time(sigma.log() / 4)
        return self.pacer.weighting(self._process, u).to(sigma)

    def observe(self, losses: PerExample) -> None:
        """The result [n] of `Denoiser.loss`, for samplers that learn from losses: its weight is taken out."""
        plain = losses.detach()
        self.pacer.observe(plain if self._applied is None else plain / self._applied)
