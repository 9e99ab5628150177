"""Workloads are called as their study calls them, or by what sets them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.compare.grouping import group
from stepwell.compare.results import Outcome
from stepwell.compare.study import Study
from stepwell.recipes.schema import Recipe


def run(**recipe: Any) -> Outcome:
    return Outcome(Path("run"), Recipe(**recipe), ())


def test_a_study_has_names_for_its_workloads() -> None:
    workloads = {"whole": {"recipe": "fashion16", "lora": 0}, "lora": {"recipe": "fashion16", "lora": 4}}
    study = Study(workloads=workloads)
    assert list(group([run(lora=0), run(lora=4)], study)) == ["whole", "lora"]


def test_without_names_what_differs_is_the_name() -> None:
    assert list(group([run(lora=0), run(lora=4)], Study())) == ["0", "4"]
    ambiguous = Study(workloads={"one": {"process": "linear"}, "two": {"process": "linear"}})
    assert list(group([run(lora=0), run(lora=4)], ambiguous)) == ["0", "4"]
