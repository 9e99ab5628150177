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


def test_a_workload_that_only_adds_to_another_has_its_own_name() -> None:
    plain: dict[str, Any] = {"recipe": "fashion16"}
    study = Study(workloads={"linear": plain, "cosine": {**plain, "process": "cosine"}})
    assert list(group([run(process="linear"), run(process="cosine")], study)) == ["linear", "cosine"]


def test_without_names_what_differs_is_the_name() -> None:
    assert list(group([run(lora=0), run(lora=4)], Study())) == ["0", "4"]
    ambiguous = Study(workloads={"one": {"process": "linear"}, "two": {"process": "linear"}})
    assert list(group([run(lora=0), run(lora=4)], ambiguous)) == ["0", "4"]


def test_where_the_rate_decays_other_lengths_are_other_workloads() -> None:
    assert list(group([run(steps=100), run(steps=200, method="neyman")], Study())) == ["fashion16"]
    decaying = [run(steps=100, lr_schedule="cosine"), run(steps=200, method="neyman", lr_schedule="cosine")]
    assert list(group(decaying, Study())) == ["100", "200"]
