"""torchtitan: all of FluxTrainer with its checkpoints, on one CPU, with tiny random networks."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

# torchtitan asks torch for the accelerator of this machine, and takes CUDA where there is none.
torch._utils._get_available_device_type = lambda: "cpu"

import torchtitan.models.flux.train as host  # noqa: E402
import torchtitan.train  # noqa: E402
from hosts.check import UPDATES, Host, Tape, main  # noqa: E402
from hosts.patch import diff_of  # noqa: E402
from hosts.scripts import load  # noqa: E402
from torchtitan.components import metrics  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.models.flux import get_train_spec  # noqa: E402
from torchtitan.models.flux import job_config as flux_config  # noqa: E402
from torchtitan.models.flux.model.args import FluxModelArgs  # noqa: E402
from torchtitan.models.flux.model.autoencoder import AutoEncoderParams  # noqa: E402

from stepwell.pacer import Pace  # noqa: E402

BATCH, IMAGES, SIDE, TOKENS, WIDTH = 16, 64, 32, 4, 32
DIFF = diff_of("torchtitan")


class Data:
    """Batches (tokens, images), at a place that is saved."""

    def __init__(self, **kwargs: Any) -> None:
        generator = torch.Generator().manual_seed(1)
        self.place, colours = 0, torch.rand(IMAGES, 3, 1, 1, generator=generator)
        self.images = 2 * colours.expand(-1, -1, SIDE, SIDE) - 1
        self.tokens = torch.randint(32, (IMAGES, 1, TOKENS), generator=generator)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            rows = torch.arange(self.place, self.place + BATCH) % IMAGES
            self.place += BATCH
            tokens = self.tokens[rows]
            yield {"clip_tokens": tokens, "t5_tokens": tokens}, self.images[rows].clone()

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def encoders(folder: Path) -> tuple[str, str]:
    """Configurations of a tiny T5 and a tiny CLIP, which the trainer fills with random weights."""
    t5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    clip = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    clip |= {"vocab_size": 32, "eos_token_id": 2}
    for name, settings in (("t5", t5), ("clip", clip)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps({"model_type": name, **settings}))
    return str(folder / "t5"), str(folder / "clip")


def configuration(folder: Path, updates: int) -> Any:
    config = JobConfig()
    for name, part in vars(flux_config.JobConfig()).items():
        known = vars(getattr(config, name)) if hasattr(config, name) else {}
        setattr(config, name, SimpleNamespace(**{**vars(part), **known}))
    config.model.name, config.model.flavor = "flux", "tiny"
    config.job.dump_folder = str(folder)
    config.encoder.t5_encoder, config.encoder.clip_encoder = encoders(folder)
    config.training.test_mode, config.training.steps = True, updates
    config.training.local_batch_size, config.training.mixed_precision_param = BATCH, "float32"
    config.optimizer.implementation, config.optimizer.lr = "for-loop", 3e-3
    config.lr_scheduler.warmup_steps = 1
    config.activation_checkpoint.mode = "none"
    config.debug.seed = 0
    config.checkpoint.enable, config.checkpoint.interval = True, UPDATES // 2
    config.checkpoint.last_save_model_only = True
    return config


def spec() -> Any:
    found = get_train_spec()
    autoencoder = AutoEncoderParams(
        resolution=SIDE,
        in_channels=3,
        ch=32,
        out_ch=3,
        ch_mult=(1, 1, 1, 1),
        num_res_blocks=1,
        z_channels=16,
        scale_factor=0.3611,
        shift_factor=0.1159,
    )
    found.model_args = {
        "tiny": FluxModelArgs(
            vec_in_dim=WIDTH,
            context_in_dim=WIDTH,
            hidden_size=64,
            num_heads=2,
            depth=1,
            depth_single_blocks=1,
            axes_dim=(8, 12, 12),
            autoencoder_params=autoencoder,
        )
    }
    found.build_dataloader_fn, found.state_dict_adapter = Data, None
    return found


def train(trainer_class: type[host.FluxTrainer], updates: int, tape: Tape, folder: Path, until: int) -> None:
    """What torchtitan's main does, up to some update; a checkpoint in the folder is gone on from."""

    class Taped(trainer_class):
        def should_continue_training(self) -> bool:
            return super().should_continue_training() and self.step < until

        def forward_backward_step(self, **kwargs: Any) -> torch.Tensor:
            self.loss = super().forward_backward_step(**kwargs)
            return self.loss

        def train_step(self, data_iterator: Any) -> None:
            # torchtitan keeps no random state, so that a resumed run has other noise: here it has the same.
            torch.manual_seed(self.step)
            super().train_step(data_iterator)
            tape(self.loss.detach())

    memory = SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0, max_active_gib=0.0)
    memory.max_active_pct = memory.num_alloc_retries = memory.num_ooms = 0
    monitor = SimpleNamespace(device_name="cpu", get_peak_stats=lambda: memory, reset_peak_stats=lambda: None)
    with (
        mock.patch.object(metrics, "build_device_memory_monitor", return_value=monitor),
        mock.patch.object(torchtitan.train.train_spec_module, "get_train_spec", return_value=spec()),
        # A barrier over device numbers, which CPUs do not have; and a rest at the end.
        mock.patch.object(torchtitan.train.dist_utils, "set_pg_timeouts"),
        mock.patch.object(torchtitan.train.time, "sleep"),
    ):
        trainer = Taped(configuration(folder, updates))
        trainer.train()
        trainer.close()


def published(updates: int, tape: Tape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(host.FluxTrainer, updates, tape, Path(folder), updates)


def paced(updates: int, tape: Tape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(load(Path(host.__file__), DIFF).FluxTrainer, updates, tape, Path(folder), updates)


def resumed(updates: int, tape: Tape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for until in (updates // 2, updates):
            train(load(Path(host.__file__), DIFF).FluxTrainer, updates, tape, Path(folder), until)


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    own = torch.rand

    def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
        return next(paces).sigma if args == ((BATCH,),) else own(*args, **kwargs)

    with mock.patch.object(torch, "rand", recorded):
        yield


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    main(
        Host(
            name="torchtitan",
            version=version("torchtitan"),
            ran="FluxTrainer and all of its base Trainer (train, train_step, forward_backward_step, "
            "preprocess_data, optimizers, CheckpointManager), FluxModel, AutoEncoder, FluxEmbedder",
            left_out="data sets and tokenizers (random tokens and images), the device's memory monitor, "
            "timeouts, more than one process. Tiny random networks; noise is seeded by the step.",
            diff=DIFF,
            published=published,
            paced=paced,
            fed=fed,
            resumed=resumed,
        )
    )
