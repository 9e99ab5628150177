"""`stepwell analyze`: measure a model and its data before paying for a run. One analysis, one file."""

from __future__ import annotations

from typing import Any

from stepwell.cli.analyze import (
    approximation,
    densities,
    gain,
    increments,
    interdependence,
    step_cost,
    variance,
)

_DESCRIPTION = "Measure a model and its data before paying for a run."
ANALYSES = (gain, variance, interdependence, densities, increments, approximation, step_cost)
"""Modules with `register(analyses)`, in the order of the help."""


def register(verbs: Any) -> None:
    """Add the verb and its analyses to the command line."""
    verb = verbs.add_parser(
        "analyze", help="measure a model before paying for a run", description=_DESCRIPTION
    )
    analyses = verb.add_subparsers(dest="analysis", metavar="ANALYSIS", required=True)
    for module in ANALYSES:
        module.register(analyses)
