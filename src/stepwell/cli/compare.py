"""`stepwell compare`: train several methods over several seeds, and report which one wins and by how much."""

from __future__ import annotations

import argparse
import json
import signal
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepwell.cli import columns
from stepwell.cli.launcher import LOCAL, SLURM, add_launcher, job_of, require_no_job, require_submitit
from stepwell.cli.options import add_command, add_json, begin, path_of, whole
from stepwell.core.errors import StepwellError
from stepwell.core.reading import place
from stepwell.runs.io import finite

if TYPE_CHECKING:
    from stepwell.compare.run_study import Workspace
    from stepwell.compare.study import Study
    from stepwell.compare.views import Summary, Table

_EXAMPLES = """examples:
  stepwell compare fashion16 methods=uniform,min-snr,neyman seeds=3
  stepwell compare images data=my/photos size=32 methods=uniform,neyman steps=5000 out=runs/mine
  stepwell compare table1                        a shipped study: `stepwell ls studies`
  stepwell compare mine.toml tune=1e-3,2e-3,4e-3
  stepwell compare mine.toml out=/shared/mine --launcher slurm --partition gpu --memory 16G --time 2:00:00

Run the same command again after a stop: only what is missing runs. Every run is an ordinary run directory.
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(
        verbs,
        "compare",
        run,
        help="train several methods over several seeds and say which one wins",
        description="Train workloads x methods x seeds, score every run, and report which method wins.",
        examples=_EXAMPLES,
    )
    verb.add_argument(
        "study", metavar="STUDY|WORKLOAD", help="a name that `stepwell ls` prints, or a .toml file"
    )
    verb.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="methods, seeds, baseline, metric (simple, bound, min-snr, ...), tune, out; or a recipe setting",
    )
    verb.add_argument(
        "--workers",
        type=whole(1024),
        help="runs at the same time: one per core; with SLURM 100 jobs in the queue",
    )
    verb.add_argument(
        "--records", type=path_of, metavar="DIR", help="keep a thin copy of every finished run there"
    )
    verb.add_argument("--report", type=path_of, metavar="FILE.html", help="write the report too")
    verb.add_argument("--dry-run", action="store_true", help="list the runs, and which are there already")
    add_json(verb)
    add_launcher(verb)


def run(options: argparse.Namespace) -> None:
    """Load the study, run what is missing, print the summary."""
    begin(f"comparing {options.study}")
    from stepwell.compare.run_study import Workspace
    from stepwell.compare.study import load_study

    outs = [word.removeprefix("out=") for word in options.settings if word.startswith("out=")]
    study = load_study(options.study, [word for word in options.settings if not word.startswith("out=")])
    workers = _default_workers(options) if options.workers is None else options.workers
    if workers < 1:
        raise StepwellError(f"--workers {workers}: at least one run at a time is needed.")
    out = ["", *outs][-1] or f"runs/{study.name}"
    workspace = Workspace(place(out), options.records, workers)
    if options.launcher == SLURM:
        require_submitit()
        from stepwell.compare.slurm import on_slurm

        workspace.launch = on_slurm(job_of(options), workspace.out / SLURM)
    else:
        require_no_job(options)
    if options.dry_run:
        _list(study, workspace)
    else:
        _report(_run(study, workspace, options), workspace, options)


def _default_workers(options: argparse.Namespace) -> int:
    from stepwell.compare.pool import cores
    from stepwell.compare.slurm import QUEUED

    return QUEUED if options.launcher == SLURM else cores()


def _list(study: Study, workspace: Workspace) -> None:
    from stepwell.compare.trials import final_trials, require_sound
    from stepwell.compare.tuning import tuned

    require_sound(study)
    known = tuned(study, workspace.out, workspace.records)
    for trial in [*known.trials, *final_trials(known.of(study), workspace.out, workspace.records)]:
        there = "there" if trial.outcome() is not None else "missing"
        print(columns.labelled(f"{there:8} ", f"{trial}: {trial.recipe.steps} steps -> {trial.recipe.out}"))


def _run(study: Study, workspace: Workspace, options: argparse.Namespace) -> Study:
    """Run what is missing; Ctrl-C, SIGTERM and a lost terminal let the runs save first."""
    from stepwell.cli.progress import StudyProgress
    from stepwell.compare.run_study import run_study
    from stepwell.train.loop import SIGNALS

    asked = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _as_interrupt) for number in asked}
    progress = StudyProgress(options.json)
    interrupted = False
    try:
        return run_study(study, workspace, progress.begin, progress.on_event)
    except KeyboardInterrupt:
        interrupted = True
        what = "runs in progress were saved" if options.launcher == LOCAL else "submitted jobs go on"
        progress.say(f"Stopped; {what}. Run the same command again to continue.")
        raise SystemExit(130) from None
    finally:
        # After an interruption signals stay ignored: a second one must not change how this ends.
        for number, handler in () if interrupted else before.items():
            signal.signal(number, handler)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    """Stop once: a second signal would not let the runs save."""
    from stepwell.train.loop import SIGNALS

    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _report(study: Study, workspace: Workspace, options: argparse.Namespace) -> None:
    from stepwell.compare.run_study import summary_of

    summary = summary_of(study, workspace)
    if options.report is not None:
        from stepwell.cli.report import write_report

        write_report(summary, options.report)
    print(json.dumps(finite(summary.plain())) if options.json else columns.folded(text(summary)))
    if not options.json:
        print(f"Next: stepwell report {workspace.out}; stepwell watch {workspace.out}")
    if workspace.failures:
        raise StepwellError(
            f"{len(workspace.failures)} runs failed, the others are scored: "
            + "; ".join(f"{one.path}: {one.reason}" for one in workspace.failures[:3])
        )


def text(summary: Summary) -> str:
    """The verdict, the tables and how to read them, for a terminal."""
    parts = ["", *summary.verdict, ""]
    if summary.overall is not None:
        parts += [*_rows(summary.overall), ""]
    for workload in summary.workloads:
        parts += [workload.name, *_rows(workload.table), ""]
    parts += [f"- {note}" for note in summary.notes]
    parts += [f"- left out: {one.reason}" for one in summary.left_out]
    return "\n".join(parts)


def _rows(table: Table) -> list[str]:
    """The columns that are not empty, aligned; the leading ones if a terminal is too narrow for all."""
    every = _aligned(table)
    if len(every) <= 1 + len(table.rows) or not table.leading:
        return every
    return [*_aligned(table.led()), "(All columns: in a wider terminal, in the report, or by --json.)"]


def _aligned(table: Table) -> list[str]:
    shown = table.without_empty_columns()
    return columns.table([list(shown.columns), *shown.text_rows()])
