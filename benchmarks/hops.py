"""How often one training step, one attached loop and one comparison go from package to package of stepwell.

    python benchmarks/hops.py            # counts; --routes prints who calls whom

A hop is a call from a function of one package into a function of another, with or without torch in between.
`core` is what packages share (interfaces, densities): hops are also counted as if it were no package at all.
A route is a pair of packages with at least one hop. The same code makes the same calls: counts are exact.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import stepwell
from stepwell.cli.main import main as command
from stepwell.train import loop

FOLDER = str(Path(stepwell.__file__).parent)
SMALL = ["model=micro", "batch=8", "evaluate_images=4", "bands=4", "samples=0"]
IGNORED: set[str] = set()
"""Packages whose functions count as other people's."""
Routes = Counter[tuple[str, str]]


def package(frame: FrameType) -> str:
    """The package of stepwell that a frame runs in; empty for other people's code and ignored packages."""
    name = frame.f_code.co_filename
    if not name.startswith(FOLDER):
        return ""
    first, _, rest = name[len(FOLDER) + 1 :].partition("/")
    name = first if rest else first.removesuffix(".py")
    return "" if name in IGNORED else name


def traced(function: Callable[[], Any]) -> tuple[Any, Routes]:
    """What a function returns, and the calls between packages that it makes."""
    routes: Routes = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not (callee := package(frame)):
            return
        caller = frame.f_back
        while caller is not None and not package(caller):
            caller = caller.f_back
        if caller is not None and package(caller) != callee:
            routes[package(caller), callee] += 1

    sys.setprofile(trace)
    try:
        return function(), routes
    finally:
        sys.setprofile(None)


def training_steps(method: str, folder: str) -> list[Routes]:
    """The calls of each of 24 steps of `stepwell train`."""
    steps: list[Routes] = []
    original = loop.train_step

    def traced_step(training: Any, step: int) -> Any:
        report, routes = traced(lambda: original(training, step))
        steps.append(routes)
        return report

    loop.train_step = traced_step
    try:
        command(["train", "fashion16", f"method={method}", "steps=24", f"out={folder}/{method}", *SMALL])
    finally:
        loop.train_step = original
    return steps


def attached_steps(method: str) -> list[Routes]:
    """The calls of each of 24 rounds of a host's loop with an attached pacer."""
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(network.parameters())

    def loss_at(x0: torch.Tensor, noise: torch.Tensor, u: torch.Tensor, condition: Any) -> torch.Tensor:
        return (network(x0 + u[:, None] * noise) - noise).square().mean(1)

    pacer = stepwell.Pacer(method, "flow", loss_at=loss_at, network=network).attach(optimizer)

    def host() -> None:
        x0 = torch.randn(32, 2)
        pace = pacer.draw(x0)
        losses = loss_at(x0, torch.randn_like(x0), pace.u, None)
        pacer.observe(losses.detach())
        (losses * pace.weight).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return [traced(host)[1] for _ in range(24)]


def comparison(folder: str) -> Routes:
    """The calls of `stepwell compare` once its runs are trained: results, judgements, verdict, report."""
    words = [
        "compare",
        "fashion16",
        "methods=uniform,min-snr",
        "seeds=2",
        "steps=4",
        f"out={folder}/study",
        *SMALL,
    ]
    words += ["effort={'generated': 0, 'bits_images': 2, 'bits_timesteps': 2}"]
    words += ["--report", f"{folder}/report.html"]
    command(words)
    return traced(lambda: command(words))[1]


def measured() -> dict[str, Routes]:
    """The routes of everything that is traced, by title."""
    rows: dict[str, Routes] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for method in ("uniform", "neyman"):
            loops = {"training step": training_steps(method, folder), "attached loop": attached_steps(method)}
            for title, steps in loops.items():
                # Probes are due in some steps only: those with the most calls.
                by_calls = sorted(steps, key=Counter.total)
                rows[f"{title}, {method}"] = by_calls[0]
                if method == "neyman":
                    rows[f"{title}, {method}, with a probe"] = by_calls[-1]
        rows["comparison of finished runs"] = comparison(folder)
    return rows


def main() -> None:
    """Trace, and print hops and routes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--routes", action="store_true", help="print who calls whom")
    options = parser.parse_args()
    for ignored in ((), ("core",)):
        IGNORED.update(ignored)
        print("without core:" if ignored else "all packages:")
        for title, routes in measured().items():
            print(f"  {title:36} {routes.total():5} hops {len(routes):3} routes")
            if options.routes:
                for (caller, callee), count in sorted(routes.items()):
                    print(f"      {caller} -> {callee}  {count}")


if __name__ == "__main__":
    main()
