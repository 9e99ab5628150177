"""docs/scale.md has no number that its commands do not print."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stepwell.compare.study import load_study
from stepwell.core.ranks import Alone

ROOT = Path(__file__).parent.parent


def script(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """A benchmark script, which is no package."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, name, found)
    spec.loader.exec_module(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table1-full", "table2-full", "table3-full"])
def test_the_tables_are_what_the_command_prints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "scale.md").read_text()
    for line in script(monkeypatch, "scale").table(load_study(name, ["data=later"])):
        assert f"{line}\n" in text


def test_collectives_are_priced_by_their_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    found = script(monkeypatch, "communication")
    monkeypatch.setattr(found, "LATENCY", 1.0)
    monkeypatch.setattr(found, "BANDWIDTH", 100.0)
    mean, gather = found.Call("mean", 400, 0.0), found.Call("gather", 400, 0.0)
    assert found.modelled([mean], 8) == pytest.approx(2 * 3 + 2 * 7 / 8 * 4)
    assert found.modelled([gather], 8) == pytest.approx(3 + 7 * 4)
    assert found.modelled([mean, gather], 2) == pytest.approx((2 + 4) + (1 + 4))
    assert found.gradient_seconds(100, 2) == found.modelled([mean], 2)


def test_a_watched_group_counts_what_is_handed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    found = script(monkeypatch, "communication")
    monkeypatch.setattr(found.dist, "barrier", lambda: None)
    group = found.Watched(Alone())
    group.mean(torch.zeros(10))
    group.gather(torch.zeros(3, 2, dtype=torch.float64))
    assert [(call.kind, call.size) for call in group.calls] == [("mean", 40), ("gather", 48)]
    calls = [found.Call("mean", 1, seconds) for seconds in (1.0, 2.0, 30.0)]
    assert found.usual([*calls, found.Call("mean", 2, 5.0)]) == 3 * 2.0 + 5.0
