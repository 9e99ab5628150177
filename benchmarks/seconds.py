"""Seconds to the reference's loss: one run at a time on an otherwise idle machine, methods interleaved.

python benchmarks/seconds.py run        needs a machine that does nothing else
python benchmarks/seconds.py table      the record, from what is there
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from results import HERE, keep
from results import main as rewrite_results

from stepwell.cli.progress import StudyProgress
from stepwell.compare.run_study import Workspace, outcomes, run_study
from stepwell.compare.study import Study, load_study
from stepwell.compare.summary import judgements_of

METHODS = ("reference", "auto", "neyman")
RATES = {"linear-4": 4e-3, "linear-64": 8e-3}
HOW = (
    "Two workloads of `stepwell compare law` again, four seeds, one run at a time, one thread each, on an "
    "otherwise idle machine, the methods of a seed one after the other: training seconds (no evaluation, "
    "saving or forecast in them) for the same held-out loss over the "
    "reference's, beside images. Both train at the rates that `law` chose there for the reference and "
    "`auto`: 0.004, 0.008."
)


def study_of(workload: str) -> tuple[Study, Workspace]:
    """A workload of the law at a known rate."""
    words = [f"methods={','.join(METHODS)}", f"workloads={workload}", "seeds=4", f"lr={RATES[workload]}"]
    study = load_study("law", words)
    effort = {**study.effort, "generated": 50, "bits_images": 1}
    places = Workspace(Path("runs/results/seconds"), HERE / "records" / "runs-seconds", workers=1)
    return replace(study, name="seconds", tune=None, effort=effort), places


def run() -> None:
    """Train what is missing."""
    progress = StudyProgress()
    for workload in RATES:
        study, places = study_of(workload)
        run_study(study, places, progress.begin, progress.on_event)


def table() -> None:
    """What is there, as a record."""
    rows = []
    for workload in RATES:
        study, places = study_of(workload)
        found = outcomes(study, places)
        rows += [
            [one.workload, one.method, str(one.images), str(one.seconds), str(one.seconds.seeds)]
            for one in judgements_of(found, study)
        ]
    columns = ["workload", "method", "images for same loss", "seconds for same loss", "seeds"]
    command = "python benchmarks/seconds.py table"
    keep("seconds", "Seconds to the same loss", HOW, columns, rows, found[0].environment, command)
    rewrite_results()
    print("\n".join(" | ".join(row) for row in rows))


if __name__ == "__main__":
    {"run": run, "table": table}[sys.argv[1]]()
