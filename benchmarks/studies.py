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

from results import ELSEWHERE, HERE, keep
from results import main as rewrite_results

from stepwell.cli.progress import StudyProgress
from stepwell.compare.judgement import Judgement
from stepwell.compare.pool import cores
from stepwell.compare.run_study import Workspace, outcomes, run_study, summary_of
from stepwell.compare.stats import Ratio
from stepwell.compare.study import Study, Tuning, load_study
from stepwell.compare.summary import judgements_of
from stepwell.compare.tuning import tuned
from stepwell.compare.views import Summary
from stepwell.recipes.method import first_words, study_files
from stepwell.runs import portable
from stepwell.runs.metrics import FRECHET

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
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    # Kim et al. 2025, Tables 1 to 4: FID after 0.2 M steps (Table 2: 100 epochs), and the last one told.
    "linear": {
        "uniform": (8.16, 3.19),
        "p2": (6.45, 4.70),
        "min-snr": (4.40, 3.16),
        "logit-normal": (5.38, 3.60),
        "speed-legacy": (4.08, 3.57),
        "beta-policy:as_published=true": (3.99, 2.94),
        "beta-policy:credit=alignment": (3.99, 2.94),
        "gradient-variance": (21.3, 11.3),
    },
    "cosine": {
        "uniform": (3.74, 3.14),
        "p2": (5.64, 5.04),
        "min-snr": (3.51, 3.07),
        "logit-normal": (4.55, 3.78),
        "speed-legacy": (4.12, 3.57),
        "beta-policy:as_published=true": (3.87, 3.00),
        "beta-policy:credit=alignment": (3.87, 3.00),
    },
    "quadratic": {
        "uniform": (4.04, 3.01),
        "p2": (4.93, 3.66),
        "min-snr": (4.76, 4.17),
        "logit-normal": (4.78, 3.51),
        "speed-legacy": (3.99, 3.52),
        "beta-policy:as_published=true": (3.96, 2.95),
        "beta-policy:credit=alignment": (3.96, 2.95),
    },
    "latents": {
        "uniform": (12.87, 8.72),
        "p2": (10.69, 6.88),
        "min-snr": (10.87, 6.83),
        "logit-normal": (12.81, 7.28),
        "speed-legacy": (14.40, 7.98),
        "beta-policy:as_published=true": (10.94, 6.62),
    },
    "latents-of-classes": {
        "min-snr": (11.5, 4.54),
        "beta-policy:as_published=true+min-snr": (11.3, 4.33),
    },
}


def against_paper(judgements: list[Judgement]) -> list[list[str]]:
    """Every method's distance over its baseline's, beside the paper's FIDs, and whether they agree."""
    rows = []
    for judgement in judgements:
        theirs = PAPER.get(judgement.workload, {})
        if judgement.method not in theirs or judgement.against not in theirs:
            continue
        early, last = (
            one / base for one, base in zip(theirs[judgement.method], theirs[judgement.against], strict=True)
        )
        distance = judgement.scores[FRECHET.key]
        cells = [f"{early:.2f}", f"{last:.2f}", str(distance), _agrees(distance, early)]
        rows.append([judgement.workload, judgement.method, *cells])
    return rows


def _agrees(here: Ratio, paper: float) -> str:
    """Only what three seeds are sure of can agree or disagree."""
    if not (here.lower or here.higher):
        return "undecided here"
    return "agrees" if here.lower == (paper < 1) else "DISAGREES"


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
    rows = against_paper(judgements)
    if rows:
        columns = ["schedule", "method", "paper, early", "paper, end", "here", "direction"]
        name = f"{study.name} against the paper's claims"
        keep(f"{study.name}-paper", name, BESIDE, columns, rows, summary.environment, command)


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
BESIDE = (
    "FID of Kim et al. (50,000 images) over that of their baseline, early and at the end; here the Fréchet "
    "distance over the baseline's, 95 % interval, on the features named above, which are not Inception's. "
    "Whether the directions agree: with the early figure, since these runs are short, and only where the "
    "interval excludes 1. The paper's own method may stand in two rows: as its code has it, and with the "
    "corrected credit."
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
