"""The map from equations to files names nothing that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT

TEXT = (DOCS / "equations.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::([\w.]+)`", TEXT)))


def names(path: Path) -> set[str]:
    """Functions and classes of a file, and methods as Class.method."""
    tree = ast.parse(path.read_text())
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for one in tree.body:
        if isinstance(one, ast.ClassDef):
            found |= {f"{one.name}.{node.name}" for node in one.body if isinstance(node, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_the_map_names_exists(path: str, name: str) -> None:
    assert name in names(ROOT / path), f"{path} has no {name}"


def test_every_row_has_a_function_and_its_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and ".py::" in line]
    assert len(rows) > 45
    for row in rows:
        assert "`src/" in row or "`benchmarks/" in row, row
        assert "`tests/" in row or "RESULTS" in row, row


def test_a_name_that_is_not_there_would_be_seen() -> None:
    assert "Vlb" in names(ROOT / "src/stepwell/weightings/fixed.py")
    assert "Objective.reference" in names(ROOT / "src/stepwell/objective.py")
    assert "Vlbs" not in names(ROOT / "src/stepwell/weightings/fixed.py")


def test_every_sampler_and_weighting_of_a_paper_is_in_the_map() -> None:
    from stepwell.catalogue.find import SAMPLERS, WEIGHTINGS

    own = {"uniform", "reference", "table", "over-steps", "none", "loss-root", "auto"}
    for entry in SAMPLERS + WEIGHTINGS:
        module, _, name = entry.target.partition(":")
        path = f"src/{module.replace('.', '/')}.py"
        # alignment and beta-policy are named by their classes.
        known = {found.lower() for file, found in NAMED if file == path}
        wanted = {name.lower(), name.replace("_", "").lower()}
        assert entry.name in own or known & wanted, f"{entry.name} is not in docs/equations.md"
