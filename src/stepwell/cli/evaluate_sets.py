"""`stepwell evaluate IMAGES REFERENCE`: two sets of images, in one process or several."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.evaluate.compare_sets import Comparison

_LINE_EVERY_SECONDS = 20
_OPTIONS = ("extractor", "weights", "resize", "size", "batch")


def add_options(group: Any) -> None:
    """The options that only two sets have."""
    group.add_argument("--extractor", help="inception (default), resnet20-cifar10 or fashion16")
    group.add_argument("--weights", type=Path, metavar="FILE", help="of the extractor: .pth or .safetensors")
    group.add_argument(
        "--resize",
        help="clean (default; clean-fid's antialiased bicubic), legacy (pytorch-fid's bilinear) or legacy-tf "
        "(the original's, torch-fidelity's and guided-diffusion's)",
    )
    group.add_argument("--size", type=int, metavar="N", help="crop and resize images to N x N first")
    group.add_argument("--batch", type=int, metavar="N", help="images at once (32)")


def given(options: argparse.Namespace) -> list[str]:
    """Which of them were written."""
    return [f"--{name}" for name in _OPTIONS if getattr(options, name) is not None]


def looks_like_images(path: Path) -> bool:
    """Whether a path is a folder or an .npz."""
    return path.is_dir() or (path.is_file() and path.suffix.lower() == ".npz")


def run(options: argparse.Namespace) -> None:
    """Extract on all ranks, compare and print on the first."""
    from stepwell.core import require
    from stepwell.evaluate.compare_sets import Reading, compare, require_readable, side
    from stepwell.evaluate.extractors import extractor

    count, size = (
        None if value is None else require.count(name, value)
        for name, value in (("-n", options.generated), ("--size", options.size))
    )
    reading = Reading(count, size, require.count("--batch", 32 if options.batch is None else options.batch))
    for spec in (str(options.directory), options.reference):
        require_readable(spec)
    with _processes() as rank:
        network = extractor(
            options.extractor or "inception", options.weights, resize=options.resize or "clean"
        ).on(_device())
        with _Bar(silent=rank > 0) as bar:
            ours = side(options.directory, network, reading, bar.update)
            theirs = side(options.reference, network, reading, bar.update)
        if rank > 0:
            return
        found = compare(ours, theirs, network)
    print(json.dumps(_plain(found)) if options.json else _text(found, options))


@contextmanager
def _processes() -> Iterator[int]:
    """The rank of this process among those that torchrun started."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0
        return
    from datetime import timedelta

    from torch import distributed as dist

    # A rank waits for the slowest at the end of a set: hours, if its share is large.
    dist.init_process_group("gloo", timeout=timedelta(hours=12))
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


def _device() -> str:
    """A GPU of this process's own, if there is one."""
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


class _Bar:
    """Images done: a bar where there is a terminal, a line now and then where there is none."""

    def __init__(self, silent: bool) -> None:
        self._silent, self._tasks = silent, dict[str, Any]()
        self._bar: Any = None
        self._last_line = time.monotonic()

    def __enter__(self) -> _Bar:
        if not self._silent and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, name: str, done: int, total: int) -> None:
        """How far a set is."""
        now = time.monotonic()
        if self._bar is not None:
            if name not in self._tasks:
                self._tasks[name] = self._bar.add_task(f"features of {name}", total=total)
            self._bar.update(self._tasks[name], completed=done)
        elif not self._silent and now - self._last_line > _LINE_EVERY_SECONDS:
            self._last_line = now
            print(f"features of {name}: {done} of {total} images", file=sys.stderr, flush=True)


def _plain(found: Comparison) -> dict[str, Any]:
    kernel, shares = found.kernel, found.shares
    return {
        "measure": found.title,
        "fid": found.frechet if found.title == "FID" else None,
        "frechet_distance": found.frechet,
        "kernel_distance": None if kernel is None else kernel.mean,
        "kernel_distance_standard_error": None if kernel is None else kernel.standard_error,
        "precision": None if shares is None else shares.precision,
        "recall": None if shares is None else shares.recall,
        "images": found.counts[0],
        "reference_images": found.counts[1],
        "extractor": found.identity,
        "notes": list(found.notes),
    }


def _text(found: Comparison, options: argparse.Namespace) -> str:
    counts = ["an unknown number of" if count is None else f"{count:,}" for count in found.counts]
    lines = [
        f"{options.directory} ({counts[0]} images) and {options.reference} ({counts[1]} images)",
        f"  {found.title}: {found.frechet:.4f}",
    ]
    if found.kernel is not None:
        name = "KID" if found.title == "FID" else "kernel distance (not KID)"
        lines.append(f"  {name}: {found.kernel.mean:.6f} ± {found.kernel.standard_error:.6f}")
    if found.shares is not None:
        lines.append(f"  precision: {found.shares.precision:.4f}   recall: {found.shares.recall:.4f}")
    lines.append(f"  extractor: {found.identity}")
    return "\n".join([*lines, *(f"  Note: {note}" for note in found.notes)])
