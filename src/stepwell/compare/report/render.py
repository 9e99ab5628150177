"""A summary as one page: template, style, script and data in a single file."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from stepwell.compare.colours import COLOURS, ON_DARK
from stepwell.compare.report.data import chart_data, embedded
from stepwell.compare.report.parts import parts
from stepwell.compare.summary import Summary

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
