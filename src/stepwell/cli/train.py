"""`stepwell train`: from a workload and a method to a run directory."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.columns import folded, labelled
from stepwell.cli.launcher import SLURM, add_launcher, job_of, require_no_job
from stepwell.cli.options import add_command, require_extra, sign_of_life
from stepwell.core.errors import StepwellError, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepwell.recipes.plan import Plan
    from stepwell.recipes.schema import Recipe

_EXAMPLES = """examples:
  stepwell train fashion16 method=min-snr
  stepwell train fashion16 method=logit-normal:mean=0.5+min-snr process=cosine steps=2000 seed=1 out=runs/try
  stepwell train images data=my/photos size=32
  stepwell train images data=my/photos size=32 super_resolution=4
  stepwell train images data=my/photos size=32 captions=true text_encoder=FOLDER model=text-small
  stepwell train fashion16 from=runs/base data=mine.npz lr=1e-3 lora=8
  stepwell train images data=my/photos size=32 from=FOLDER      a U-Net or DiT that diffusers saved
  stepwell train cifar10-ddpm method=neyman --dry-run      what it costs, before there are data or a GPU
  torchrun --nproc_per_node 2 -m stepwell train fashion16 accumulate=2
  stepwell train imagenet256-uvit data=PATH out=/shared/run --launcher slurm --nodes 2 --gpus 8

Run the same command again to resume: the result is bit for bit that of a run never stopped.
`stepwell train WORKLOAD --settings` lists every setting.
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(
        verbs,
        "train",
        run,
        help="train a workload with a method",
        description="Train a workload, shipped or a .toml of your own, with any method and settings.",
        examples=_EXAMPLES,
    )
    verb.add_argument(
        "workload", nargs="?", help="a name that `stepwell ls workloads` prints, a .toml file, or a run"
    )
    verb.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="method, data, steps, lr, out, ...; the last one of a key counts",
    )
    verb.add_argument("--dry-run", action="store_true", help="print the resolved recipe and what it costs")
    verb.add_argument("--resume", metavar="RUN", help="go on with a run; the same as `stepwell train RUN`")
    verb.add_argument("--inexact", action="store_true", help="resume with other processes or data")
    verb.add_argument("--settings", action="store_true", dest="explain", help="list every setting and stop")
    cluster = add_launcher(verb)
    cluster.add_argument("--nodes", type=int, help="machines of the job (1)")
    cluster.add_argument("--processes", type=int, help="on each node; one for each GPU by default")
    cluster.add_argument(
        "--requeue",
        action="store_true",
        help="inside a job: at SIGUSR1 or SIGTERM save, and put the job back into the queue",
    )


def run(options: argparse.Namespace) -> None:
    """Resolve, then train or explain."""
    require_extra()
    from stepwell.recipes.load import load, with_out

    workload, settings = options.workload, options.settings
    if options.resume:
        workload, settings = options.resume, [*([workload] if workload else []), *settings]
    if not workload:
        raise StepwellError("name a workload (`stepwell ls workloads`), a .toml file or a run to resume.")
    # A dry run also counts workloads whose data are not named yet.
    needed = not (options.dry_run or options.explain)
    plan = with_out(load(workload, settings, data_needed=needed, begin=_begin if needed else None), workload)
    if options.launcher == SLURM:
        _submit(plan, workload, settings, options)
        return
    require_no_job(options)
    if options.dry_run:
        _dry_run(plan)
    elif options.explain:
        _explain(plan.recipe)
    elif options.requeue:
        from stepwell.recipes.slurm import Stopped, requeueing

        with requeueing():
            if not _train(plan, options.inexact):
                raise Stopped
    elif not _train(plan, options.inexact):
        # Interrupted, saved and said so: a script must not take it for finished.
        raise SystemExit(130)


def _submit(plan: Plan, workload: str, settings: Sequence[str], options: argparse.Namespace) -> None:
    """Write the batch script of a run and submit it, or show it."""
    from stepwell.recipes.slurm import job_name, queued, submit, torchrun_script
    from stepwell.runs.io import write_atomic

    out = Path(plan.recipe.out)
    words = [word for word in settings if not word.startswith("out=")]
    flags = ["--inexact"] if options.inexact else []
    words = ["train", workload, *words, f"out={out}", "--requeue", *flags]
    name = job_name(out)
    script = torchrun_script(words, job_of(options), name, out / "slurm-%j.log")
    if options.dry_run:
        print(script, end="")
        return
    if name in queued():
        print(f"{out} is in the queue already, as job {queued()[name]}.")
        return
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "slurm.sh", script.encode())
    print(f"{out}: job {submit(out / 'slurm.sh')}. Next: squeue --me; stepwell watch {out}")


def _begin(recipe: Recipe) -> None:
    sign_of_life(f"{recipe.method} on {recipe.data}")


def _dry_run(plan: Plan) -> None:
    from stepwell.recipes.dry_run import report

    cost = report(plan)
    # Every rank counts and measures, one of them prints.
    if os.environ.get("RANK", "0") == "0":
        _explain(plan.recipe)
        print(folded(f"\n{cost}"))


def _train(plan: Plan, inexact: bool) -> bool:
    """Train; returns whether the run came to its end."""
    from stepwell.cli.progress import TrainingProgress
    from stepwell.recipes.run import run_plan

    recipe = plan.recipe
    with TrainingProgress(recipe.steps) as progress:
        at = run_plan(plan, inexact=inexact, say=progress.say, progress=progress.at)
    if not at.finished(recipe.limit):
        return False
    if os.environ.get("RANK", "0") == "0":
        for line in _ending(Path(recipe.out), at.step, at.clock.seconds):
            print(line)
    return True


def _ending(out: Path, step: int, seconds: float) -> Iterator[str]:
    """What a run came to, and what to do with it."""
    from stepwell.recipes.run import sample_path
    from stepwell.runs.directory import records
    from stepwell.runs.metrics import loss

    yield f"{out}: {step} steps, {seconds:.0f} training seconds."
    simple = loss("simple")
    evaluations = [record for record in records(out) if record["kind"] == "evaluation"]
    # A loss that was not finite is recorded as null.
    losses = {r["step"]: r[simple.key] for r in evaluations if r.get(simple.key) is not None}
    if losses:
        best = min(losses, key=losses.__getitem__)
        lowest = "its lowest" if best == max(losses) else f"the lowest was {losses[best]:.4f} at step {best}"
        yield f"Held-out {simple.title} {losses[max(losses)]:.4f} (EMA weights), {lowest}."
    if (samples := sample_path(out, step)).exists():
        yield f"Samples: {samples}"
    yield f"Next: stepwell evaluate {out}; stepwell generate {out} --out images.png; stepwell report {out}"


def _explain(recipe: Recipe) -> None:
    from stepwell.recipes.schema import SETTINGS

    for name, setting in SETTINGS.items():
        value = shortened(repr(getattr(recipe, name)))
        print(labelled(f"{name:18} = {value:24} # ", setting.meaning, below="    # "))
