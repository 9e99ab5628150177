"""`stepwell report`: write runs as one HTML page that needs no other file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.columns import folded, labelled
from stepwell.cli.options import add_command, check_picture, path_of, sign_of_life
from stepwell.core.errors import StepwellError
from stepwell.runs.io import write_atomic

if TYPE_CHECKING:
    from stepwell.compare.views import Summary


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(verbs, "report", run, help="write runs as one HTML page", description=__doc__)
    verb.add_argument(
        "directories", nargs="+", type=path_of, metavar="DIR", help="a run, or a directory of runs"
    )
    verb.add_argument("--out", type=path_of, default=Path("report.html"), help="the file (report.html)")
    verb.add_argument(
        "--grids",
        type=path_of,
        metavar="FILE.png",
        help="also the images of every method from the same noise",
    )


def run(options: argparse.Namespace) -> None:
    """Summarise, render, write."""
    sign_of_life(f"reading {', '.join(map(str, options.directories))}")
    from stepwell.compare.summary import summarise

    if options.grids is not None:
        check_picture(options.grids)
    summary = summarise(options.directories)
    size = write_report(summary, options.out)
    runs = sum(len(workload.runs) for workload in summary.workloads)
    print(folded(summary.verdict[0] if summary.verdict else summary.title))
    print(f"{options.out}: {runs} {'run' if runs == 1 else 'runs'}, {size / 1000:.0f} kB")
    if options.grids is not None:
        from stepwell.compare.grids import save_grids

        save_grids(summary, options.grids)
        print(f"{options.grids}: images side by side")
    for left in summary.left_out:
        print(labelled("left out: ", f"{left.path}: {left.reason}"))


def write_report(summary: Summary, path: Path) -> int:
    """Write the page; returns its size in bytes."""
    from stepwell.compare.report.page import render

    content = render(summary).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise StepwellError(f"could not write {path}: {error.strerror}.") from error
    return len(content)
