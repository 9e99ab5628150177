"""`stepwell generate`: images from a trained run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepwell.cli.extra import require_extra
from stepwell.core.errors import StepwellError


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("generate", help="make images from a run", description=__doc__)
    verb.add_argument("directory", type=Path, metavar="RUN", help="a run directory")
    verb.add_argument("--out", type=Path, required=True, help="sheet.png, images.npz, or a folder")
    verb.add_argument("-n", "--count", type=int, default=64)
    verb.add_argument("--solver", default="ddim", help="ddim or ddpm")
    verb.add_argument("--steps", type=int, default=None, help="denoising steps (ddim 50, ddpm all)")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--batch", type=int, default=64)
    verb.add_argument("--labels", default="", help="classes to cycle through, such as 0,1,2")
    verb.add_argument("--guidance", type=float, default=1.0, help="above 1: classifier-free guidance")
    verb.add_argument("--eta", type=float, default=0.0, help="noise of ddim, 0 to 1")
    verb.add_argument("--raw", action="store_true", help="the last weights, not their average")
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load the run, generate with a progress bar, save."""
    require_extra()
    import torch

    from stepwell.generate.grid import save_images
    from stepwell.generate.images import Request, generate
    from stepwell.recipes.build import trained

    made = trained(options.directory, averaged=not options.raw)
    total = made.process.timesteps or 1000
    request = Request(
        count=options.count,
        shape=made.data.train.shape,
        solver=options.solver,
        steps=options.steps or (min(50, total) if options.solver == "ddim" else total),
        batch=options.batch,
        seed=options.seed,
        labels=_labels(options.labels, made.denoiser.classes),
        guidance=options.guidance,
        eta=options.eta,
    )
    from rich.progress import track

    batches = track(
        generate(made.denoiser, made.process, request), "generating", -(-options.count // options.batch)
    )
    images = torch.cat(list(batches))
    try:
        save_images(images, options.out)
    except OSError as error:
        raise StepwellError(f"cannot write {options.out}: {error.strerror}.") from error
    print(f"Wrote {len(images)} images to {options.out}")


def _labels(text: str, classes: int) -> tuple[int, ...]:
    if not text:
        return tuple(range(classes))
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise StepwellError(f"--labels must be numbers such as 0,1,2, not {text!r}.") from None
