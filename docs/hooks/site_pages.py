"""mkdocs hook: pages that lie outside docs/, and folders of the navigation that list what is in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from forest_of_studies import full_forest, main_forest
from markdown_tables import Section, sections, table
from method_pages import ENTRIES
from mkdocs.structure.files import File, Files
from recorded_rows import at_the_end
from small_densities import MARK, small_density

from stepwell.runs.metrics import CURVES, SCORED

ROOT = Path(__file__).parents[2]
RECORDS = {"results/records.md": "RESULTS.md", "results/log.md": "LOG.md"}
"""Written by scripts and by hand into benchmarks/: one copy, read when the site is built."""
INTEGRATIONS = ROOT / "src" / "stepwell" / "integrations"
_MODULES = "<!-- every integration -->"
_LOOPS = "<!-- every loop -->"
_METRICS = "<!-- every metric -->"
_FORESTS = {"<!-- the main comparisons -->": main_forest, "<!-- every comparison -->": full_forest}
_LAW = "<!-- law -->"
_LAW_COLUMNS = (
    "workload",
    "method",
    "rho",
    "critical batch, first to last quarter",
    "predicted before the runs",
    "forecast in the reference's runs",
    "images for same loss",
    "images to reference's end",
    "distance",
)
_LONG, _PAPER = "<!-- ends of long runs -->", "<!-- long runs and the paper -->"
_HOSTS = "<!-- every host -->"
_HOST = re.compile(r"<!-- host ([\w-]+) -->")
_HOST_COLUMNS = ("host", "version", "what was run", "bit-equal when fed", "lines changed", "overhead")
_PLACE = re.compile(r"`([\w/]+\.py)::([\w.]+)`(,?)")


def on_files(files: Files, config: Any) -> Files:
    """Add the records, and tell the navigation what there is."""
    for uri, name in RECORDS.items():
        text = (ROOT / "benchmarks" / name).read_text()
        files.append(File.generated(config, uri, content=text))
    config.nav = _expanded(config.nav, [page.src_uri for page in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in what is made from records and sources: tables, pictures, lists."""
    markdown = MARK.sub(lambda found: small_density(found[1]), markdown)
    if page.file.src_uri == "equations.md":
        return _PLACE.sub(_place, markdown)
    if page.file.src_uri == "results.md":
        for mark, drawn in _FORESTS.items():
            markdown = markdown.replace(mark, drawn())
        return markdown.replace(_METRICS, metrics())
    if page.file.src_uri == "forecast.md":
        return markdown.replace(_LAW, law())
    if page.file.src_uri == "at-length.md":
        paper = _section("long against the paper's claims")
        return markdown.replace(_LONG, long_ends()).replace(_PAPER, _columns(paper, paper.header))
    if _HOSTS in markdown:
        markdown = markdown.replace(_HOSTS, hosts())
    markdown = _HOST.sub(lambda found: host(found[1]), markdown)
    references = "\n\n".join(f"::: stepwell.integrations.{name}" for name in modules())
    return markdown.replace(_MODULES, references).replace(_LOOPS, _loops(page.meta.get("loops", {})))


def law() -> str:
    """What was predicted and what was measured, from the records."""
    return _columns(_section("The law of images"), _LAW_COLUMNS)


def long_ends() -> str:
    """What came of long runs at their ends."""
    ends = at_the_end(_section("long: "))
    return table(ends.header, ends.rows)


def hosts() -> str:
    """The table of the trainers of others that were really run."""
    return _columns(_section("Real hosts"), _HOST_COLUMNS)


def host(name: str) -> str:
    """What was run of one of them: the row of benchmarks/records/hosts/NAME.json."""
    title = json.loads((ROOT / "benchmarks" / "records" / "hosts" / f"{name}.json").read_text())["host"]
    section = _section("Real hosts")
    row = next(row for row in section.rows if row[0] == title)
    return table(("`make hosts`", ""), [pair for pair in zip(section.header, row, strict=True) if pair[1]])


def _section(start: str) -> Section:
    """The section of RESULTS.md whose title starts so."""
    records = sections((ROOT / "benchmarks" / "RESULTS.md").read_text())
    return next(each for each in records if each.title.startswith(start))


def _columns(section: Section, names: tuple[str, ...]) -> str:
    places = [section.column(name) for name in names]
    return table(names, [tuple(row[place] for place in places) for row in section.rows])


def metrics() -> str:
    """The table of all metrics."""
    rows = [
        (
            metric.title,
            f"`{metric.key}`",
            "higher" if metric.higher_is_better else "lower",
            metric.error_title if metric.heading or metric in CURVES else "–",
        )
        for metric in (*CURVES, *SCORED)
    ]
    return table(("metric", "recorded as", "better", "ratios are of"), rows)


def _place(found: re.Match[str]) -> str:
    """A function above its file, and a line to itself."""
    path, name, more = found.groups()
    return f"{_breakable(name)}<br>{_breakable(path)}" + ("<br>" if more else "")


def _breakable(name: str) -> str:
    """Code that a narrow column may break after an underscore or a slash, and nowhere else."""
    broken = name.replace("_", "_<wbr>").replace("/", "/<wbr>")
    return f"<code>{broken}</code>"


def _loops(loops: dict[str, str]) -> str:
    """Those that have a page already."""
    pages = [name for name in loops if (ROOT / "docs" / "integrations" / f"{name}.md").exists()]
    return table(("your loop", "page"), [(loops[name], f"[{name}]({name}.md)") for name in pages])


def modules() -> list[str]:
    """Those that the pages of the loops name: the others are their own affair."""
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "integrations").glob("*.md"))
    named = set(re.findall(r"stepwell\.integrations(?:\.| import )(\w+)", pages))
    return sorted(path.stem for path in INTEGRATIONS.glob("*.py") if path.stem in named)


def _expanded(item: Any, pages: list[str]) -> Any:
    """The navigation, with every word that ends in a slash replaced by the rest of that folder's pages."""
    if isinstance(item, list):
        return [one for each in item for one in _listed(each, [page for page in pages if page not in item])]
    if isinstance(item, dict):
        return {title: _expanded(inside, pages) for title, inside in item.items()}
    return item


def _listed(item: Any, pages: list[str]) -> list[Any]:
    if not isinstance(item, str) or not item.endswith("/"):
        return [_expanded(item, pages)]
    inside = [page for page in pages if re.fullmatch(rf"{item}[^/]+\.md", page)]
    return sorted(inside, key=lambda page: (list(ENTRIES).index(page) if page in ENTRIES else 0, page))
