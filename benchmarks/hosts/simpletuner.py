"""SimpleTuner: its SD3 model (batches, sigmas, forward pass, loss) around its own transformer, tiny."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import hosts.torchvision_without_cuda  # noqa: F401
import torch
from accelerate import Accelerator
from diffusers import FlowMatchEulerDiscreteScheduler

# SimpleTuner imports every model family; this one is for music and needs torchaudio, which needs CUDA.
_MUSIC = "simpletuner.helpers.models.ace_step.model"
sys.modules[_MUSIC] = ModuleType(_MUSIC)
sys.modules[_MUSIC].__spec__ = ModuleSpec(_MUSIC, None)

from hosts.check import Host, Tape, main  # noqa: E402
from hosts.patch import diff_of, patched  # noqa: E402
from simpletuner.helpers.models.sd3.model import SD3  # noqa: E402
from simpletuner.helpers.models.sd3.transformer import SD3Transformer2DModel  # noqa: E402

import stepwell  # noqa: E402
from stepwell.integrations import simpletuner  # noqa: E402
from stepwell.pacer import Pace  # noqa: E402

BATCH, IMAGES, WIDTH = 16, 64, 32
DIFF = diff_of("simpletuner")


def configuration(folder: Path) -> SimpleNamespace:
    """The settings that these methods read, at their defaults, with a shift of 3."""
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
    return SimpleNamespace(
        model_family="sd3",
        model_flavour=None,
        pretrained_model_name_or_path=str(folder),
        pretrained_vae_model_name_or_path=None,
        vae_path=None,
        weight_dtype=torch.float32,
        base_weight_dtype=torch.float32,
        flow_matching=True,
        flow_schedule_shift=3.0,
        flow_schedule_auto_shift=False,
        flow_sigmoid_scale=1.0,
        flow_use_beta_schedule=False,
        flow_use_uniform_schedule=False,
        flux_fast_schedule=False,
        input_perturbation=0.0,
        offset_noise=False,
        loss_type="l2",
    )


def tiny() -> SD3Transformer2DModel:
    return SD3Transformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        caption_projection_dim=32,
        pooled_projection_dim=WIDTH,
        pos_embed_max_size=8,
    )


def batches() -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(IMAGES, 4, 1, 1, generator=generator).expand(-1, -1, 8, 8).contiguous()
    text, pooled = (torch.randn(IMAGES, *shape, generator=generator) for shape in ((6, WIDTH), (WIDTH,)))
    while True:
        rows = torch.randint(IMAGES, (BATCH,), generator=generator)
        yield {
            "latent_batch": latents[rows],
            "prompt_embeds": text[rows],
            "add_text_embeds": pooled[rows],
        }


class Run:
    """A model and what SimpleTuner's Trainer has around it, with the lines of the page."""

    def __init__(self, folder: Path, with_pacer: bool) -> None:
        self.accelerator = Accelerator(cpu=True)
        self.model = SD3(configuration(folder), self.accelerator)
        network = tiny()
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
        if with_pacer:
            pacer = simpletuner.pace(self, stepwell.Pacer("auto", "flow:shift=3,reference=logit-normal"))
        self.model.model, self.optimizer = self.accelerator.prepare(network, optimizer)
        if with_pacer:
            pacer.attach(self.optimizer)

    def train(self, updates: int, data: Iterator[dict[str, Any]], tape: Tape) -> None:
        """The steps of Trainer.train, in its order."""
        for batch in islice(data, updates):
            prepared = self.model.prepare_batch(batch, state={"global_step": 0})
            output = self.model.model_predict(prepared)
            loss = self.model.loss(prepared, output, apply_conditioning_mask=True)
            loss, _ = self.model.auxiliary_loss(prepared_batch=prepared, model_output=output, loss=loss)
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.model.parameters(), 2.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            tape(loss.detach())


def train(updates: int, tape: Tape, with_pacer: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Run(Path(folder), with_pacer).train(updates, batches(), tape)


def resumed(updates: int, tape: Tape) -> None:
    """By accelerate's own states, which SimpleTuner's checkpoints are."""
    with tempfile.TemporaryDirectory() as folder:
        data, first = batches(), Run(Path(folder), with_pacer=True)
        first.train(updates // 2, data, tape)
        first.accelerator.save_state(f"{folder}/checkpoint")
        second = Run(Path(folder), with_pacer=True)
        second.accelerator.load_state(f"{folder}/checkpoint")
        second.train(updates - updates // 2, data, tape)


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    def recorded(model: SD3, batch: Any, state: Any) -> Any:
        sigmas = next(paces).sigma
        return sigmas, sigmas * 1000.0

    with mock.patch.object(SD3, "sample_flow_sigmas", recorded):
        yield


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    # The page's diff must fit the script of this version, whose Trainer is too large to run here.
    script = Path(str(find_spec("simpletuner.train").origin))
    compile(patched(script.read_text(), DIFF), str(script), "exec")
    main(
        Host(
            name="SimpleTuner",
            version=version("simpletuner"),
            ran="SD3 (a ModelFoundation): prepare_batch, sample_flow_sigmas, model_predict, loss, "
            "auxiliary_loss; its SD3Transformer2DModel; accelerate's backward, save_state, load_state",
            left_out="Trainer: the steps of its loop are written again in its order, without data backends; "
            "the page's diff fits train.py, which compiles. A tiny random network; music models stubbed.",
            diff=DIFF,
            published=lambda updates, tape: train(updates, tape, with_pacer=False),
            paced=lambda updates, tape: train(updates, tape, with_pacer=True),
            fed=fed,
            resumed=resumed,
        )
    )
