"""k-diffusion's `sample_density`, and its weighting, from a pacer (Crowson; Karras et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import PerExample
from stepwell.integrations.callbacks import examples
from stepwell.pacer import Pace, Pacer
from stepwell.processes.edm import EdmProcess

_CALL = "sample_density(reals, device=device)"


class SampleDensity:
    """sample_density([n], device) -> sigma [n], as `make_sample_density` returns one.

    `weighting` is for `Denoiser.weighting`: the pacer's weighting and, at sigmas drawn last, its correction.
    """

    def __init__(self, pacer: Pacer) -> None:
        if not isinstance(pacer.process, EdmProcess):
            raise InvalidParameter(
                f"k-diffusion trains on sigma, and the Pacer was made for {pacer.process!r}: make it for "
                "stepwell.process('edm', sigma_min=..., sigma_max=..., sigma_data=...)."
            )
        self.pacer, self._process = pacer, pacer.process
        self._last: tuple[Tensor, Pace] | None = None
        self._given: PerExample | None = None

    def __call__(
        self,
        batch: Sequence[int] | Tensor,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
        condition: Any = None,
    ) -> PerExample:
        """Sigmas [n] for a batch: its shape [n], or itself if the sampler measures."""
        x0 = examples(self.pacer, batch, device, _CALL)
        pace = self.pacer.draw(x0, condition=condition)
        sigma = pace.sigma.to(x0.device if device is None else device, dtype)
        self._last, self._given = (sigma, pace), None
        return sigma

    def weighting(self, sigma: PerExample) -> PerExample:
        """[n]: the factor on Karras' loss of the network; other sigmas than those drawn last: uncorrected."""
        if (
            self._last is not None
            and sigma.shape == self._last[0].shape
            and torch.equal(sigma, self._last[0])
        ):
            self._given = self._last[1].weight.to(sigma)
            return self._given
        u = self._process.unit_time(sigma.log() / 4)
        return self.pacer.weighting(self._process, u).to(sigma)

    def observe(self, losses: PerExample) -> None:
        """What `Denoiser.loss` returned, for samplers that learn from losses: its weight is taken out."""
        plain = losses.detach()
        self.pacer.observe(plain if self._given is None else plain / self._given)
