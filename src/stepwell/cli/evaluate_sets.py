"""`stepwell evaluate IMAGES REFERENCE`: two sets of images, in one process or several."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.progress import Bar

if TYPE_CHECKING:
    from stepwell.evaluate.compare_sets import Comparison

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
    from stepwell.core.ranks import own_device, ranks
    from stepwell.evaluate.compare_sets import Reading, compare, require_readable, side
    from stepwell.evaluate.extractors import extractor

    count, size = (
        None if value is None else require.count(name, value)
        for name, value in (("-n", options.generated), ("--size", options.size))
    )
    reading = Reading(count, size, require.count("--batch", 32 if options.batch is None else options.batch))
    for spec in (str(options.directory), options.reference):
        require_readable(spec)
    with ranks() as group:
        network = extractor(
            options.extractor or "inception", options.weights, resize=options.resize or "clean"
        ).on(own_device())
        with Bar(silent=group.rank > 0) as bar:

            def tell(name: str, done: int, total: int) -> None:
                bar.update(f"features of {name}", done, total)

            ours = side(options.directory, network, reading, tell)
            theirs = side(options.reference, network, reading, tell)
        if group.rank > 0:
            return
        found = compare(ours, theirs, network)
    print(json.dumps(_plain(found)) if options.json else _text(found, options))


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
