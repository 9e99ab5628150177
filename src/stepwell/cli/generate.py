"""`stepwell generate`: images from a trained run.

The same command again continues where it stopped. `torchrun --nproc_per_node N -m stepwell generate ...`
shares the work among N processes; the images are the same.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.options import add_command, begin, number, path_of, whole
from stepwell.core.errors import StepwellError
from stepwell.generate.solvers import SOLVERS

if TYPE_CHECKING:
    from stepwell.generate.images import Request
    from stepwell.generate.job import ImageJob
    from stepwell.generate.super_resolution import OwnImages
    from stepwell.recipes.experiment import Experiment


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(verbs, "generate", run, help="make images from a run", description=__doc__)
    verb.add_argument("directory", type=path_of, metavar="RUN", help="a run directory")
    verb.add_argument("--out", type=path_of, required=True, help="sheet.png, images.npz, or a folder")
    verb.add_argument(
        "-n",
        "--count",
        type=whole(100_000_000),
        default=None,
        help="how many images (64, or one for each --input)",
    )
    verb.add_argument(
        "--input",
        type=path_of,
        metavar="PATH",
        help="super-resolution: your picture, or a folder of them, that the images are made from",
    )
    verb.add_argument("--solver", default=None, help=f"{_solvers()}; by default the recipe's")
    verb.add_argument(
        "--steps", type=whole(100_000), default=None, help="denoising steps; by default the recipe's"
    )
    verb.add_argument("--seed", type=whole(least=0), default=0, help="seed of the noise (0)")
    verb.add_argument("--batch", type=whole(65_536), default=64, help="images at once (64)")
    verb.add_argument("--labels", default=None, help="classes to cycle through, by number or name: 0,1,2")
    verb.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="what to make, if the run has captions; several times to take turns",
    )
    verb.add_argument("--guidance", type=number, default=None, help="above 1: classifier-free guidance")
    verb.add_argument("--eta", type=number, default=0.0, help="noise of ddim, 0 to 1")
    verb.add_argument(
        "--checkpoint",
        type=whole(),
        metavar="STEP",
        help="the weights after this step; by default the newest",
    )
    verb.add_argument("--raw", action="store_true", help="use the raw weights instead of EMA")
    verb.add_argument(
        "--dry-run", action="store_true", help="print what it would make and how long that would take"
    )


def _solvers() -> str:
    return ", ".join(
        f"{name} ({f'{solver.steps} steps' if solver.steps else 'all timesteps'})"
        + ("" if solver.discrete else " in continuous time")
        for name, solver in SOLVERS.items()
    )


def run(options: argparse.Namespace) -> None:
    """Load the run and write its images, or print what that would take."""
    begin(f"images of {options.directory}")
    from stepwell.core.ranks import own_device, ranks
    from stepwell.generate.job import ImageJob, make_writer
    from stepwell.recipes.experiment import trained

    with ranks() as group:
        run = trained(options.directory, averaged=not options.raw, step=options.checkpoint)
        job = ImageJob(run.denoiser.to(own_device()), run.process, requested(run, options), run.decode)
        if not options.dry_run:
            _write(job, options.out, group)
        elif group.rank == 0:
            make_writer(job, options.out, group)
            print(forecast(job, options.out, group.world))


def _write(job: ImageJob, out: Path, group: Any) -> None:
    from stepwell.cli.progress import ImagesProgress
    from stepwell.core.ranks import share
    from stepwell.generate.job import write_images

    own = sum(map(len, share(job.request.batches(), group)))
    try:
        with ImagesProgress(own, silent=group.rank > 0) as progress:
            new = write_images(job, out, group, progress)
            speed = f", {progress.rate:.1f} images/s" if new else ""
    except OSError as error:
        raise StepwellError(
            f"cannot write {out}: {error.strerror or error}. The same command continues what is there."
        ) from error
    if group.rank == 0:
        kept = f" ({own - new} of them were there already)" if new < own else ""
        shared = f", by {group.world} processes" if group.world > 1 else ""
        print(f"Wrote {job.request.count} images to {out}{kept}{speed}{shared}")


def requested(run: Experiment, options: argparse.Namespace) -> Request:
    """The images that the recipe generates, changed by the options."""
    from stepwell.core import require

    own = None if options.input is None else _own_images(options.input, run)
    default = 64 if own is None else len(own.pixels)
    count = default if options.count is None else options.count
    request = run.request(count, batch=options.batch, seed=options.seed)
    if own is not None:
        request = replace(request, low_resolution=own)
    if options.solver is None and request.solver != run.recipe.solver:
        print(f"Images are generated by {request.solver}: {run.recipe.solver} needs discrete timesteps.")
    if options.solver is not None and options.solver != request.solver:
        solver = SOLVERS[require.one_of("solver", options.solver, tuple(SOLVERS))]
        steps = solver.default_steps(run.process.timesteps or 1000)
        request = replace(request, solver=options.solver, steps=steps)
    changes = {"steps": options.steps, "guidance": options.guidance, "labels": _labels(options.labels, run)}
    chosen = {name: value for name, value in changes.items() if value is not None} | _prompts(options, run)
    return replace(request, eta=options.eta, **chosen)


def _prompts(options: argparse.Namespace, run: Experiment) -> dict[str, Any]:
    """The prompts as labels of the network, which is told them."""
    if run.recipe.captions and options.labels is not None:
        raise StepwellError("--labels names classes, and this run has captions: write --prompt TEXT.")
    if not options.prompt:
        return {}
    if not run.recipe.captions:
        raise StepwellError(
            f"--prompt: {options.directory} was trained without captions, so it can follow no text. Leave "
            "--prompt out, or train with captions=true."
        )
    from stepwell.recipes.captions import encoder_of, tell_prompts

    for note in tell_prompts(run.denoiser, encoder_of(run.recipe), options.prompt):
        print(note)
    return {"prompts": tuple(options.prompt), "labels": tuple(range(len(options.prompt)))}


def _own_images(path: Path, run: Experiment) -> OwnImages:
    """Pictures of the user at the low resolution that a run was trained on."""
    from stepwell.data.folder import pictures
    from stepwell.generate.super_resolution import OwnImages

    factor = run.recipe.super_resolution
    if not factor:
        raise StepwellError(
            f"--input {path}: this run was not trained to enlarge pictures. Train one with "
            "super_resolution=4, or leave --input out."
        )
    if not path.exists():
        raise StepwellError(f"--input {path}: there is no such file or folder.")
    channels, height, width = run.data.train.shape
    shape = channels, height // factor, width // factor
    pixels, notes = pictures(path, shape)
    print(
        *notes,
        f"Pictures are cropped and reduced to {shape[2]}x{shape[1]}, then enlarged to {width}x{height}.",
        sep="\n",
    )
    return OwnImages(pixels, factor)


def _labels(text: str | None, run: Experiment) -> tuple[int, ...] | None:
    """The numbers of classes that are given by number or by name."""
    if text is None:
        return None
    names = {name.lower(): number for number, name in enumerate(run.data.class_names)}
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not word.isdecimal() and word.lower() not in names]
    if wrong:
        known = (
            f"names of classes ({', '.join(names)})" if names else "not names, which these data have none of"
        )
        raise StepwellError(
            f"--labels {text}: {wrong[0]!r} is no class. Write numbers such as 0,1,2, or {known}."
        )
    return tuple(int(word) if word.isdecimal() else names[word.lower()] for word in words)


def forecast(job: ImageJob, out: Path, world: int) -> str:
    """The images that it would make, and how long that takes."""
    from stepwell.generate.job import cost_of
    from stepwell.recipes.dry_run import duration

    request, cost = job.request, cost_of(job, world)
    solver, guided = SOLVERS[request.solver], request.guidance != 1
    size = "x".join(map(str, job.image_shape()))
    lines = [
        f"{request.count:,} images of {size} to {out}, seed {request.seed}",
        f"{request.solver} ({solver.summary}; {solver.source}), {request.steps} steps",
        f"{cost.evaluations:,} network evaluations an image, {cost.evaluations * request.count:,} in all"
        + (f" (guidance {request.guidance:g} doubles them)" if guided else ""),
        f"about {duration(cost.seconds)} here, at {cost.batch_seconds:.3g} s for a batch of "
        f"{len(request.batches()[0])}" + (f" and {world} processes" if world > 1 else ""),
    ]
    return "\n".join(lines)
