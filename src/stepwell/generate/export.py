"""A trained network as a folder that diffusers' own DDPMPipeline loads."""

from __future__ import annotations

from pathlib import Path

from diffusers import DDPMPipeline, UNet2DModel

from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.scheduler import scheduler_of
from stepwell.models.denoiser import Denoiser
from stepwell.models.lora import merged

_INSTEAD = (
    "use stepwell generate, or load the network from the run yourself (stepwell.recipes.build.trained)."
)


def export(denoiser: Denoiser, process: NoiseProcess, out: Path, latents: bool = False) -> None:
    """Write unet/, scheduler/ and model_index.json; what the pipeline could not run is refused.

    Adapters are added to their layers: the folder holds an ordinary network.
    """
    network = denoiser.network
    kind = type(network).__name__
    if not isinstance(network, UNet2DModel):
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
    answered = network.config.out_channels // (2 if denoiser.learned_variance else 1)
    if network.config.in_channels != answered:
        raise Unsupported(
            "this network enlarges images that it is shown beside the noise, and DDPMPipeline shows it none: "
            + _INSTEAD
        )
    scheduler = scheduler_of(process, "ddpm", denoiser.learned_variance)
    plain = UNet2DModel.from_config(network.config)
    plain.load_state_dict(merged(network.state_dict()))
    DDPMPipeline(unet=plain, scheduler=scheduler).save_pretrained(out)
