"""Do distances fall while a model learns? A run's checkpoints against its training images.

    python benchmarks/make_cifar10_subset.py ASSETS runs/cifar10-subset.npz
    stepwell train images data=runs/cifar10-subset.npz model=small keep=20 out=runs/cifar10
    python benchmarks/cifar10_checkpoints.py runs/cifar10 --count 2000

Every checkpoint on ResNet-20's features, the first and the last on Inception's too (FID). Weights are found
by STEPWELL_RESNET20_CIFAR10 and STEPWELL_INCEPTION. Images and features stay on disk: a second call goes on.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from stepwell.core.ranks import Alone
from stepwell.evaluate.compare_sets import Reading, compare, side
from stepwell.evaluate.extractors import extractor
from stepwell.generate.job import ImageJob, write_images
from stepwell.recipes.experiment import trained
from stepwell.train.checkpoint import steps as steps_kept

SOLVER, STEPS = "unipc", 15


def images_of(run: Path, step: int, count: int) -> Path:
    """Images of the averaged weights after a step, from the same noise at every checkpoint."""
    out = run / "generated" / f"step-{step:06d}-{count}"
    made = trained(run, step=step)
    request = replace(made.request(count, batch=100), solver=SOLVER, steps=STEPS)
    write_images(ImageJob(made.denoiser, made.process, request, made.decode), out, Alone())
    return out


def main() -> None:
    """Generate, compare, print, keep."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("run", type=Path)
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--inception", action="store_true", help="FID of the first and the last too")
    given = options.parse_args()
    kept = sorted(step for step in steps_kept(given.run / "checkpoints") if step)
    path = given.run / "distances.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name, steps in (("resnet20-cifar10", kept), ("inception", [kept[0], kept[-1]] * given.inception)):
        for step in steps:
            if f"{name}/{step}" not in found:
                features = extractor(name)
                sides = [
                    side(images, features, Reading(count=given.count), lambda what, done, total: None)
                    for images in (images_of(given.run, step, given.count), given.run)
                ]
                result = compare(*sides, features)
                found[f"{name}/{step}"] = [
                    result.frechet,
                    list(result.kernel or ()),
                    list(result.shares or ()),
                ]
                path.write_text(json.dumps(found, indent=1))
            print(f"{name} step {step}: {found[f'{name}/{step}']}", flush=True)


if __name__ == "__main__":
    main()
