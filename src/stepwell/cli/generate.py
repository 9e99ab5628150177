"""`stepwell generate`: images from a trained run.

The same command again continues where it stopped. `torchrun --nproc_per_node N -m stepwell generate ...`
shares the work among N processes; the images are the same.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.options import require_extra
from stepwell.core.errors import StepwellError
from stepwell.generate.solvers import SOLVERS

if TYPE_CHECKING:
    from stepwell.generate.images import Request
    from stepwell.generate.job import ImageJob
    from stepwell.recipes.experiment import Experiment


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("generate", help="make images from a run", description=__doc__)
    verb.add_argument("directory", type=Path, metavar="RUN", help="a run directory")
    verb.add_argument("--out", type=Path, required=True, help="sheet.png, images.npz, or a folder")
    verb.add_argument("-n", "--count", type=int, default=64)
    verb.add_argument("--solver", default=None, help=f"{_solvers()}; by default the recipe's")
    verb.add_argument("--steps", type=int, default=None, help="denoising steps; by default the recipe's")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--batch", type=int, default=64)
    verb.add_argument("--labels", default=None, help="classes to cycle through, such as 0,1,2")
    verb.add_argument("--guidance", type=float, default=None, help="above 1: classifier-free guidance")
    verb.add_argument("--eta", type=float, default=0.0, help="noise of ddim, 0 to 1")
    verb.add_argument(
        "--checkpoint", type=int, metavar="STEP", help="the weights after this step; the newest"
    )
    verb.add_argument("--raw", action="store_true", help="the last weights, not their average")
    verb.add_argument(
        "--dry-run", action="store_true", help="say what it would make and how long it would take"
    )
    verb.set_defaults(run=run)


def _solvers() -> str:
    return ", ".join(
        f"{name} ({f'{solver.steps} steps' if solver.steps else 'all timesteps'})"
        + ("" if solver.discrete else " in continuous time")
        for name, solver in SOLVERS.items()
    )


def run(options: argparse.Namespace) -> None:
    """Load the run and write its images, or say what that would take."""
    require_extra()
    from stepwell.core.ranks import own_device, ranks
    from stepwell.generate.job import ImageJob, make_writer
    from stepwell.recipes.experiment import trained

    with ranks() as group:
        made = trained(options.directory, averaged=not options.raw, step=options.checkpoint)
        job = ImageJob(made.denoiser.to(own_device()), made.process, requested(made, options), made.decode)
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
            made = write_images(job, out, group, progress)
            rate = progress.rate
    except OSError as error:
        raise StepwellError(
            f"cannot write {out}: {error.strerror or error}. The same command continues what is there."
        ) from error
    if group.rank == 0:
        ours = f", {rate:.1f} images/s" if made else ""
        before = own - made
        kept = f" ({before} of them were there already)" if before else ""
        shared = f", by {group.world} processes" if group.world > 1 else ""
        print(f"Wrote {job.request.count} images to {out}{kept}{ours}{shared}")


def requested(made: Experiment, options: argparse.Namespace) -> Request:
    """What the recipe generates, changed by the options."""
    from stepwell.core import require

    request = made.request(options.count, batch=options.batch, seed=options.seed)
    if options.solver is None and request.solver != made.recipe.solver:
        print(f"{request.solver} makes them: the recipe's {made.recipe.solver} is of discrete processes.")
    if options.solver is not None and options.solver != request.solver:
        solver = SOLVERS[require.one_of("solver", options.solver, tuple(SOLVERS))]
        steps = solver.default_steps(made.process.timesteps or 1000)
        request = replace(request, solver=options.solver, steps=steps)
    changes = {
        "steps": options.steps,
        "guidance": options.guidance,
        "labels": None if options.labels is None else _labels(options.labels),
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(request, eta=options.eta, **given)


def _labels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise StepwellError(f"--labels must be numbers such as 0,1,2, not {text!r}.") from None


def forecast(job: ImageJob, out: Path, world: int) -> str:
    """What it would make, and how long that takes."""
    from stepwell.generate.job import cost_of

    request, cost = job.request, cost_of(job, world)
    solver, guided = SOLVERS[request.solver], request.guidance != 1
    size = "x".join(map(str, job.image_shape()))
    lines = [
        f"{request.count:,} images of {size} to {out}, seed {request.seed}",
        f"{request.solver} ({solver.summary}; {solver.source}), {request.steps} steps",
        f"{cost.evaluations:,} network evaluations an image, {cost.evaluations * request.count:,} in all"
        + (f" (guidance {request.guidance:g} doubles them)" if guided else ""),
        f"about {_duration(cost.seconds)} here, at {cost.batch_seconds:.3g} s for a batch of "
        f"{len(request.batches()[0])}" + (f" and {world} processes" if world > 1 else ""),
    ]
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
