"""Images a second of our trainer against diffusers' unconditional loop and lucidrains' Trainer, once.

Not part of `make bench`: lucidrains' package needs a torchvision, which has no CPU build here, so this ran in
a throw-away environment (denoising-diffusion-pytorch and torchvision with --no-deps) with the two missing
operators declared by hand. Same network, batch, clipping and EMA; blocks interleaved in one run.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

# torchvision's import registers fakes for these two, which only its compiled part declares.
LIBRARY = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from results import keep  # noqa: E402
from throughput import Bare, Ours, seconds  # noqa: E402

BATCH, LR, BLOCKS, STEPS = 64, 1e-3, 30, 8


class Diffusers:
    """The shape of diffusers' train_unconditional.py: a DataLoader, EMAModel, logs in every step."""

    def __init__(self) -> None:
        from accelerate import Accelerator
        from diffusers import DDPMScheduler
        from diffusers.optimization import get_scheduler
        from diffusers.training_utils import EMAModel

        from stepwell.data.load import load
        from stepwell.data.source import to_unit
        from stepwell.models.registry import build_model

        train = load("fashion16").train
        images = to_unit(train.fetch(torch.arange(len(train))))
        self.accelerator = Accelerator(cpu=True)
        network = build_model("tiny", channels=1, image_size=16).network
        self.ema = EMAModel(network.parameters(), decay=0.9999, use_ema_warmup=True)
        optimizer = torch.optim.AdamW(network.parameters(), lr=LR, betas=(0.95, 0.999))
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), BATCH, shuffle=True)
        rate = get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=500, num_training_steps=10**6)
        self.network, self.optimizer, self.data, self.rate = self.accelerator.prepare(
            network, optimizer, data, rate
        )
        self.noise_scheduler = DDPMScheduler(1000)
        self.batches = iter(self.data)

    def step(self) -> None:
        try:
            (clean,) = next(self.batches)
        except StopIteration:
            self.batches = iter(self.data)
            (clean,) = next(self.batches)
        noise = torch.randn(clean.shape)
        timesteps = torch.randint(0, 1000, (len(clean),)).long()
        noisy = self.noise_scheduler.add_noise(clean, noise, timesteps)
        with self.accelerator.accumulate(self.network):
            loss = torch.nn.functional.mse_loss(self.network(noisy, timesteps).sample.float(), noise.float())
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optimizer.step()
            self.rate.step()
            self.optimizer.zero_grad()
        self.ema.step(self.network.parameters())
        self.accelerator.log({"loss": loss.detach().item(), "lr": self.rate.get_last_lr()[0]}, step=0)


class Lucidrains:
    """His Trainer around the same network."""

    def __init__(self, folder: Path) -> None:
        from denoising_diffusion_pytorch import GaussianDiffusion, Trainer

        from stepwell.data.load import load
        from stepwell.data.source import to_pixels
        from stepwell.generate.sheets import as_picture
        from stepwell.models.registry import build_model

        (folder / "images").mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(to_pixels(load("fashion16").train.examples(torch.arange(3000)))):
            as_picture(image).save(folder / "images" / f"{index:06d}.png")
        diffusion = GaussianDiffusion(
            Adapter(build_model("tiny", channels=1, image_size=16).network), image_size=16
        )
        self.trainer = Trainer(
            diffusion,
            folder / "images",
            train_batch_size=BATCH,
            train_lr=LR,
            train_num_steps=0,
            save_and_sample_every=10**9,
            results_folder=str(folder / "results"),
            calculate_fid=False,
            convert_image_to="L",
            num_samples=4,
        )

    def step(self) -> None:
        self.trainer.train_num_steps += 1
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            self.trainer.train()


class Adapter(torch.nn.Module):
    """Our network with the attributes that GaussianDiffusion looks for."""

    channels = out_dim = 1
    self_condition = random_or_learned_sinusoidal_cond = False

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, time: torch.Tensor, *_: Any) -> torch.Tensor:
        return self.network(x, time).sample


def main() -> None:
    """Interleave all, print images a second as ratios to the bare loop."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        others: dict[str, Any] = {
            "bare loop": Bare(BATCH, LR, folder / "bare.jsonl"),
            "stepwell uniform": Ours(BATCH, LR, "uniform", folder / "ours"),
            "diffusers loop": Diffusers(),
        }
        if "--lucidrains" in sys.argv:
            others["lucidrains Trainer"] = Lucidrains(folder)
        for one in others.values():
            seconds(one.step, 3)
        rates: dict[str, list[float]] = {key: [] for key in others}
        for block in range(BLOCKS):
            order = list(others)[block % len(others) :] + list(others)[: block % len(others)]
            for key in order:
                rates[key].append(BATCH * STEPS / seconds(others[key].step, STEPS))
        rows = []
        for key, found in rates.items():
            ratios = [mine / bare for mine, bare in zip(found, rates["bare loop"], strict=True)]
            mean = sum(ratios) / len(ratios)
            error = math.sqrt(sum((r - mean) ** 2 for r in ratios) / (len(ratios) - 1) / len(ratios))
            median = sorted(found)[len(found) // 2]
            rows.append([key, f"{median:.0f}", f"{mean:.3f} ± {2.045 * error:.3f}"])
            print("   ".join(rows[-1]), flush=True)
    how = (
        f"Median images a second around one network (`tiny`, 16x16, batch {BATCH}), and the mean ratio to "
        f"the bare loop with its 95 % interval, over {BLOCKS} rounds of interleaved {STEPS}-step blocks. "
        "diffusers' loop (transcribed) and lucidrains' Trainer (denoising-diffusion-pytorch 2.3.4) ran in "
        "a throw-away environment with a torchvision shim (`benchmarks/other_trainers.py`); they do other "
        "things too (a learning-rate schedule, reading image files), and his data workers go on in the "
        "background, which lowers every ratio of this run."
    )
    keep("other-trainers", "Throughput against other trainers", how, ["trainer", "images/s", "ratio"], rows)


if __name__ == "__main__":
    main()
