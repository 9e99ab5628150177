"""The data of the page's charts as compact JSON, embedded in the page."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from stepwell.analyze.noised import NoisedExample
from stepwell.compare.report import COLOURS, DENSITY, DENSITY_ON_DARK
from stepwell.compare.views import Heat, Summary

OCTAVES = 6
"""Densities are clipped to 2^-6 and 2^6 times uniform: one byte each, exact to 3 %."""


def chart_data(summary: Summary) -> dict[str, Any]:
    """Curves, densities, bands and profiles as JSON values."""
    methods = sorted(summary.colours.items(), key=lambda item: item[1])
    data: dict[str, Any] = _compact(
        {
            "palette": len(COLOURS),
            "octaves": OCTAVES,
            "density": {"light": DENSITY, "dark": DENSITY_ON_DARK},
            "metrics": [{"key": metric.key, "name": metric.title} for metric in summary.metrics],
            "methods": [{"name": name, "colour": colour} for name, colour in methods],
            "workloads": [
                {
                    "name": workload.name,
                    "baseline": workload.baseline,
                    "noise": _noise(workload.noise),
                    "methods": [
                        {
                            "name": method.name,
                            "colour": method.colour,
                            "heat": _heat(method.density),
                            "weight": method.effective_weight,
                            "bands": method.bands,
                        }
                        for method in workload.methods
                    ],
                    "runs": [{key: getattr(run, key) for key in _OF_RUN} for run in workload.runs],
                }
                for workload in summary.workloads
            ],
            "profiles": [
                {"name": one.method, "colour": one.colour, "factors": one.factors, "shares": one.shares}
                for one in summary.profiles
            ],
        }
    )
    return data


_OF_RUN = ("method", "seed", "finished", "steps", "images", "seconds", "values")


def _heat(heat: Heat | None) -> dict[str, Any] | None:
    """One byte per cell: the logarithm of the density."""
    if heat is None or not heat.rows:
        return None
    cells = bytes(_byte(height) for row in heat.rows for height in row)
    return {
        "images": heat.images,
        "bins": len(heat.rows[0]),
        "cells": base64.b64encode(cells).decode("ascii"),
    }


def _noise(axis: NoisedExample | None) -> dict[str, Any] | None:
    if axis is None:
        return None
    grey = bytes(value for row in axis.pixels for value in row)
    return {
        "logSnr": axis.log_snr,
        "height": len(axis.pixels),
        "grey": base64.b64encode(grey).decode("ascii"),
    }


def _byte(height: float) -> int:
    if not height > 0:
        return 0
    octave = min(max(math.log2(height), -OCTAVES), OCTAVES)
    return round((octave + OCTAVES) / (2 * OCTAVES) * 255)


def _compact(value: Any) -> Any:
    """A JSON value with numbers of five digits, more than a screen shows; null where they are not finite."""
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_compact(item) for item in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.5g}")


def embedded(value: Any) -> str:
    """JSON that can neither end the script element around it nor start another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
