"""A trained network as folders that diffusers and peft load themselves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffusers import (
    DDPMPipeline,
    DiTTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    UNet2DConditionModel,
    UNet2DModel,
)
from safetensors import SafetensorError

from stepwell.core.errors import StepwellError, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.diffusers_solvers import make_scheduler
from stepwell.models import lora
from stepwell.models.denoiser import Denoiser
from stepwell.models.dit import DiT
from stepwell.models.of_diffusers import PLAIN, LabelledDiT, plain_network
from stepwell.models.text_encoder import TextEncoder
from stepwell.processes.flow import FlowProcess

Shape = tuple[int, int, int]

_LOOP = """import torch
from diffusers import {network}, {scheduler}

network = {network}.from_pretrained({out!r}, subfolder="{part}").eval()
scheduler = {scheduler}.from_pretrained({out!r}, subfolder="scheduler")
scheduler.set_timesteps({steps})
x = torch.randn(4, {shape})
{before}with torch.no_grad():
    for t in scheduler.timesteps:
        output = network(x, t.expand(len(x)){argument}).sample
        x = scheduler.step({output}, t, x).prev_sample
"""


_TEXTS = """from transformers import CLIPTextModel, CLIPTokenizer

tokenizer = CLIPTokenizer.from_pretrained({out!r}, subfolder="tokenizer")
encoder = CLIPTextModel.from_pretrained({out!r}, subfolder="text_encoder")
exact = {{"padding": "max_length", "max_length": {tokens}, "truncation": True, "return_tensors": "pt"}}
texts = encoder(tokenizer(["what to make"] * 4, **exact).input_ids)[0].detach()
"""


def export(
    denoiser: Denoiser,
    process: NoiseProcess,
    shape: Shape,
    out: Path,
    latents: bool = False,
    text_encoder: TextEncoder | None = None,
) -> str:
    """Write network and scheduler, with adapters added to their layers; returns Python that generates.

    One folder of a DDPMPipeline where that can run the network: a U-Net of images without labels on DDPM's
    chain.
    """
    network, scheduler = _network(denoiser, shape), _scheduler(process, denoiser.learned_variance)
    if isinstance(network, UNet2DModel) and process.is_ddpm and not (denoiser.classes or latents):
        with _written_whole(out) as folder:
            DDPMPipeline(unet=network, scheduler=scheduler).save_pretrained(folder)
        return (
            "from diffusers import DDPMPipeline\n"
            f"images = DDPMPipeline.from_pretrained({str(out)!r})(batch_size=4).images\n"
        )
    part = "transformer" if isinstance(network, DiTTransformer2DModel) else "unet"
    with _written_whole(out) as folder:
        network.save_pretrained(folder / part)
        scheduler.save_pretrained(folder / "scheduler")
        for name, files in text_encoder.files.items() if text_encoder is not None else ():
            (folder / name).mkdir()
            for file in files:
                shutil.copy(file, folder / name)
    given, before = _inputs(denoiser, network, str(out), text_encoder)
    return _LOOP.format(
        network=type(network).__name__,
        scheduler=type(scheduler).__name__,
        out=str(out),
        part=part,
        steps=50,
        shape=", ".join(map(str, shape)),
        before=before,
        argument=given,
        output=f"output[:, :{shape[0]}]" if part == "transformer" and denoiser.learned_variance else "output",
    )


def _inputs(denoiser: Denoiser, network: Any, out: str, text_encoder: TextEncoder | None) -> tuple[str, str]:
    """What a network is called with beside input and time, and the Python that makes it."""
    if text_encoder is not None:
        before = _TEXTS.format(out=out, tokens=text_encoder.shape.tokens)
        return ", encoder_hidden_states=texts", before
    none = ", encoder_hidden_states=None" if isinstance(network, UNet2DConditionModel) else ""
    if not (denoiser.classes or isinstance(network, DiTTransformer2DModel)):
        return none, ""
    # diffusers' own DiT may have been trained without labels: then all images had that of no class.
    shown = denoiser.classes if isinstance(denoiser.network, LabelledDiT) else 0
    return f"{none}, class_labels=labels", f"labels = torch.full((4,), {shown})\n"


def export_adapters(denoiser: Denoiser, out: Path) -> str:
    """Write the LoRA adapters alone, as peft keeps them; returns Python that adds them to their network."""
    if not isinstance(denoiser.network, PLAIN):
        raise Unsupported(
            f"adapters of a {type(denoiser.network).__name__} have the names of our own network, which no "
            "other has: export the whole network, without --adapters."
        )
    with _written_whole(out) as folder:
        lora.save_adapters(denoiser.network, folder)
    kind = next(kind.__name__ for kind in PLAIN if isinstance(denoiser.network, kind))
    part = "transformer" if isinstance(denoiser.network, DiTTransformer2DModel) else "unet"
    return (
        f"from diffusers import {kind}\n"
        "from peft import PeftModel\n"
        f'network = {kind}.from_pretrained("the folder that was fine-tuned", subfolder="{part}")\n'
        f"network = PeftModel.from_pretrained(network, {str(out)!r})\n"
    )


@contextmanager
def _written_whole(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` when all is written: half of one is worse than none."""
    unfinished = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        yield unfinished
        unfinished.replace(out)
    except (OSError, SafetensorError) as error:
        raise StepwellError(
            f"could not write {out} ({error}): make room, or choose another --out."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _network(denoiser: Denoiser, shape: Shape) -> Any:
    """diffusers' own network with these weights, or why there is none."""
    network = denoiser.network
    if isinstance(network, DiT):
        return _as_diffusers(network, denoiser.classes)
    if not isinstance(network, PLAIN):
        raise Unsupported(
            f"diffusers has no network like {type(network).__name__}: use stepwell generate, or load it from "
            "the run yourself (stepwell.recipes.experiment.trained)."
        )
    if network.config.in_channels != shape[0]:
        raise Unsupported(
            "this network takes low-resolution images beside its input, and no pipeline of diffusers passes "
            "them to a UNet2DModel: use stepwell generate."
        )
    return plain_network(network, lora.merged(network.state_dict()))


def _as_diffusers(network: DiT, classes: int) -> DiTTransformer2DModel:
    """Ours embeds time and label once; diffusers' blocks have an embedder each."""
    config = {**network.blocks.config, "num_embeds_ada_norm": classes}
    plain = DiTTransformer2DModel.from_config(config)
    weights = lora.merged(network.state_dict())
    blocks, embedder = (
        {name.removeprefix(part): value for name, value in weights.items() if name.startswith(part)}
        for part in ("blocks.", "embed.")
    )
    for number in range(len(plain.transformer_blocks)):
        blocks |= {f"transformer_blocks.{number}.norm1.emb.{name}": value for name, value in embedder.items()}
    plain.load_state_dict(blocks)
    return plain


def _scheduler(process: NoiseProcess, learned_variance: bool) -> Any:
    if process.is_ddpm:
        return make_scheduler(process, "ddpm", learned_variance)
    if isinstance(process, FlowProcess):
        if process.time_scale != 1000 or process.prediction != "velocity":
            raise Unsupported(
                "diffusers runs flows whose network predicts the velocity from times up to 1000, and this is "
                f"{process}: use stepwell generate."
            )
        return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=process.shift)
    raise Unsupported(
        f"diffusers has no scheduler that runs {process} as it was trained: use stepwell generate."
    )
