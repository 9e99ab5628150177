"""Nobody types a number into RESULTS.md: it is what the committed records say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from stepwell.compare.stats import paired

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def module(name: str) -> Any:
    """A benchmark script, which is no package."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_results_are_made_from_records() -> None:
    assert (BENCHMARKS / "RESULTS.md").read_text() == module("results").text(), "run benchmarks/results.py"


def test_only_what_is_sure_agrees_or_disagrees_with_the_paper(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    agrees = module("studies")._agrees
    assert agrees(paired([0.5, 0.52, 0.51]), 0.8) == "agrees"
    assert agrees(paired([0.5, 0.52, 0.51]), 1.2) == "DISAGREES"
    assert agrees(paired([1.5, 1.52, 1.51]), 1.2) == "agrees"
    assert agrees(paired([0.5, 2.0, 1.0]), 1.2) == "undecided here"
