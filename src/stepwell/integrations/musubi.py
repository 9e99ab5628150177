"""musubi-tuner's NetworkTrainer (Wan, Qwen-Image, FLUX.2, Z-Image, ...): its extension seams, as a pacer."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import Unsupported
from stepwell.integrations.mean_loss import observe_and_weigh
from stepwell.integrations.shared import logged_metrics, require_flow
from stepwell.pacer import Pace, Pacer

_AS_GIVEN = {
    "timestep_sampling": "uniform",
    "min_timestep": None,
    "max_timestep": None,
    "preserve_distribution_shape": False,
}
"""With these settings the trainer takes the times that it is given as they are."""


def pace(trainer: Any, pacer: Pacer) -> Pacer:
    """Let a NetworkTrainer train at the pacer's times, weight by it, save and resume it, and log it.

    Its own settings of the draw (`--timestep_sampling` and what belongs to it) no longer apply.
    """
    paced = _PacedTrainer(trainer, require_flow(pacer, "musubi.pace(trainer, pacer)"))
    for name in _SEAMS:
        setattr(trainer, name, getattr(paced, name))
    return pacer


_SEAMS = (
    "extra_trainable_params",
    "on_train_start",
    "get_noisy_model_input_and_timesteps",
    "compute_loss",
    "extra_step_logs",
)


class _PacedTrainer:
    """The trainer's methods of the same names, each of which calls the trainer's own."""

    def __init__(self, trainer: Any, pacer: Pacer) -> None:
        self.trainer, self.pacer, self.host = trainer, pacer, type(trainer)
        self._pace: Pace | None = None
        self._started = False

    def extra_trainable_params(
        self, args: argparse.Namespace, accelerator: Any, network: Any, transformer: Any, params: list[Any]
    ) -> list[Any]:
        # The last seam before a saved state is loaded, which must find the pacer registered.
        accelerator.register_for_checkpointing(self.pacer)
        own: list[Any] = self.host.extra_trainable_params(
            self.trainer, args, accelerator, network, transformer, params
        )
        return own

    def on_train_start(
        self, args: argparse.Namespace, accelerator: Any, network: Any, transformer: Any, optimizer: Any
    ) -> None:
        self.host.on_train_start(self.trainer, args, accelerator, network, transformer, optimizer)
        self.pacer.attach(optimizer)
        self._started = True

    def get_noisy_model_input_and_timesteps(
        self,
        args: argparse.Namespace,
        noise: Tensor,
        latents: Tensor,
        timesteps: list[float] | None,
        noise_scheduler: Any,
        device: torch.device,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """The noisy input [B, ...] and the network's timesteps [B], made by the trainer from the drawn times.

        `timesteps` are those of `--num_timestep_buckets`, and are not used: samplers are stratified by
        `stratified=true`.
        """
        if not self._started:
            raise Unsupported(
                f"{self.host.__name__} draws times before or without on_train_start, as full fine-tuning "
                "(..._train.py) and --show_timesteps do, where losses would not be weighted: use musubi.pace "
                "with ..._train_network.py, and write `pacer.draw` into a loop of your own otherwise."
            )
        if getattr(self.trainer, "high_low_training", False):
            raise Unsupported(
                "this Wan run trains a high-noise and a low-noise model together, and chooses the model by "
                "its own draw: train one model a run, with stepwell.sampler(..., within=(boundary, 1)) or "
                "within=(0, boundary)."
            )
        self._pace = self.pacer.draw(latents)
        settings = argparse.Namespace(**{**vars(args), **_AS_GIVEN})
        drawn = self._pace.sigma.tolist()
        made: tuple[Tensor, Tensor] = self.host.get_noisy_model_input_and_timesteps(
            self.trainer, settings, noise, latents, drawn, noise_scheduler, device, dtype
        )
        return made

    def compute_loss(
        self, args: argparse.Namespace, output: Any, *rest: Any, **more: Any
    ) -> tuple[Tensor, dict[str, float]]:
        """The trainer's loss and metrics of a DiTOutput, whose gradient has the pacer's weight."""
        drawn, self._pace = self._pace, None
        if drawn is not None:
            output = replace(output, pred=observe_and_weigh(self.pacer, drawn, output.pred, output.target))
        own: tuple[Tensor, dict[str, float]] = self.host.compute_loss(
            self.trainer, args, output, *rest, **more
        )
        return own

    def extra_step_logs(self, args: argparse.Namespace, logs: dict[str, Any]) -> dict[str, Any]:
        return {**self.host.extra_step_logs(self.trainer, args, logs), **logged_metrics(self.pacer)}
