"""NeMo Automodel's FlowMatchingPipeline: it draws sigma, the share of noise, once per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample, per_example
from stepwell.integrations.shared import require_flow
from stepwell.pacer import Pace, Pacer
from stepwell.weightings import Weighting

LATENTS = ("video_latents", "image_latents")
"""Where a batch has its examples; the first that is there is trained."""


def pace(pipeline: Any, pacer: Pacer) -> Pacer:
    """Let a FlowMatchingPipeline train at the pacer's sigmas, with its losses weighted by it.

    Its own settings of the draw no longer apply; its loss weighting does, and the Pacer learns of it by
    `host_weighting=weighting_of(pipeline)`.
    """
    paced = _PacedPipeline(pipeline, require_flow(pacer, "nemo.pace(pipeline, pacer)"))
    pipeline.step = paced.step
    pipeline.sample_timesteps = paced.sample_timesteps
    pipeline.compute_loss = paced.compute_loss
    return pacer


def weighting_of(pipeline: Any) -> Weighting:
    """The weight that a FlowMatchingPipeline puts on its losses, asked of the pipeline itself."""

    def weight(process: NoiseProcess, u: PerExample) -> PerExample:
        sigma = process.scales(u)[1]
        nothing = sigma.new_zeros(len(sigma), 1)
        # Its fifth result is the weight that it multiplied the losses by.
        applied: Tensor = type(pipeline).compute_loss(pipeline, nothing, nothing, sigma)[4]
        return applied.reshape(-1).to(u)

    return weight


class _PacedPipeline:
    """The three methods that are replaced, and what they tell each other within one step."""

    def __init__(self, pipeline: Any, pacer: Pacer) -> None:
        self.pipeline, self.pacer, self.host = pipeline, pacer, type(pipeline)
        self._latents: Tensor | None = None
        self._pace: Pace | None = None

    def step(self, model: nn.Module, batch: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._latents = next((batch[name] for name in LATENTS if name in batch), None)
        return self.host.step(self.pipeline, model, batch, *args, **kwargs)

    def sample_timesteps(
        self, batch_size: int, device: torch.device | str | None = None
    ) -> tuple[PerExample, PerExample, str]:
        """Sigma [B], timesteps [B] and a name for its log."""
        where = self.pipeline.device if device is None else device
        x0 = torch.empty(batch_size, 0) if self._latents is None else self._latents
        self._pace = self.pacer.draw(x0.to(where))
        sigma = self._pace.sigma
        return sigma, sigma * self.pipeline.num_train_timesteps, "stepwell"

    def compute_loss(
        self, model_pred: Tensor, target: Tensor, sigma: PerExample, batch: Any = None
    ) -> tuple[Any, ...]:
        """The pipeline's six results; the first two and the weight have the pacer's weight too."""
        result = self.host.compute_loss(self.pipeline, model_pred, target, sigma, batch)
        drawn, self._pace, self._latents = self._pace, None, None
        if drawn is None:
            return result  # type: ignore[no-any-return]
        weighted, _, unweighted, mean_unweighted, loss_weight, mask = result
        self.pacer.observe(unweighted.detach().float().flatten(1).mean(1))
        weight = per_example(drawn.weight.to(weighted), weighted)
        weighted = weighted * weight
        return weighted, weighted.mean(), unweighted, mean_unweighted, loss_weight * weight, mask
