"""A thin record: a run directory with what comparisons read and nothing else, small enough to commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell.compare.outcome import SCORE, Outcome
from stepwell.runs.directory import ENVIRONMENT, METRICS, RECIPE
from stepwell.runs.whole import write_json

_LEFT_OUT = ("sampler/",)
"""What samplers show of themselves, matrices too: for looking at one run."""
_DIGITS = 5
_DENSITIES = 6
"""Evaluations that keep where the sampler looked."""


def write_record(outcome: Outcome, place: Path) -> None:
    """Write the thin record of a finished run: it can be read, compared and reported like the run itself."""
    place.mkdir(parents=True, exist_ok=True)
    count = len(outcome.evaluations)
    looks = {round(index * (count - 1) / max(1, _DENSITIES - 1)) for index in range(_DENSITIES)}
    lines = [
        json.dumps(_thin(record, index in looks), separators=(",", ":"))
        for index, record in enumerate(outcome.evaluations)
    ]
    (place / METRICS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_json(place / ENVIRONMENT, outcome.environment)
    write_json(place / SCORE, _rounded(outcome.score))
    # Last: what has a recipe is a whole record.
    write_json(place / RECIPE, {**outcome.recipe, "out": ""})


def _thin(record: dict[str, Any], looks: bool) -> dict[str, Any]:
    dropped = () if looks else ("density", "effective_weight")
    return {
        key: _rounded(value)
        for key, value in record.items()
        if not key.startswith(_LEFT_OUT) and key not in dropped
    }


def _rounded(value: Any) -> Any:
    """Five digits are more than any of these numbers is sure of."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
