"""The picture that docs/results.md leads with: every comparison of the records beside the line at 1."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from stepwell.compare.report.forest import picture
from stepwell.compare.views import Answer, AnswerRow

if TYPE_CHECKING:
    from all_studies import Comparison

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
_ROW = 20
"""Pixels of a row."""


@cache
def main_forest() -> str:
    """One row for each study and workload, the best first."""
    rows = [
        AnswerRow(one.workload, one.ratio, _listed(one.method, one.study, _other_measure(one)))
        for one in sorted(_all_studies().main_comparisons(), key=lambda one: one.ratio.mean)
    ]
    return _drawn("images for the same loss, over those of plain draws", rows)


@cache
def full_forest() -> str:
    """Every comparison, by method; the methods that need the fewest images first."""
    found: list[Comparison] = _all_studies().comparisons()
    means = {one.method: fmean(other.ratio.mean for other in _of(one.method, found)) for one in found}
    rows = [
        AnswerRow(one.method, one.ratio, _listed(one.workload, one.study, _other_measure(one)))
        for one in sorted(found, key=lambda one: (means[one.method], one.method, one.ratio.mean))
    ]
    title = f"All {len(rows)} comparisons"
    drawn = _drawn("images for the same loss, over those of the baseline", rows)
    return f"<details><summary>{title}</summary>{drawn}</details>"


def _of(method: str, found: Iterable[Comparison]) -> list[Comparison]:
    return [one for one in found if one.method == method]


def _drawn(measure: str, rows: list[AnswerRow]) -> str:
    return picture(Answer("", measure, tuple(rows)), titled=False, height=_ROW)


def _listed(*words: str) -> str:
    return ", ".join(word for word in words if word)


def _other_measure(one: Comparison) -> str:
    """What is compared, where it is not the images for the same simple loss."""
    measure = "" if one.measure == "images for the same loss" else one.measure
    return _listed(measure, "" if one.judged_by == "simple loss" else one.judged_by)


def _all_studies():  # type: ignore[no-untyped-def]
    """benchmarks/all_studies.py, which is no package: scripts there import each other by name."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    import all_studies

    return all_studies
