"""`stepwell evaluate`: the metrics of a trained run, or the distances between two sets of images."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from stepwell.cli import evaluate_sets
from stepwell.cli.columns import folded, labelled
from stepwell.cli.options import add_command, add_json, begin, path_of, whole
from stepwell.core.errors import StepwellError
from stepwell.runs.directory import RECIPE
from stepwell.runs.metrics import LOSS, SCORED, features_of, loss

_EPILOG = """With one argument: held-out losses, bits per dimension, distances and PSNR of a run.

With two: distances between IMAGES and REFERENCE. Each is a folder of images, an .npz of uint8 images (images,
x or arr_0), or an .npz of statistics (mu and sigma, as pytorch-fid, torch-fidelity and guided-diffusion write
them). REFERENCE may also be CIFAR-10's folder or a run directory, which stand for their training
images, or fashion16.

  stepwell generate runs/mine --out mine.npz -n 10000
  stepwell evaluate mine.npz cifar10/train --weights pt_inception-2015-12-05-6726825d.pth
  torchrun --nproc_per_node 2 -m stepwell evaluate mine.npz cifar10/train

Only distances on Inception's features are FID and KID. Inception's weights are read from --weights,
$STEPWELL_INCEPTION, ~/.cache/stepwell or torch.hub's cache, else downloaded once. Features are kept in
~/.cache/stepwell/features ($STEPWELL_CACHE; 8 kB an image for inception), so that a command that was stopped
continues where it was and a reference is computed once. They can be deleted at any time."""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(
        verbs,
        "evaluate",
        run,
        help="score a run, or compare two sets of images",
        description=__doc__,
        examples=_EPILOG,
    )
    verb.add_argument("directory", type=path_of, metavar="RUN|IMAGES", help="a run directory, or images")
    verb.add_argument(
        "reference", nargs="?", metavar="REFERENCE", help="images or statistics to compare with"
    )
    verb.add_argument(
        "-n", "--generated", type=whole(100_000_000), default=None, metavar="COUNT",
        help="run: images to generate (1000; 0: none); sets: images of each, evenly spread (all)",
    )  # fmt: skip
    add_json(verb)
    of_run = verb.add_argument_group("of a run")
    of_run.add_argument(
        "--steps", type=whole(100_000), default=None, help="denoising steps; by default the recipe's"
    )
    of_run.add_argument(
        "--checkpoint",
        type=whole(),
        metavar="STEP",
        help="the weights after this step (default: the newest)",
    )
    of_run.add_argument("--raw", action="store_true", help="use the raw weights instead of EMA")
    evaluate_sets.add_options(verb.add_argument_group("of two sets"))


def run(options: argparse.Namespace) -> None:
    """Score a run, or compare two sets."""
    begin(f"evaluating {options.directory}")
    is_run = (options.directory / RECIPE).is_file()
    if options.reference is not None:
        if is_run:
            raise StepwellError(
                f"{options.directory} is a run and not a set of images. Make some first: stepwell generate "
                f"{options.directory} --out images.npz -n 10000, then: stepwell evaluate images.npz "
                f"{options.reference}"
            )
        if options.steps is not None or options.checkpoint is not None or options.raw:
            raise StepwellError(
                "--steps, --checkpoint and --raw belong to a run: leave them out to compare two sets."
            )
        evaluate_sets.run(options)
        return
    if not is_run and evaluate_sets.looks_like_images(options.directory):
        raise StepwellError(
            f"{options.directory} is not a run. To compare it with other images, name them: "
            f"stepwell evaluate {options.directory} REFERENCE"
        )
    misplaced = evaluate_sets.options_of_sets(options)
    if misplaced:
        raise StepwellError(f"{', '.join(misplaced)} compare two sets: name a REFERENCE, or leave them out.")
    _score_run(options)


def _score_run(options: argparse.Namespace) -> None:
    from stepwell.recipes.experiment import trained
    from stepwell.recipes.score import Effort, score

    run = trained(options.directory, averaged=not options.raw, step=options.checkpoint)
    generated = 1000 if options.generated is None else options.generated
    values = score(run, Effort(generated=generated, steps=options.steps))
    if options.json:
        print(json.dumps(values))
        return
    print(f"{options.directory}: {run.recipe.method} on {run.recipe.process}, held-out")
    losses = [loss(key) for key in values if key.startswith(LOSS)]
    measured = [metric for metric in (*losses, *SCORED) if not math.isnan(metric.read(values))]
    names = [metric.name(features_of(values)) for metric in measured]
    for name, metric in zip(names, measured, strict=True):
        print(labelled(f"  {name.ljust(max(map(len, names)))}  ", metric.text(values)))
    if generated and not features_of(values):
        told = (
            "No distance: our own feature network knows 16x16 grey clothes only. Compare with another: "
            f"stepwell generate {options.directory} -n 10000 --out images.npz; stepwell evaluate images.npz "
            f"{options.directory} --extractor inception --weights FILE"
        )
        print(folded(told))
