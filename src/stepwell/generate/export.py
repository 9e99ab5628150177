"""A trained network as a folder that diffusers' own DDPMPipeline loads."""

from __future__ import annotations

from pathlib import Path

from diffusers import DDPMPipeline, UNet2DModel

from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.scheduler import scheduler_of
from stepwell.models.denoiser import Denoiser

_INSTEAD = (
    "use stepwell generate, or load the network from the run yourself (stepwell.recipes.build.trained)."
)


def export(denoiser: Denoiser, process: NoiseProcess, out: Path, latents: bool = False) -> None:
    """Write unet/, scheduler/ and model_index.json; what the pipeline could not run is refused."""
    kind = type(denoiser.network).__name__
    if not isinstance(denoiser.network, UNet2DModel):
        raise Unsupported(
            f"the one format of export is DDPMPipeline's folder, which holds a UNet2DModel, and this network "
            f"is a {kind}: {_INSTEAD}"
        )
    if latents:
        raise Unsupported(
            "this network makes latents, and DDPMPipeline has no decoder to turn them into images: "
            + _INSTEAD
        )
    if denoiser.classes:
        raise Unsupported(
            f"DDPMPipeline passes no labels, and this network was trained with {denoiser.classes} classes: "
            f"{_INSTEAD}"
        )
    scheduler = scheduler_of(process, "ddpm", denoiser.learned_variance)
    DDPMPipeline(unet=denoiser.network, scheduler=scheduler).save_pretrained(out)
