"""The parts of the page that are text and tables; whatever came from outside is escaped here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from stepwell.compare.report.tables import swatch, table
from stepwell.compare.summary import Sheet, Summary, Table, Workload

_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")


def parts(summary: Summary) -> dict[str, str]:
    """HTML by the place where it goes."""
    return {
        "verdict": _verdict(summary),
        "results": _results(summary),
        "samples": _samples(summary),
        "doubts": _doubts(summary),
        "particulars": _particulars(summary),
    }


def _verdict(summary: Summary) -> str:
    first, *others = summary.verdict or (summary.title,)
    said = f'<p class="verdict">{escape(first)}</p>'
    said += "".join(f'<p class="aside">{escape(sentence)}</p>' for sentence in others)
    if summary.notes:
        said += f'<div class="notes"><h2>How to read this</h2>{_list(map(escape, summary.notes))}</div>'
    return said


def _results(summary: Summary) -> str:
    colours = {m.name: m.colour for w in summary.workloads for m in w.methods}
    tables = [] if summary.overall is None else [("All workloads", summary.overall)]
    tables += [(workload.name, workload.table) for workload in summary.workloads]
    shown = "".join(
        f"<h3>{escape(name)}</h3>{table(found, colours, name)}" for name, found in tables if found.rows
    )
    return f"<h2>Results</h2>{shown}" if shown else ""


def _samples(summary: Summary) -> str:
    shown = "".join(_sheets(workload) for workload in summary.workloads)
    return f"<h2>Samples</h2>{shown}" if shown else ""


def _sheets(workload: Workload) -> str:
    figures = "".join(
        f'<figure data-colour="{method.colour}">{_picture(method.sheet)}<figcaption>'
        f"{swatch(method.colour)}<b>{escape(method.name)}</b> {escape(_rest(method.sheet, method.name))}"
        "</figcaption></figure>"
        for method in workload.methods
        if method.sheet is not None and _PICTURE.fullmatch(method.sheet.uri)
    )
    return f'<h3>{escape(workload.name)}</h3><div class="sheets">{figures}</div>' if figures else ""


def _rest(sheet: Sheet, name: str) -> str:
    """A caption without the method's name, which stands before it."""
    return sheet.caption.removeprefix(name).lstrip(",: ")


def _picture(sheet: Sheet) -> str:
    return f'<img src="{escape(sheet.uri)}" alt="Generated images: {escape(sheet.caption)}">'


def _doubts(summary: Summary) -> str:
    """What a reader should know before believing: directories left out, warnings, runs that stopped early."""
    groups = [
        ("Left out", [_where(left.path, left.reason) for left in summary.left_out]),
        (
            "Warnings",
            [_where(run.path, text) for w in summary.workloads for run in w.runs for text in run.warnings],
        ),
        (
            "Not finished",
            [
                _where(
                    run.path,
                    f"{run.method}, seed {run.seed}, stopped at step {run.steps[-1] if run.steps else 0}",
                )
                for workload in summary.workloads
                for run in workload.runs
                if not run.finished
            ],
        ),
    ]
    shown = "".join(f"<h3>{title}</h3>{_list(items)}" for title, items in groups if items)
    return f"<h2>Doubts</h2>{shown}" if shown else ""


def _where(path: str, what: str) -> str:
    return f"<code>{escape(path)}</code> {escape(what)}"


def _particulars(summary: Summary) -> str:
    shown = "".join(_workload(index, workload, summary) for index, workload in enumerate(summary.workloads))
    if summary.environment:
        shown += _folded("environment", "Environment", _pairs(summary.environment))
    if summary.reproduce:
        commands = escape("\n".join(summary.reproduce))
        shown += (
            '<h3>How to reproduce</h3><div class="commands">'
            '<button type="button" data-copy="commands">Copy</button>'
            f'<pre tabindex="0" aria-label="Commands"><code id="commands">{commands}</code></pre></div>'
        )
    return f"<h2>Particulars</h2>{shown}" if shown else ""


def _workload(index: int, workload: Workload, summary: Summary) -> str:
    shown = _folded(f"runs-{index}", f"Runs of {workload.name}", _runs(workload, summary))
    if workload.settings:
        title = f"Settings that all runs of {workload.name} share"
        shown += _folded(f"settings-{index}", title, _pairs(workload.settings))
    return shown


def _runs(workload: Workload, summary: Summary) -> str:
    """Every run and where its curves end."""
    columns = (
        "method",
        "seed",
        *(metric.name for metric in summary.metrics),
        "steps",
        "images",
        "seconds",
        "directory",
    )
    rows = tuple(
        (
            run.method,
            str(run.seed),
            *(_last(run.values.get(metric.key, ())) for metric in summary.metrics),
            *(_last(axis) for axis in (run.steps, run.images, run.seconds)),
            run.path + ("" if run.finished else " (not finished)"),
        )
        for run in workload.runs
    )
    colours = {method.name: method.colour for method in workload.methods}
    return table(
        Table("At the last evaluation, smoothed as the curves are", columns, rows),
        colours,
        f"Runs of {workload.name}",
    )


def _last(values: Sequence[float | None]) -> str:
    return f"{values[-1]:.6g}" if values and values[-1] is not None else "–"


def _folded(key: str, title: str, inside: str) -> str:
    return f'<details id="{key}"><summary id="{key}-fold">{escape(title)}</summary>{inside}</details>'


def _pairs(values: Mapping[str, Any]) -> str:
    pairs = "".join(
        f"<dt>{escape(str(key))}</dt><dd>{escape(_plain(value))}</dd>" for key, value in values.items()
    )
    return f"<dl>{pairs}</dl>"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"
