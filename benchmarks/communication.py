"""What samplers send between ranks: counted and timed on gloo processes, then extrapolated.

Every collective of the samplers goes through the worker group (`core/ranks.py`). Here that group is wrapped,
so that each call notes its kind, its payload and its time, while 2 to 4 processes train the smallest of
networks: a payload does not depend on it. What travels then follows from how collectives work:

    all-reduce of b bytes over n ranks:  2 log2(n) latency + 2 (n - 1) / n  b / bandwidth      (tree, ring)
    all-gather of b bytes from each:       log2(n) latency +     (n - 1)    b / bandwidth

Beside it stands the all-reduce of the gradients, which every data-parallel run pays in every step.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
from results import keep
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist

import stepwell
from stepwell.core.ranks import Distributed
from stepwell.core.tick import Tick
from stepwell.objective import Objective

METHODS = ("uniform", "loss-ema", "neyman", "alignment", "beta-policy", "beta-policy:as_published=true")
BATCH, SHAPE = 32, (3, 32, 32)
"""Of a rank: Table 1's batch of 128 on four GPUs."""
START = 100_000
"""A step where every probe has found its rhythm."""
RANKS = (8, 64, 512)
LATENCY, BANDWIDTH = 10e-6, 25e9
"""Assumed: 10 microseconds a hop, and 200 Gbit/s of each GPU's own."""
MODELS = {"ddpm-cifar10": 35_746_307, "uvit-h": 500_832_016}
"""Networks and their parameters, whose gradients are reduced in float32."""


@dataclass(frozen=True)
class Call:
    """One collective: its kind, the bytes that a rank hands in, and how long it took."""

    kind: str
    size: int
    seconds: float


@dataclass
class Watched:
    """A worker group that notes its calls."""

    group: Any
    calls: list[Call] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return int(self.group.rank)

    @property
    def world(self) -> int:
        return int(self.group.world)

    def mean(self, value: Tensor) -> Tensor:
        return self._noted("mean", value)

    def gather(self, value: Tensor) -> Tensor:
        return self._noted("gather", value)

    def _noted(self, kind: str, value: Tensor) -> Tensor:
        # All ranks start together: waiting for a slower one is not communication.
        dist.barrier()
        started = time.perf_counter()
        found: Tensor = getattr(self.group, kind)(value)
        self.calls.append(Call(kind, value.nbytes, time.perf_counter() - started))
        return found


class Pointwise(nn.Module):
    """The least that fills a sketch: a slope and an offset for every pixel, 6,144 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Parameter(torch.zeros(2, *SHAPE))

    def forward(self, x: Tensor, time: Tensor, condition: Any = None) -> Tensor:
        return x * self.line[0] + self.line[1]


def train(method: str, steps: int, group: Any) -> None:
    """Some steps with a method; the group sees what is sent."""
    torch.manual_seed(0)
    network = Pointwise()
    process, weighting = stepwell.process("linear"), stepwell.weighting("none")
    name, _, words = method.partition(":")
    settings = {key: True for key in (words.partition("=")[0],) if key}
    objective, optimizer = Objective(process, weighting), torch.optim.Adam(network.parameters(), lr=1e-4)
    pacer = stepwell.Pacer(
        stepwell.sampler(name, process, **settings),
        process,
        weighting,
        loss_at=lambda x0, noise, u, condition: objective(network, x0, noise, u, condition).plain,
        optimizer=optimizer,
        network=network,
        group=group,
    )
    for step in range(START, START + steps):
        tick = Tick(0, step, 0, group.rank, group.world)
        x0 = torch.randn((BATCH, *SHAPE), generator=torch.Generator().manual_seed(tick.key("data")))
        pace = pacer.draw(x0, tick)
        losses = objective(network, x0, torch.randn_like(x0), pace.u, None)
        optimizer.zero_grad()
        losses.weighted.mean().backward()
        pacer.observe(losses.plain)
        pacer.before_update()
        optimizer.step()
        pacer.after_update()


def work(rank: int, world: int, folder: str, steps: int) -> None:
    """One process: every method, then collectives of other sizes."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(minutes=5)
    )
    found: dict[str, list[Call]] = {}
    for method in METHODS:
        group = Watched(Distributed())
        train(method, steps, group)
        found[method] = group.calls
    gradients = Watched(Distributed())
    for _ in range(3):
        gradients.mean(torch.zeros(MODELS["ddpm-cifar10"]))
    found["gradients"] = gradients.calls
    if rank == 0:
        torch.save({name: [(c.kind, c.size, c.seconds) for c in calls] for name, calls in found.items()},
                   Path(folder) / "found.pt")  # fmt: skip
    dist.destroy_process_group()


def measured(world: int, steps: int) -> dict[str, list[Call]]:
    """The calls of rank 0 by method."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (world, folder, steps), nprocs=world)
        found = torch.load(Path(folder) / "found.pt", weights_only=True)
    return {name: [Call(*call) for call in calls] for name, calls in found.items()}


def usual(calls: list[Call]) -> float:
    """Seconds of all calls, each as long as the median of its kind and size: a busy machine stalls some."""
    kinds: dict[tuple[str, int], list[float]] = {}
    for call in calls:
        kinds.setdefault((call.kind, call.size), []).append(call.seconds)
    return sum(len(seconds) * median(seconds) for seconds in kinds.values())


def modelled(calls: list[Call], ranks: int) -> float:
    """Seconds of some collectives over so many GPUs."""
    total = 0.0
    for call in calls:
        if call.kind == "mean":
            total += 2 * math.log2(ranks) * LATENCY + 2 * (ranks - 1) / ranks * call.size / BANDWIDTH
        else:
            total += math.log2(ranks) * LATENCY + (ranks - 1) * call.size / BANDWIDTH
    return total


def gradient_seconds(parameters: int, ranks: int) -> float:
    """The all-reduce of a network's gradients."""
    return modelled([Call("mean", 4 * parameters, 0.0)], ranks)


def rows(found: dict[int, dict[str, list[Call]]], steps: int) -> Iterator[list[str]]:
    """One line a method, and one for each network's gradients."""
    worlds = sorted(found)
    for method in METHODS:
        by_world = [found[world][method] for world in worlds]
        calls = by_world[-1]
        # Rows over all of time are shared out: a rank hands in a little less where there are more.
        sizes = {f"{sum(call.size for call in each) / steps / 1000:.3g}": None for each in by_world}
        yield [
            method,
            f"{len(calls) / steps:.3g}",
            " to ".join(sizes),
            *(f"{1000 * usual(each) / steps:.2g}" for each in by_world),
            *(f"{1000 * modelled(calls, ranks) / steps:.2g}" for ranks in RANKS),
        ]
    reduce = [1000 * median(c.seconds for c in found[world]["gradients"]) for world in worlds]
    for model, parameters in MODELS.items():
        timed = [f"{each:,.0f}" for each in reduce] if model == "ddpm-cifar10" else ["" for _ in worlds]
        expected = [f"{1000 * gradient_seconds(parameters, ranks):.3g}" for ranks in RANKS]
        yield [f"gradients of {model}", "1", f"{4 * parameters / 1000:,.0f}", *timed, *expected]


def main() -> None:
    """Measure, print, and leave a record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--worlds", default="2,4", help="how many gloo processes")
    options.add_argument("--steps", type=int, default=240, help="of training; a multiple of 16, 24 and 40")
    options.add_argument("--record", action="store_true", help="leave a record for RESULTS.md")
    given = options.parse_args()
    worlds = [int(part) for part in given.worlds.split(",")]
    found = {world: measured(world, given.steps) for world in worlds}
    here = [f"ms, {world} gloo processes" for world in worlds]
    columns = ["method", "collectives a step", "kB a step", *here, *(f"ms, {n} GPUs" for n in RANKS)]
    lines = list(rows(found, given.steps))
    widths = [max(len(row[place]) for row in (columns, *lines)) + 2 for place in range(len(columns))]
    for row in (columns, *lines):
        print("".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)))
    how = (
        f"Collectives of the samplers over {given.steps} steps, batch {BATCH} of 3x32x32 on every rank: how "
        "many a step, the bytes that one rank hands in, and their time on gloo over one machine's loopback "
        "(medians of their kind, as a mean over steps). For GPUs modelled, not measured: 2 log2(n) latency + "
        "2 (n - 1) / n bytes / bandwidth for a mean, log2(n) latency + (n - 1) bytes / bandwidth for a "
        f"gather, at {1e6 * LATENCY:.0f} microseconds and {BANDWIDTH / 1e9:.0f} GB/s, nothing overlapped. "
        "(`benchmarks/communication.py`)"
    )
    if given.record:
        keep("communication", "What samplers send between ranks", how, columns, lines)


if __name__ == "__main__":
    main()
