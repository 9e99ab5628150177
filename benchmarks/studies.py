"""`make results`: run what is missing of the shipped studies, keep thin records, and say what they mean.

    python benchmarks/studies.py                 table1, table4 and zero-cost
    python benchmarks/studies.py fig7            any shipped study
    python benchmarks/studies.py --only-tables   no run, only tables from the records that are there
    python benchmarks/studies.py table2 data=runs/flowers-latents extractor=resnet20-cifar10   (made_data.py)

Studies share their runs: one that another has made is not made again.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from paper_tables import keep_against_paper
from results import ELSEWHERE, HERE, keep
from results import main as rewrite_results

from stepwell.cli.progress import StudyProgress
from stepwell.compare.judgement import Judgement
from stepwell.compare.pool import cores
from stepwell.compare.run_study import Workspace, outcomes, run_study, summary_of
from stepwell.compare.study import Study, Tuning, load_study
from stepwell.compare.summary import judgements_of
from stepwell.compare.tuning import tuned
from stepwell.compare.views import Summary
from stepwell.recipes.method import first_words, study_files
from stepwell.runs import portable

RECORDS = HERE / "records" / "runs"
APART = (
    "table2",
    "table3",
    "score-based",
    "finetune",
    "small-batch",
    "densities",
    "fig1",
    "fig7",
    "subset-size",
)
"""Studies of data, networks, processes or lengths of their own, whose runs have records of their own."""
STUDIES = ("table1", "table4", "zero-cost")


def keep_tables(study: Study, words: list[str], summary: Summary, judgements: list[Judgement]) -> None:
    """Records of the tables of a study, changed by `words`, from which RESULTS.md is made."""
    command = shlex.join(["python", "benchmarks/studies.py", study.name, *words])
    recipe = " ".join(f"{key}={value}" for key, value in study.settings.items())
    tuned = "" if study.tune is None else _tuned(study.tune)
    about = f"`stepwell compare {study.name}`: {recipe}; seeds {', '.join(map(str, study.seeds))}.{tuned} "
    title = first_words(study_files()[study.name]).rstrip(".")
    notes = " ".join([EQUAL_SECONDS if "seconds" in study.settings else SECONDS, *summary.notes])
    head = about + "".join(f"\n- {sentence}" for sentence in summary.verdict) + f"\n\n{notes}"
    tables = [] if summary.overall is None else [(title, summary.overall)]
    tables += [(f"{study.name}: {workload.name}", workload.table) for workload in summary.workloads]
    for place, (name, table) in enumerate(tables):
        how = f"{head}\n\n{table.caption}".strip()
        head = ""
        columns, rows = list(table.columns), table.text_rows()
        keep(f"{study.name}-{place}", name, how, columns, rows, summary.environment, command)
    keep_against_paper(study.name, judgements, summary.environment, command)


def _tuned(tune: Tuning) -> str:
    rates = ", ".join(f"{rate:g}" for rate in tune.lr)
    return (
        f" Learning rate chosen for each method alike among {rates} ({tune.workload or 'first workload'}, "
        f"seed {', '.join(map(str, tune.seeds))}, {tune.share:g} of the length, by the objective that the "
        "method is judged by)."
    )


SECONDS = (
    "Studies share runs, made hours apart on a machine that had other work too: compare images here, "
    "not seconds; what a step costs is measured apart."
)
EQUAL_SECONDS = (
    "Every run trained for the same time, one thread each, as many at once as there are cores. Seconds say "
    "something only if the machine had no other work: LOG.md says what it had."
)


def main() -> None:
    """Run, keep, rewrite."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    settings = [word for word in words if "=" in word]
    if found := portable.places(" ".join(settings)):
        raise SystemExit(f"{found[0]} is only on this machine, and the records would name it. {ELSEWHERE}")
    for name in [word for word in words if "=" not in word] or STUDIES:
        study = load_study(name, settings)
        records = RECORDS.with_name(f"runs-{name}") if name in APART else RECORDS
        places = Workspace(Path("runs/results") / name, records, cores())
        if "--only-tables" in sys.argv:
            study = tuned(study, places.out, places.records).of(study)
        else:
            progress = StudyProgress()
            study = run_study(study, places, progress.begin, progress.on_event)
        summary = summary_of(study, places)
        keep_tables(study, settings, summary, judgements_of(outcomes(study, places), study))
        print("\n".join(summary.verdict), flush=True)
    rewrite_results()


if __name__ == "__main__":
    main()
