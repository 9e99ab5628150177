"""The picture that leads the results has every comparison of the records, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pages import ROOT, hook

pytestmark = pytest.mark.full

RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text()
RATIO = r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)"


@pytest.fixture(scope="module")
def forests() -> Any:
    pytest.importorskip("mkdocs", reason="hooks need the docs extra")
    return hook("forest_of_studies")


def drawn(html: str) -> list[str]:
    """The ratios of a picture, row by row."""
    return re.findall(RATIO, html.replace("<b>", "").replace("</b>", ""))


def recorded() -> set[str]:
    """Every ratio of images for the same loss that a table of comparisons has."""
    found = set()
    for path in (ROOT / "benchmarks" / "records").glob("*.json"):
        record = json.loads(path.read_text())
        if "images for same loss" in record["columns"]:
            place = record["columns"].index("images for same loss")
            found |= {row[place] for row in record["rows"] if re.fullmatch(RATIO, row[place])}
    return found


def test_every_recorded_comparison_is_in_the_picture(forests: Any) -> None:
    ratios = drawn(forests.full_forest())
    assert len(recorded()) > 50
    assert recorded() <= set(ratios)
    assert f"All {len(ratios)} comparisons" in forests.full_forest()


def test_every_drawn_ratio_is_in_the_records(forests: Any) -> None:
    rounded = {f"{float(a):.2f} ({float(b):.2f} to {float(c):.2f})" for a, b, c in re.findall(EXACT, RESULTS)}
    assert set(drawn(forests.full_forest())) <= rounded


EXACT = r"(\d+\.\d+) \((\d+\.\d+) to (\d+\.\d+)\)"
"""Tables have two decimals, or three where curves are close."""


def test_each_study_and_workload_has_one_row_coloured_by_its_verdict(forests: Any) -> None:
    main = forests.main_forest()
    assert set(drawn(main)) <= set(drawn(forests.full_forest()))
    found = set(re.findall(r'<th scope="row">(\S+) <small>([\w+:=-]+), ([\w, -]+)</small>', main))
    assert {("linear-4", "auto", "law"), ("vp", "neyman", "score-based")} <= found
    assert len(found) == len(drawn(main))
    # Rounded it touches 1; unrounded it does not, and the report says "better" too.
    assert re.search(r'<tr class="better"><th scope="row">lora <small>neyman, finetune</small>', main)
    assert re.search(r'<tr class="worse"><th scope="row">flow <small>logit-normal', main)
