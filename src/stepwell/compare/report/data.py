"""The data of the page's charts as compact JSON, embedded in the page."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from typing import Any

from stepwell.compare.views import COLOURS, Heat, MethodView, RunView, Summary

OCTAVES = 6
"""Densities are clipped to 2^-6 and 2^6 times uniform: one byte each, exact to 3 %."""


def chart_data(summary: Summary) -> dict[str, Any]:
    """Curves, densities, bands and profiles as JSON values."""
    methods = sorted(summary.colours.items(), key=lambda item: item[1])
    return {
        "palette": len(COLOURS),
        "octaves": OCTAVES,
        "metrics": [{"key": metric.key, "name": metric.title} for metric in summary.metrics],
        "methods": [{"name": name, "colour": colour} for name, colour in methods],
        "workloads": [
            {
                "name": workload.name,
                "baseline": workload.baseline,
                "methods": [_method(method) for method in workload.methods],
                "runs": [_run(run) for run in workload.runs],
            }
            for workload in summary.workloads
        ],
        "profiles": [
            {
                "name": profile.method,
                "colour": profile.colour,
                "factors": _short(profile.factors),
                "shares": _short(profile.shares),
            }
            for profile in summary.profiles
        ],
    }


def embedded(value: Any) -> str:
    """JSON that can neither end the script element around it nor start another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _method(method: MethodView) -> dict[str, Any]:
    return {
        "name": method.name,
        "colour": method.colour,
        "heat": _heat(method.density) if method.density and method.density.rows else None,
        "weight": _short(method.effective_weight),
        "bands": _short(method.bands),
    }


def _run(run: RunView) -> dict[str, Any]:
    return {
        "method": run.method,
        "seed": run.seed,
        "steps": _short(run.steps),
        "images": _short(run.images),
        "seconds": _short(run.seconds),
        "values": {key: _short(values) for key, values in run.values.items()},
    }


def _heat(heat: Heat) -> dict[str, Any]:
    """One byte per cell: the logarithm of the density."""
    cells = bytes(_byte(height) for row in heat.rows for height in row)
    return {
        "images": _short(heat.images),
        "bins": len(heat.rows[0]),
        "cells": base64.b64encode(cells).decode("ascii"),
    }


def _byte(height: float) -> int:
    if not height > 0:
        return 0
    octave = min(max(math.log2(height), -OCTAVES), OCTAVES)
    return round((octave + OCTAVES) / (2 * OCTAVES) * 255)


def _short(values: Iterable[float | None]) -> list[float | int | None]:
    """Five digits, more than a screen shows."""
    return [_digits(value) for value in values]


def _digits(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.5g}")
