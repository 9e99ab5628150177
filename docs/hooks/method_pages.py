"""mkdocs hook: a page for every sampler and weighting, from a few written lines and the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_tables import sections, table
from method_pictures import caption, picture
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.utils.meta import get_data
from recorded_rows import STUDY, rows_about

from stepwell.catalogue.entry import Entry, Parameter
from stepwell.catalogue.find import SAMPLERS, SHAPING, WEIGHTINGS

DOCS = Path(__file__).parents[1]
FOLDERS = {"sampler": "samplers", "weighting": "weightings"}
ENTRIES = {f"methods/{FOLDERS[entry.kind]}/{entry.name}.md": entry for entry in SAMPLERS + WEIGHTINGS}
_LIST = "<!-- every sampler and weighting -->"


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures."""
    for uri, entry in ENTRIES.items():
        if files.get_file_from_path(uri) is None:
            raise PluginError(f"{entry.kind} {entry.name} has no page: write docs/{uri}.")
        _, meta = get_data((DOCS / uri).read_text())
        drawn = picture(entry, meta)
        files.append(File.generated(config, uri.replace(".md", ".svg"), content=drawn))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Complete a method's page, and the list of all."""
    uri = page.file.src_uri
    if uri in ENTRIES:
        return compose(ENTRIES[uri], markdown, page.meta)
    return markdown.replace(_LIST, _all())


def compose(entry: Entry, written: str, meta: Mapping[str, Any]) -> str:
    """The whole page."""
    title, _, body = written.strip().partition("\n")
    parts = [
        title,
        f"**{entry.summary[0].upper()}{entry.summary[1:]}.** {_habits(entry)}\n\nSource: {entry.source}.",
        body.strip(),
        f"![{caption(meta).replace('`', '')}]({entry.name}.svg)\n\n*{caption(meta)}*",
        f"```sh\n{command(entry, meta)}{_start(entry)}\n```",
        _parameters(entry),
        _measured(entry, meta),
        _differences(meta),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def command(entry: Entry, meta: Mapping[str, Any]) -> str:
    """What draws the same on a terminal."""
    given = f" {meta['show']}" if "show" in meta else ""
    given += "".join(f" --shape {shape}" for shape in meta.get("shapes", ()))
    if entry.kind == "weighting" and entry.name in {sampler.name for sampler in SAMPLERS}:
        return f"stepwell show uniform --weighting {entry.name}{given}"
    return f"stepwell show {entry.name}{given}"


def _start(entry: Entry) -> str:
    return "  # where it starts" if entry.learns else ""


def _habits(entry: Entry) -> str:
    if entry.kind == "weighting":
        return ""
    learns = "It learns while the model trains." if entry.learns else "It never changes."
    if not entry.unbiased:
        return f"{learns} Its draws are not corrected unless you say `unbiased=true`."
    return f"{learns} Its draws are corrected, so that the objective stays what you chose."


def _parameters(entry: Entry) -> str:
    rows = [(f"`{one.name}`", _default(one), one.meaning) for one in entry.parameters]
    parts = ["## Parameters", table(("name", "default", "what"), rows) if rows else "None of its own."]
    if entry.spellings:
        known = ", ".join(f"`{other}` for `{ours}`" for other, ours in entry.spellings.items())
        parts.append(f"Other tools' names are understood: {known}.")
    if entry.aliases:
        parts.append(f"Also called {', '.join(f'`{alias}`' for alias in entry.aliases)}.")
    if entry.kind == "sampler":
        shaping = ", ".join(f"`{one.name}`" for one in SHAPING)
        parts.append(f"Every sampler also takes {shaping}: see [the catalogue](../../catalogue.md).")
    return "\n\n".join(parts)


def _default(parameter: Parameter) -> str:
    return "needed" if parameter.required else f"`{parameter.default}`"


def _measured(entry: Entry, meta: Mapping[str, Any]) -> str:
    found = rows_about(entry)
    unread = "" if found else "Nothing was measured with it here yet."
    parts = ["## Measured", *filter(None, [str(meta.get("verdict", unread))])]
    studies = [(one.title, *row) for one in found if one.header == STUDY for row in one.rows]
    if studies:
        parts.append(table(("study", *STUDY), studies))
    for one in found:
        if one.header != STUDY:
            parts.append(f"**{one.title}**\n\n{table(one.header, one.rows)}")
    if found:
        parts.append(
            "Ratios, with 95 % intervals over seeds; below 1 is better. An interval that holds 1 decides "
            "nothing. [How results are measured](../../results.md), [all records](../../results/records.md)."
        )
    return "\n\n".join(parts)


def _differences(meta: Mapping[str, Any]) -> str:
    named = meta.get("differs", [])
    if not named:
        return ""
    known = {row[0]: row for row in difference_rows()}
    for name in named:
        if name not in known:
            raise PluginError(f"design.md has no difference {name!r}: {', '.join(known)}.")
    return "## Where published code differs\n\n" + table(
        ("what", "there", "here"), [known[name] for name in named]
    )


def difference_rows() -> tuple[tuple[str, ...], ...]:
    """The table of docs/design.md."""
    found = [
        one for one in sections((DOCS / "design.md").read_text()) if one.title.startswith("Where we differ")
    ]
    return found[0].rows


def _all() -> str:
    parts = []
    for kind, folder in FOLDERS.items():
        chosen = [entry for entry in ENTRIES.values() if entry.kind == kind]
        rows = [
            (f"[`{e.name}`]({folder}/{e.name}.md)", e.summary, re.sub(r" \(.*", "", e.source)) for e in chosen
        ]
        parts.append(f"## {folder.capitalize()}\n\n{table(('name', 'what', 'source'), rows)}")
    return "\n\n".join(parts)
