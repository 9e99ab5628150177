"""Images a second of our trainer against a bare hand-written loop with the same network.

Both do the same work: draw a batch, corrupt it, AdamW (fused), clipping, EMA, metrics every 50 steps.
Blocks of the two alternate in one run, so that a passing load hits both; the ratio of each pair of blocks is
one observation, and the lower bound is that of a 95 % t interval of their mean.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from results import keep
from scipy import stats

from stepwell.data.load import load as load_data
from stepwell.data.source import to_unit
from stepwell.models.registry import build_model
from stepwell.recipes.experiment import experiment
from stepwell.recipes.load import load
from stepwell.recipes.training import loop_settings, training_of
from stepwell.runs.directory import Run
from stepwell.train.recorder import Clock, Hooks, Position, Recorder
from stepwell.train.step import train_step

RECORD_EVERY = 50


class Bare:
    """What a careful person writes by hand."""

    def __init__(self, batch: int, lr: float, log: Path) -> None:
        torch.manual_seed(0)
        self.network = build_model("tiny", channels=1, image_size=16).network
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=lr, weight_decay=0.0, fused=True)
        self.average = [p.detach().clone() for p in self.network.parameters()]
        train = load_data("fashion16").train
        self.images = to_unit(train.fetch(torch.arange(len(train))))
        betas = torch.linspace(1e-4, 0.02, 1000)
        self.kept = torch.cumprod(1 - betas, 0)
        self.batch, self.step_count, self.log = batch, 0, log.open("w")

    def step(self) -> None:
        x0 = self.images[torch.randint(len(self.images), (self.batch,))]
        noise, t = torch.randn_like(x0), torch.randint(1000, (self.batch,))
        kept = self.kept[t].reshape(-1, 1, 1, 1)
        output = self.network(kept.sqrt() * x0 + (1 - kept).sqrt() * noise, t).sample
        loss = (output - noise).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, list(self.network.parameters()), 1 - 0.999)
        self.step_count += 1
        if self.step_count % RECORD_EVERY == 0:
            self.log.write(json.dumps({"loss": float(loss.detach()), "norm": float(norm)}) + "\n")
            self.log.flush()


class Ours:
    """The trainer's own step and duties."""

    def __init__(self, batch: int, lr: float, method: str, out: Path) -> None:
        words = [
            f"batch={batch}",
            f"lr={lr}",
            f"method={method}",
            f"record_every={RECORD_EVERY}",
            "evaluate_every=0",
        ]
        made = experiment(load("fashion16", words))
        self.training = training_of(made, Accelerator(cpu=True))
        self.run = Run(out)
        self.run.open({}, frozenset())
        hooks = Hooks(lambda n: {}, lambda s, v: None, lambda v, s: None, lambda t: None)
        self.at = Position(0, Clock())
        self.recorder = Recorder(self.training, self.run, loop_settings(made, 1), hooks, self.at)

    def step(self) -> None:
        report = train_step(self.training, self.at.step)
        self.at.step += 1
        self.recorder.check(report)
        if self.at.step % RECORD_EVERY == 0:
            self.recorder.record(report)


def seconds(step: object, count: int) -> float:
    """The time of `count` steps."""
    started = time.perf_counter()
    for _ in range(count):
        step()  # type: ignore[operator]
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--blocks", type=int, default=120)
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--methods", default="uniform,loss-ema")
    options.add_argument("--record", action="store_true", help="leave a record for RESULTS.md")
    given = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bare = Bare(given.batch, 1e-3, Path(folder) / "bare.jsonl")
        for method in given.methods.split(","):
            ours = Ours(given.batch, 1e-3, method, Path(folder) / method)
            for _ in range(5):
                bare.step()
                ours.step()
            ratios = []
            for block in range(given.blocks):
                # The order alternates too: whoever runs second may find warmer caches.
                order = [bare, ours] if block % 2 else [ours, bare]
                times = {id(one): seconds(one.step, given.steps) for one in order}
                ratios.append(times[id(bare)] / times[id(ours)])
            mean = sum(ratios) / len(ratios)
            spread = math.sqrt(sum((r - mean) ** 2 for r in ratios) / (len(ratios) - 1) / len(ratios))
            margin = float(stats.t.ppf(0.975, len(ratios) - 1)) * spread
            rate = given.batch * given.steps / times[id(ours)]
            print(
                f"{method:12} images/s, ours / bare: {mean:.4f}, 95 % interval {mean - margin:.4f} to "
                f"{mean + margin:.4f} over {len(ratios)} pairs of blocks of {given.steps} steps "
                f"(ours about {rate:.0f} images/s at batch {given.batch})",
                flush=True,
            )
            rows.append(
                [method, f"{mean:.4f}", f"{mean - margin:.4f} to {mean + margin:.4f}", str(len(ratios))]
            )
            ours.run.close()
    if given.record:
        how = (
            "Images a second of `stepwell train` over those of a bare hand-written loop around one network "
            f"(`tiny`, batch {given.batch}, fused AdamW, clipping, EMA, metrics every {RECORD_EVERY}); "
            f"{given.steps}-step blocks of the two alternate (`benchmarks/throughput.py`)."
        )
        columns = ["method", "ratio", "95 % interval (t, over pairs of blocks)", "pairs"]
        keep("throughput", "Throughput against a bare loop", how, columns, rows)


if __name__ == "__main__":
    main()
