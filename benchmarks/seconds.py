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
"""What the study `law` tuned for the reference and for auto alike; neyman takes it over."""
HOW = (
    "Two workloads of `stepwell compare law` again, four seeds, one run at a time and one thread each on an "
    "otherwise idle machine, the methods of a seed one after the other: training seconds (evaluation and "
    "saving not counted, measurements for the forecast neither) for the same held-out loss over the "
    "reference's, beside images. Every method trains at the rate that was best for the reference."
)


def study_of() -> tuple[Study, Workspace]:
    """Two workloads of the law at known rates."""
    study = load_study("law", [f"methods={','.join(METHODS)}", f"workloads={','.join(RATES)}", "seeds=4"])
    rates = {f"{workload}/{method}": rate for workload, rate in RATES.items() for method in METHODS}
    effort = {**study.effort, "generated": 50, "bits_images": 1}
    places = Workspace(Path("runs/results/seconds"), HERE / "records" / "runs-seconds", workers=1)
    return replace(study, name="seconds", tune=None, rates=rates, effort=effort), places


def run() -> None:
    """Train what is missing."""
    study, places = study_of()
    progress = StudyProgress()
    run_study(study, places, progress.begin, progress.on_event)


def table() -> None:
    """What is there, as a record."""
    study, places = study_of()
    found = outcomes(study, places)
    rows = [
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
