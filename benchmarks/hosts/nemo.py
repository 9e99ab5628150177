"""NeMo Automodel: FlowMatchingPipeline.step around a tiny random Wan transformer of diffusers."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import nemo_automodel
import torch
from diffusers import WanTransformer3DModel
from hosts.check import Host, Tape, main
from hosts.patch import diff_of, patched
from nemo_automodel.components.flow_matching.adapters import SimpleAdapter
from nemo_automodel.components.flow_matching.pipeline import FlowMatchingPipeline

import stepwell
from stepwell.integrations import nemo
from stepwell.pacer import Pace

BATCH, VIDEOS = 16, 64
DIFF = diff_of("nemo")


def tiny() -> WanTransformer3DModel:
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=64,
        ffn_dim=48,
        num_layers=2,
        rope_max_seq_len=32,
    )


def batches() -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    scale = 0.1 + 2 * torch.rand(VIDEOS, 4, 1, 1, 1, generator=generator)
    latents = scale * torch.randn(VIDEOS, 4, 1, 1, 1, generator=generator).expand(-1, -1, 1, 8, 8)
    text = torch.randn(VIDEOS, 6, 16, generator=generator)
    while True:
        rows = torch.randint(VIDEOS, (BATCH,), generator=generator)
        yield {"video_latents": latents[rows], "text_embeddings": text[rows], "data_type": "image"}


class Run:
    """A pipeline and what the recipe has around it: network and optimizer, and the lines of the page."""

    def __init__(self, with_pacer: bool) -> None:
        self.model = tiny()
        self.pipeline = FlowMatchingPipeline(SimpleAdapter(), device=torch.device("cpu"))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.parts: list[Any] = [self.model, self.optimizer]
        if with_pacer:
            weighting = nemo.weighting_of(self.pipeline)
            pacer = stepwell.Pacer("auto", "flow:shift=3,reference=logit-normal", host_weighting=weighting)
            nemo.pace(self.pipeline, pacer.attach(self.optimizer))
            self.parts.append(pacer)

    def train(self, batches: Iterable[dict[str, Any]], tape: Tape) -> None:
        """The recipe's loop, without its meshes: step, backward, clip, update."""
        for batch in batches:
            self.optimizer.zero_grad(set_to_none=True)
            _, loss, _, _ = self.pipeline.step(
                self.model, batch, torch.device("cpu"), torch.float32, collect_metrics=False, check_loss=False
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            tape(loss.detach())


def resumed(updates: int, tape: Tape) -> None:
    """Every part with a state is saved and loaded, as the recipe's checkpoints do."""
    data, first = batches(), Run(with_pacer=True)
    first.train(islice(data, updates // 2), tape)
    saved = io.BytesIO()
    torch.save([part.state_dict() for part in first.parts], saved)
    random_numbers = torch.get_rng_state()
    second = Run(with_pacer=True)
    for part, state in zip(second.parts, torch.load(io.BytesIO(saved.getvalue())), strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(random_numbers)
    second.train(islice(data, updates - updates // 2), tape)


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    def recorded(pipeline: FlowMatchingPipeline, batch_size: int, device: Any = None) -> Any:
        sigma = next(paces).sigma
        return sigma, sigma * pipeline.num_train_timesteps, "fed"

    with mock.patch.object(FlowMatchingPipeline, "sample_timesteps", recorded):
        yield


if __name__ == "__main__":
    # The page's diff must fit the recipe of this version, which is too large to run here.
    recipe = Path(inspect.getfile(nemo_automodel)).parent / "recipes" / "diffusion" / "train.py"
    compile(patched(recipe.read_text(), DIFF), "train.py", "exec")
    main(
        Host(
            name="NeMo Automodel",
            version=version("nemo-automodel"),
            ran="FlowMatchingPipeline (step, sample_timesteps, compute_loss), SimpleAdapter, "
            "diffusers' WanTransformer3DModel",
            left_out="TrainDiffusionRecipe: its loop is written again in six lines, without meshes and "
            "checkpoints; the diff of the page fits its source, which compiles. A tiny random network.",
            diff=DIFF,
            published=lambda updates, tape: Run(with_pacer=False).train(islice(batches(), updates), tape),
            paced=lambda updates, tape: Run(with_pacer=True).train(islice(batches(), updates), tape),
            fed=fed,
            resumed=resumed,
        )
    )
