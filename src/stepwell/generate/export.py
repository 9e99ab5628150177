"""A trained network as a folder that diffusers' own DDPMPipeline loads."""

from __future__ import annotations

from pathlib import Path

from diffusers import DDPMPipeline

from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.scheduler import scheduler_of
from stepwell.models.denoiser import Denoiser


def export(denoiser: Denoiser, process: NoiseProcess, out: Path) -> None:
    """Write unet/, scheduler/ and model_index.json."""
    if denoiser.classes:
        raise Unsupported(
            "DDPMPipeline passes no labels, and this network was trained with them: use stepwell generate, "
            "or load the network from the run yourself."
        )
    scheduler = scheduler_of(process, "ddpm", denoiser.learned_variance)
    DDPMPipeline(unet=denoiser.network, scheduler=scheduler).save_pretrained(out)
