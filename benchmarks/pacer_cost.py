"""What an attached pacer costs a loop that is not ours: diffusers' usual one, with and without it, in turn.

    python benchmarks/pacer_cost.py --record

The trainer has the same pacer (`learned_cost.py`); here it is hooks on the optimizer and `loss_at.diffusers`.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler
from results import keep

import stepwell
from stepwell.analyze.step_cost import Stepped, timed
from stepwell.core.tick import Tick
from stepwell.data.load import load
from stepwell.models.denoiser import NetworkSpec
from stepwell.models.unet import network

METHODS = ("neyman", "alignment", "loss-ema", "logit-normal")
BATCH, THREADS = 64, 2


def loop(images: torch.Tensor, method: str | None) -> Stepped:
    """Steps of a host on the `small` U-Net: its own draws, or a pacer's."""
    torch.manual_seed(0)
    # diffusers' own class, as hosts have it.
    model = network("small", NetworkSpec(channels=1, image_size=16))
    scheduler, optimizer = DDPMScheduler(), torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses_at = stepwell.loss_at.diffusers(model, scheduler)
    pacer = None if method is None else stepwell.Pacer(method, scheduler, loss_at=losses_at).attach(optimizer)

    def step(number: int) -> None:
        x0 = images[torch.randint(0, len(images), (BATCH,))]
        noise = torch.randn_like(x0)
        pace = None if pacer is None else pacer.draw(x0, Tick(step=number))
        timesteps = torch.randint(0, 1000, (BATCH,)) if pace is None else pace.timesteps
        output = model(scheduler.add_noise(x0, noise, timesteps), timesteps).sample
        losses = F.mse_loss(output, noise, reduction="none").mean((1, 2, 3))
        if pace is not None:
            pacer.observe(losses)
            losses = losses * pace.weight
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Stepped(step, None if pacer is None else pacer.sampler.probe)


def main() -> None:
    """Measure, print, and leave a record if asked."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--rounds", type=int, default=40, help="of six steps, or of 32 for methods that measure nothing"
    )
    options.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    options.add_argument("--record", action="store_true", help="leave a record for RESULTS.md")
    given = options.parse_args()
    torch.set_num_threads(THREADS)
    images = load("fashion16").train.examples(torch.arange(4096))
    rows = []
    for method in given.methods.split(";"):
        timing = timed(loop(images, None), loop(images, method), given.rounds)
        low, high = timing.interval()
        rows.append([method, f"{timing.ratio():.3f}x", f"{low:.3f} to {high:.3f}", str(given.rounds)])
        print("  ".join(rows[-1]), flush=True)
    how = (
        "Time of a step over one without a pacer, in diffusers' usual loop (`small`, fashion16, "
        f"batch {BATCH}, {THREADS} threads), interleaved as in the table of learned samplers "
        "(`benchmarks/pacer_cost.py`)."
    )
    if given.record:
        title = "What an attached pacer costs a host"
        keep("pacer-cost", title, how, ["method", "time", "95 % interval", "rounds"], rows)


if __name__ == "__main__":
    main()
