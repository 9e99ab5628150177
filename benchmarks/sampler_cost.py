"""What a draw and a learn call cost, as shares of one training step of a tiny UNet at batch 64.

Ratios within one run: the machine's speed cancels, and blocks of the two are interleaved so that a
passing load hits both. Prints a table; a share above the goal (0.5 %) is marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

import stepwell
from stepwell.catalogue.find import all_entries
from stepwell.core.sampler import TimestepSampler
from stepwell.models.registry import build_model

BATCH, SIZE, GOAL = 64, 16, 0.005
BLOCKS, CALLS = 30, 20


def training_step() -> Callable[[], None]:
    """One optimizer step of the `tiny` network on 16x16 grey images, without a sampler."""
    torch.manual_seed(0)
    network = build_model("tiny", channels=1, image_size=SIZE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    objective = stepwell.Objective(stepwell.process("linear"))
    x0, noise, u = torch.randn(BATCH, 1, SIZE, SIZE), torch.randn(BATCH, 1, SIZE, SIZE), torch.rand(BATCH)

    def step() -> None:
        losses = objective(network, x0, noise, u)
        optimizer.zero_grad()
        losses.weighted.mean().backward()
        optimizer.step()

    return step


def seconds(call: Callable[[], object], times: int) -> float:
    """The mean time of one call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def calls_of(sampler: TimestepSampler) -> dict[str, Callable[[], object]]:
    """A draw and a learn call on one batch, as a training loop makes them."""
    x0, tick = torch.zeros(BATCH, 1, SIZE, SIZE), stepwell.Tick(seed=1)
    drawn, losses = sampler.draw(x0, tick), torch.rand(BATCH)
    feedback = stepwell.Feedback(tick, drawn.u, losses, losses)
    return {"draw": lambda: sampler.draw(x0, tick), "learn": lambda: sampler.learn(feedback)}


def main() -> None:
    """Measure every sampler of the catalogue and the heaviest stack of combinators."""
    process, step = stepwell.process("linear"), training_step()
    subjects: dict[str, TimestepSampler] = {}
    for kind, name in all_entries():
        if kind == "sampler":
            parameters = {"masses": [1.0, 2.0, 3.0]} if name == "table" else {}
            subjects[name] = stepwell.sampler(name, process, **parameters)
    stack = {"shift": 2.0, "floor": 0.1, "warm_up_steps": 1, "stratified": True, "unbiased": True}
    subjects["loss-ema, all combinators"] = stepwell.sampler("loss-ema", process, **stack)
    calls = {(name, kind): call for name, s in subjects.items() for kind, call in calls_of(s).items()}
    for warm in (step, *calls.values()):
        warm()
    steps: list[float] = []
    costs: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(BLOCKS):
        steps.append(seconds(step, 2))
        for key, call in calls.items():
            costs[key].append(seconds(call, CALLS))
    base = median(steps)
    print(
        f"one step of a tiny UNet at batch {BATCH}: {base * 1e3:.1f} ms on {torch.get_num_threads()} threads"
    )
    print(f"{'share of a step':32}{'draw':>10}{'learn':>10}")
    for name in subjects:
        shares = [median(costs[name, kind]) / base for kind in ("draw", "learn")]
        mark = "" if max(shares) < GOAL else f"   above the goal of {GOAL:.1%}"
        print(f"{name:32}{shares[0]:>10.3%}{shares[1]:>10.3%}{mark}")


if __name__ == "__main__":
    main()
