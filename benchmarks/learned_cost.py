"""What learned samplers cost: time of a step and peak memory against uniform, and how the time grows.

Time is measured as `stepwell.analyze.step_cost` says. Beside it stands what counting predicts, in forward
passes of one batch and by the convention of Kim et al. (2025, Sec. 9) that a training step is four of them.
For their own method they give 1.41x by arithmetic and about 1.5x measured: cited here, not measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import median

import torch
from growth import _images as noise_images
from interleaved import trained
from results import HERE, keep

from stepwell.analyze.step_cost import counted, timed
from stepwell.core.errors import StepwellError

METHODS = (
    "neyman",
    "alignment",
    "neyman+min-snr",
    "gradient-variance",
    "beta-policy",
    "beta-policy:credit=alignment",
    "beta-policy:as_published=true",
    "loss-ema",
)
STRATA, POLICY = ("neyman", "alignment"), ("beta-policy", "beta-policy:as_published=true")
GROWTH: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("T", "process=linear:timesteps={}", ("100", "1000", "4000"), STRATA + POLICY),
    ("|S|", "subset={}", ("1", "3", "10", "30"), POLICY),
    ("f_S (every_steps)", "every_steps={}", ("10", "40", "160"), STRATA + POLICY),
    ("strata", "strata={}", ("5", "20", "80"), STRATA),
    ("batch", "batch={}", ("16", "64", "256"), STRATA + POLICY),
    ("parameters", "model={}", ("micro", "tiny", "small"), STRATA + POLICY),
    ("resolution", "data={}", ("16x16", "32x32"), STRATA + POLICY),
)
"""What is varied, how it is written, its values, and for whom; the rest stays as it is."""
OF_THE_METHOD = ("subset", "every_steps", "strata")
CITED = "Kim et al. 2025 give 1.41x by their own arithmetic and about 1.5x measured for theirs."
THREADS = 2


def peak(settings: dict[str, str]) -> float:
    """The peak memory in MiB of this process, which does nothing but steps of both kinds."""
    torch.set_num_threads(THREADS)
    trained(settings).warm_up()
    # Not getrusage: its maximum begins with that of the process which started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def peaks(settings: dict[str, str], times: int) -> float:
    """The median peak of a few such processes."""
    context = multiprocessing.get_context("spawn")
    found = []
    for _ in range(times):
        with ProcessPoolExecutor(1, mp_context=context) as process:
            found.append(process.submit(peak, settings).result())
    return median(found)


def against_uniform(given: argparse.Namespace) -> Iterator[list[str]]:
    """Time and memory of every method at every batch."""
    for batch in map(int, given.batches.split(",")):
        fixed = {"model": given.model, "batch": str(batch)}
        base = trained({**fixed, "method": "uniform"})
        memory = peaks({**fixed, "method": "uniform"}, given.processes)
        for method in given.methods.split(";"):
            settings = {**fixed, "method": method}
            try:
                subject = trained(settings)
            except StepwellError as error:
                print(f"{method} is left out: {error}")
                continue
            timing = timed(base, subject, given.rounds)
            low, high = timing.interval()
            yield [
                method,
                str(batch),
                f"{timing.ratio():.3f}x",
                f"{low:.3f} to {high:.3f}",
                f"{timing.due_ratio():.2f}x",
                str(subject.period),
                f"{counted(subject.spec, batch):.3f}x",
                f"{peaks(settings, given.processes) / memory:.3f}x",
                str(given.rounds),
            ]


def changed(settings: dict[str, str], change: str) -> dict[str, str]:
    """Settings with one more: of the recipe, or of the method."""
    key, _, value = change.partition("=")
    if key not in OF_THE_METHOD:
        return {**settings, key: value}
    method = settings["method"]
    return {**settings, "method": f"{method}{',' if ':' in method else ':'}{change}"}


def growth(given: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """The time of each method against uniform as one thing varies."""
    for axis, written, values, methods in GROWTH:
        for value in values[:2] if given.quick else values:
            change = written.format(noise_images(folder, value) if axis == "resolution" else value)
            cells = [_cell(given, method, change) if method in methods else "" for method in STRATA + POLICY]
            yield [f"{axis} = {value}", *cells]


def _cell(given: argparse.Namespace, method: str, change: str) -> str:
    fixed = {"model": given.growth_model, "batch": given.growth_batch, "method": method}
    settings = changed(fixed, change)
    try:
        subject = trained(settings)
    except StepwellError as error:
        print(f"{method} with {change} is left out: {error}")
        return "-"
    timing = timed(trained({**settings, "method": "uniform"}), subject, given.growth_rounds)
    return f"{timing.ratio():.3f}x"


def shown(columns: list[str], rows: Iterator[list[str]], record: tuple[str, str, str] | None = None) -> None:
    """Print every row as soon as it is there, and keep it in a record (its name, title and how)."""
    widths = [max(len(column), 18 if number else 30) + 2 for number, column in enumerate(columns)]
    for row in chain([columns], rows):
        print("".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)), flush=True)
        if record is not None and row is not columns:
            command = "python benchmarks/learned_cost.py --record"
            keep(*record, columns, merged(record[0], columns, row), command=command)


def merged(name: str, columns: list[str], row: list[str]) -> list[list[str]]:
    """The rows that are recorded already and this one, which replaces an earlier one of its kind."""
    path = HERE / "records" / f"{name}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    # What tells rows apart: the method and the batch, or what was varied.
    kind = slice(0, 2 if columns[1] == "batch" else 1)
    kept = stored["rows"] if stored.get("columns") == columns else []
    return [*(old for old in kept if old[kind] != row[kind]), row]


def main() -> None:
    """Measure, print, and leave records."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="only to see that it runs; nothing is kept")
    options.add_argument(
        "--rounds",
        type=int,
        default=40,
        help="for a method at a batch: of six steps, or of 32 if it measures nothing",
    )
    options.add_argument("--processes", type=int, default=3, help="for a peak of memory")
    options.add_argument("--model", default="small")
    options.add_argument("--batches", default="64,128")
    options.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    options.add_argument("--growth-rounds", type=int, default=12, help="for a cell of the second table")
    options.add_argument("--growth-model", default="tiny")
    options.add_argument("--growth-batch", default="64")
    options.add_argument("--tables", default="methods,growth")
    options.add_argument("--record", action="store_true", help="leave records for RESULTS.md")
    given = options.parse_args()
    if given.quick:
        given.rounds = given.growth_rounds = 2
        given.model = given.growth_model = "micro"
        given.batches = given.growth_batch = "16"
        given.processes, given.record = 1, False
    torch.set_num_threads(THREADS)
    print(CITED)
    if "methods" in given.tables:
        methods_table(given)
    if "growth" in given.tables:
        growth_table(given)


def methods_table(given: argparse.Namespace) -> None:
    """Every method at every batch."""
    columns = [
        "method",
        "batch",
        "time",
        "95 % interval",
        "a due step",
        "every",
        "counted",
        "memory",
        "rounds",
    ]
    how = (
        f"Time of a training step over one of uniform (`{given.model}`, fashion16, {THREADS} threads). "
        "Steps at which a sampler's probe measures (due) and others were timed apart, each beside a step of "
        "uniform, and combined with the known period: ((every - 1) x other + due) / every, of medians over "
        "rounds of six steps (of 32 for methods that measure nothing); the interval is a bootstrap over "
        "rounds. Counted: what the probe's forward passes predict if a training step is four of them. "
        "Memory: the peak of a whole "
        f"process over uniform's, medians of {given.processes} processes. {CITED} "
        "(`benchmarks/learned_cost.py`)"
    )
    record = ("learned-cost", "What learned samplers cost", how) if given.record else None
    shown(columns, against_uniform(given), record)


def growth_table(given: argparse.Namespace) -> None:
    """One thing varied at a time."""
    columns = ["varied", *STRATA, *POLICY]
    how = (
        "Time of a training step over one of uniform with the same settings, measured as above with "
        f"{given.growth_rounds} rounds a cell: `{given.growth_model}`, fashion16, batch {given.growth_batch} "
        "and the defaults, one thing varied at a time (`benchmarks/learned_cost.py`)."
    )
    title = "How the cost of learned samplers grows"
    with tempfile.TemporaryDirectory() as folder:
        record = ("learned-cost-growth", title, how) if given.record else None
        shown(columns, growth(given, Path(folder)), record)


if __name__ == "__main__":
    main()
