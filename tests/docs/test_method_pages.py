"""Every sampler and weighting has a page, every page a name; what pages say of results is recorded."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT, blocks, hook

from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import SAMPLERS, WEIGHTINGS
from stepwell.cli.main import main

ENTRIES = SAMPLERS + WEIGHTINGS
RECORDED = "".join((ROOT / "benchmarks" / name).read_text() for name in ("RESULTS.md", "LOG.md"))


def path_of(entry: Entry) -> Path:
    return DOCS / "methods" / f"{entry.kind}s" / f"{entry.name}.md"


def composed(entry: Entry) -> str:
    """The page as it is built."""
    text, meta = hook("mkdocs.utils.meta").get_data(path_of(entry).read_text())
    return str(hook("method_pages").compose(entry, text, meta))


def test_every_name_has_a_page_and_every_page_a_name() -> None:
    written = {path for path in PAGES if path.parent.parent.name == "methods"}
    assert written == {path_of(entry) for entry in ENTRIES}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_a_page_has_formula_source_parameters_and_a_command_that_runs(entry: Entry) -> None:
    page = composed(entry)
    assert "```math" in page
    assert entry.source in page
    for parameter in entry.parameters:
        assert f"`{parameter.name}`" in page
    (command,) = blocks(page, "sh")
    assert main(shlex.split(command, comments=True)[1:]) == 0


def test_rows_are_those_of_the_method() -> None:
    rows = {entry.name: str(hook("recorded_rows").rows_about(entry)) for entry in SAMPLERS}
    assert "neyman+min-snr" in rows["neyman"]
    assert "speed-legacy" in rows["speed"]
    assert "credit=alignment" in rows["beta-policy"]
    assert "images to the other's end" in rows["auto"], "what came of long runs"
    assert rows["uniform"] == rows["cosmap"] == "[]"
    weights = {entry.name: str(hook("recorded_rows").rows_about(entry)) for entry in WEIGHTINGS}
    assert "'min-snr', 'uniform', 'min-snr loss'" in weights["min-snr"]
    assert "neyman" not in weights["min-snr"]
    assert "speed-legacy" not in weights["p2"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_ratio_that_a_page_quotes_is_recorded(path: Path) -> None:
    for ratio in re.findall(r"\d\.\d\d \(\d+\.\d\d to \d+\.\d\d\)", path.read_text()):
        assert ratio in RECORDED, f"{path.name} quotes {ratio}, which no record has"


def test_every_difference_of_the_design_that_is_a_methods_is_on_its_page() -> None:
    rows = [row[0] for row in hook("method_pages").difference_rows()]
    texts = [path_of(entry).read_text() for entry in ENTRIES]
    elsewhere = {
        "linear, quadratic, T other than 1000",
        "VE's noise",
        "the corrector's step",
        "min and max timestep",
    }
    lost = [row for row in rows if row not in elsewhere and not any(row in text for text in texts)]
    assert not lost


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.differences], ids=lambda e: e.name)
def test_a_page_has_the_one_table_of_differences_from_the_paper(entry: Entry) -> None:
    rows = [(one.what, one.paper, one.here, one.why, one.changes) for one in entry.differences]
    header = ("what", "paper", "default", "why", "what it changes")
    lines = [header, ("---",) * len(header), *rows]
    wanted = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    assert path_of(entry).read_text().count(wanted) == 1, wanted


def test_what_a_difference_changes_is_recorded() -> None:
    (policy,) = (entry for entry in SAMPLERS if entry.name == "beta-policy")
    for one in policy.differences:
        for number in re.findall(r"0\.\d{3}", one.changes):
            assert number in RECORDED, f"{one.what}: no record has {number}"
