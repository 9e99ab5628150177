"""The parts of the page that are text and tables; whatever came from outside is escaped here."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from stepwell.compare.colours import COLOURS, ON_DARK
from stepwell.compare.report.data import chart_data, embedded
from stepwell.compare.report.tables import swatch, table
from stepwell.compare.views import Sheet, Summary, Table, Workload

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


_SCRIPTS = (
    "element",
    "scale",
    "line_chart",
    "reading",
    "heat",
    "series",
    "sections",
    "controls",
    "live",
    "start",
)
"""In the order in which they build on each other."""
_KEPT = "Made by <code>stepwell report</code>; it needs nothing else: keep it, mail it, open it offline."
_WATCHED = "Served by <code>stepwell watch</code>; <code>stepwell report</code> makes a file to keep."


def render(summary: Summary, live: str | None = None) -> str:
    """The page; `live` is the state of a watched page, None makes a page that asks nobody for anything."""
    content = payload(summary, live)
    style, script = _style(), _script()
    filled = {f"part_{name}": text for name, text in content["parts"].items()}
    data = {"version": version(content), "live": live is not None, "state": live, "data": content["data"]}
    return Template(_text("page.html")).substitute(
        filled,
        title=escape(summary.title),
        policy=escape(_policy(style, script, live is not None)),
        style=style,
        script=script,
        data=embedded(data),
        footer=_KEPT if live is None else _WATCHED,
    )


def payload(summary: Summary, state: str | None) -> dict[str, Any]:
    """What a page that is already open needs to show the same."""
    return {"title": summary.title, "state": state, "parts": parts(summary), "data": chart_data(summary)}


def version(content: dict[str, Any]) -> str:
    """Changes when the content does."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _policy(style: str, script: str, live: bool) -> str:
    """Our own style and script, pictures that are part of the page, and nothing else."""
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _style() -> str:
    """The style sheet, and a class a colour."""
    rules = "".join(
        f".c{index}{{color:light-dark({light},{dark})}}\n"
        for index, (light, dark) in enumerate(zip(COLOURS, ON_DARK, strict=True))
    )
    return _text("page.css") + rules


def _script() -> str:
    """All scripts in one scope of their own."""
    body = "\n".join(_text(f"script/{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _text(name: str) -> str:
    return files("stepwell.compare.report").joinpath(name).read_text(encoding="utf-8")
