"""The report as one HTML page: text and tables, escaped here, with style, scripts and chart data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from stepwell.compare.report import COLOURS, ON_DARK
from stepwell.compare.report.data import chart_data, embedded
from stepwell.compare.report.forest import picture
from stepwell.compare.report.pictures import sheet_image
from stepwell.compare.report.strip import strip
from stepwell.compare.report.tables import swatch, table
from stepwell.compare.views import Cell, Summary, Table, Workload


def parts(summary: Summary) -> dict[str, str]:
    """HTML by the section that it fills."""
    return {
        "states": strip(summary.states),
        "verdict": _verdict(summary),
        "samples": _samples(summary),
        "words": "".join(f'<p class="aside">{escape(text)}</p>' for text in summary.verdict[1:]),
        "results": _results(summary),
        "caveats": _caveats(summary),
        "details": _details(summary),
    }


def _verdict(summary: Summary) -> str:
    """The headline and the pictures that answer the question; one over all workloads stands alone."""
    headline = f'<p class="verdict">{escape((*summary.verdict, summary.title)[0])}</p>'
    drawn = [picture(answer, titled=len(summary.answers) > 1) for answer in summary.answers]
    each = drawn[-len(summary.workloads) :] if summary.workloads else drawn
    first = "".join(drawn[: len(drawn) - len(each)])
    return headline + first + (f'<div class="answers">{"".join(each)}</div>' if each else "")


def _results(summary: Summary) -> str:
    """Tables with their leading columns; the rest, forecasts and how to read it are folded away."""
    html = _table("All workloads", summary.overall, summary) if summary.overall else ""
    for index, workload in enumerate(summary.workloads):
        html += _table(workload.name, workload.table, summary, f"columns-{index}")
        if workload.forecasts is not None and workload.forecasts.rows:
            name = f"Forecasts on {workload.name}"
            html += _folded(f"forecasts-{index}", name, table(workload.forecasts, summary.colours, name))
    if summary.notes:
        html += _folded("notes", "How to read this", _list(map(escape, summary.notes)))
    return _section("In numbers", html)


_LEAD = (
    "Ratios with 95 % intervals; below 1 is better. What each method is compared with is folded away below."
)


def _table(name: str, content: Table, summary: Summary, key: str = "") -> str:
    if not content.rows:
        return ""
    whole = table(content, summary.colours, name)
    if not content.leading:
        return f"<h3>{escape(name)}</h3>{whole}"
    lead = table(replace(content.led(), caption=_LEAD), summary.colours, name)
    more = _folded(key, f"All {len(content.without_empty_columns().columns)} columns", whole)
    return f"<h3>{escape(name)}</h3>{lead}{more}"


def _section(title: str, html: str) -> str:
    return f"<h2>{title}</h2>{html}" if html else ""


def _samples(summary: Summary) -> str:
    html = "".join(_sheets(workload, len(summary.workloads) > 1) for workload in summary.workloads)
    several = any(len(workload.methods) > 1 for workload in summary.workloads)
    return _section("Samples from the same noise" if several else "Samples", html)


def _sheets(workload: Workload, titled: bool) -> str:
    figures = ""
    for method in workload.methods:
        image = (
            "" if method.sheet is None else sheet_image(method.sheet, f"Generated images of {method.name}")
        )
        if method.sheet is not None and image:
            caption = escape(method.sheet.caption.removeprefix(method.name).lstrip(",: "))
            figures += (
                f'<figure data-colour="{method.colour}"><figcaption>{swatch(method.colour)}'
                f'<b>{escape(method.name)}</b> <span class="where">{caption}</span></figcaption>'
                f"{image}</figure>"
            )
    title = f"<h3>{escape(workload.name)}</h3>" if titled else ""
    return f'{title}<div class="sheets">{figures}</div>' if figures else ""


def _caveats(summary: Summary) -> str:
    """Directories left out, warnings, and runs that stopped early."""
    runs = [run for workload in summary.workloads for run in workload.runs]
    stopped = [
        (run.path, f"{run.method}, seed {run.seed}, stopped at step {run.steps[-1] if run.steps else 0}")
        for run in runs
        if not run.finished
    ]
    groups = {
        "Left out": [(one.path, one.reason) for one in summary.left_out],
        "Warnings": [(run.path, text) for run in runs for text in run.warnings],
        "Not finished": stopped,
    }
    html = ""
    for title, items in groups.items():
        if items:
            entries = (f"<code>{escape(path)}</code> {escape(text)}" for path, text in items)
            html += f"<h3>{title}</h3>{_list(entries)}"
    return _section("Caveats", html)


def _details(summary: Summary) -> str:
    html = "".join(_workload(index, workload, summary) for index, workload in enumerate(summary.workloads))
    if summary.environment:
        html += _folded("environment", "Environment", _pairs(summary.environment))
    if summary.reproduce:
        commands = escape("\n".join(summary.reproduce))
        html += (
            '<h3>How to reproduce</h3><div class="commands">'
            '<button type="button" data-copy="commands">Copy</button>'
            f'<pre tabindex="0" aria-label="Commands"><code id="commands">{commands}</code></pre></div>'
        )
    return _section("Details", html)


def _workload(index: int, workload: Workload, summary: Summary) -> str:
    html = _folded(f"runs-{index}", f"Runs of {workload.name}", _runs(workload, summary))
    if workload.settings:
        title = f"Settings that all runs of {workload.name} share"
        html += _folded(f"settings-{index}", title, _pairs(workload.settings))
    return html


def _runs(workload: Workload, summary: Summary) -> str:
    """Every run and where its curves end."""
    titles = (metric.title for metric in summary.metrics)
    columns = ("method", "seed", *titles, "steps", "images", "seconds", "directory")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            run.method,
            run.seed,
            *(_last(run.values.get(metric.key, ())) for metric in summary.metrics),
            *(_last(axis) for axis in (run.steps, run.images, run.seconds)),
            run.path + ("" if run.finished else " (not finished)"),
        )
        for run in workload.runs
    )
    content = Table("At the last evaluation", columns, rows)
    return table(content, summary.colours, f"Runs of {workload.name}")


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
    "element", "scale", "noise_strip", "line_chart", "readout", "heat", "series", "sections", "controls",
    "live", "start",
)  # fmt: skip
"""In the order of their dependencies."""
_REPORT_FOOTER = "Written by <code>stepwell report</code>; it needs no other file and opens offline."
_WATCH_FOOTER = "Served by <code>stepwell watch</code>; <code>stepwell report</code> writes a file to keep."


def render(summary: Summary, live: str | None = None) -> str:
    """The page; `live` is the state of a watched page, None makes a page without any requests."""
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
        footer=_REPORT_FOOTER if live is None else _WATCH_FOOTER,
    )


def payload(summary: Summary, state: str | None) -> dict[str, Any]:
    """The content of the page, for one that is already open."""
    return {"title": summary.title, "state": state, "parts": parts(summary), "data": chart_data(summary)}


def version(content: dict[str, Any]) -> str:
    """A digest of the content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _policy(style: str, script: str, live: bool) -> str:
    """The content security policy: our own style and script, embedded images, and nothing else."""
    requests = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        f"connect-src {requests}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _style() -> str:
    """The style sheet, with a class for each colour."""
    rules = "".join(
        f".c{index}{{color:light-dark({light},{dark})}}\n"
        for index, (light, dark) in enumerate(zip(COLOURS, ON_DARK, strict=True))
    )
    return _text("page.css") + rules


def _script() -> str:
    """All scripts in one function scope."""
    body = "\n".join(_text(f"script/{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _text(name: str) -> str:
    return files("stepwell.compare.report").joinpath(name).read_text(encoding="utf-8")
