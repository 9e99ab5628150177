"""musubi-tuner: all of Z-Image's LoRA training, on a tiny random transformer and cached random latents."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import hosts.torchvision_without_cuda  # noqa: F401
import torch

SOURCE = ("kohya-ss/musubi-tuner", "30c658c4f4b0bf05038b3346eff9670259b10fc7")
sys.path.insert(0, str(Path("source/src").resolve()))


from hosts.check import Host, Tape, main  # noqa: E402
from hosts.patch import diff_of, patched  # noqa: E402
from musubi_tuner import zimage_train_network as host  # noqa: E402
from musubi_tuner.dataset import cache_io, image_video_dataset  # noqa: E402
from musubi_tuner.training.parser_common import setup_parser_common  # noqa: E402
from musubi_tuner.zimage.zimage_model import ZImageTransformer2DModel  # noqa: E402

import stepwell  # noqa: E402
from stepwell.integrations import musubi  # noqa: E402
from stepwell.pacer import Pace  # noqa: E402

BATCH, IMAGES, SIDE, TEXT = 8, 48, 8, 32
"""Epochs of six batches: half of the updates is a whole number of epochs, where a run can be resumed."""


class Trainer(host.ZImageNetworkTrainer):
    """Z-Image's trainer with a tiny transformer, which tells the tape the loss of each update."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def load_transformer(self, *args: Any, **kwargs: Any) -> ZImageTransformer2DModel:
        torch.manual_seed(0)
        model = ZImageTransformer2DModel(
            dim=32,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=2,
            n_kv_heads=2,
            cap_feat_dim=TEXT,
            axes_dims=[4, 6, 6],
            axes_lens=[64, 32, 32],
        )
        # Its own initialisation leaves these two empty.
        for token in (model.x_pad_token, model.cap_pad_token):
            torch.nn.init.zeros_(token)
        return model

    def process_batch(self, *args: Any, **kwargs: Any) -> Any:
        self.loss, metrics = super().process_batch(*args, **kwargs)
        return self.loss, metrics

    def on_post_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().on_post_optimizer_step(*args, **kwargs)
        self.tape(self.loss.detach())


def cached(folder: Path) -> Path:
    """A dataset of cached latents and captions, written by musubi-tuner's own functions; its config."""
    generator = torch.Generator().manual_seed(1)
    for number in range(IMAGES):
        name, size = f"image{number:03d}", (8 * SIDE, 8 * SIDE)
        item = image_video_dataset.ItemInfo(name, "", size, size)
        arch = image_video_dataset.ARCHITECTURE_Z_IMAGE
        item.latent_cache_path = str(folder / f"{name}_{size[0]:04d}x{size[1]:04d}_{arch}.safetensors")
        item.text_encoder_output_cache_path = str(folder / f"{name}_{arch}_te.safetensors")
        colour = 6 * torch.randn(16, 1, 1, generator=generator)
        cache_io.save_latent_cache_z_image(item, colour.expand(-1, SIDE, SIDE).contiguous())
        cache_io.save_text_encoder_output_cache_z_image(item, torch.randn(6, TEXT, generator=generator))
    config = folder / "dataset.toml"
    config.write_text(
        f"[general]\nresolution = [{8 * SIDE}, {8 * SIDE}]\nbatch_size = {BATCH}\n"
        f'[[datasets]]\nimage_directory = "{folder}"\ncache_directory = "{folder}"\n'
    )
    return config


def train(updates: int, tape: Tape, folder: Path, with_pacer: bool, *more: str) -> None:
    """What zimage_train_network.py's main does, with these arguments."""
    words = f"""
        --dit tiny --dataset_config {DATA} --sdpa --mixed_precision no --weighting_scheme none
        --timestep_sampling shift --discrete_flow_shift 3 --seed 0 --max_data_loader_n_workers 0
        --network_module musubi_tuner.networks.lora_zimage --network_dim 8 --optimizer_type AdamW
        --learning_rate 2e-2 --max_train_steps {updates} --output_dir {folder} --output_name lora
    """.split()
    trainer = Trainer(tape)
    if with_pacer:
        musubi.pace(trainer, stepwell.Pacer("auto", "flow:shift=3,reference=logit-normal"))
    parser = host.zimage_setup_parser(setup_parser_common())
    # Batches keep their images: a resumed run of musubi-tuner begins its epochs, and their order, anew.
    with mock.patch.object(random, "shuffle", return_value=None):
        trainer.train(parser.parse_args([*words, *more]))


def published(updates: int, tape: Tape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(updates, tape, Path(folder), False)


def paced(updates: int, tape: Tape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(updates, tape, Path(folder), True)


def resumed(updates: int, tape: Tape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(updates // 2, tape, Path(folder), True, "--save_state_on_train_end")
        rest = updates - updates // 2
        train(rest, tape, Path(folder), True, "--resume", f"{folder}/lora-state")


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    """The trainer's `randn` and shift give way to the recorded times, by `--timestep_sampling uniform`."""

    def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
        return next(paces).sigma

    own = Trainer.get_noisy_model_input_and_timesteps

    def uniform(trainer: Trainer, args: Any, *rest: Any) -> Any:
        args.timestep_sampling = "uniform"
        with mock.patch.object(torch, "rand", recorded):
            return own(trainer, args, *rest)

    with mock.patch.object(Trainer, "get_noisy_model_input_and_timesteps", uniform):
        yield


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    DIFF = diff_of("musubi")
    compile(patched(Path(host.__file__).read_text(), DIFF), host.__file__, "exec")
    with tempfile.TemporaryDirectory() as data:
        DATA = cached(Path(data))
        main(
            Host(
                name="musubi-tuner",
                version=f"{SOURCE[1][:7]} (0.3.4)",
                ran="ZImageNetworkTrainer.train (all of NetworkTrainer's loop: cached dataset, LoRA network, "
                "accelerate, optimizer, saving), ZImageTransformer2DModel",
                left_out="weights from a file: load_transformer returns a tiny random transformer; cached "
                "latents and captions are random, in a fixed order; no sample images.",
                diff=DIFF,
                published=published,
                paced=paced,
                fed=fed,
                resumed=resumed,
            )
        )
