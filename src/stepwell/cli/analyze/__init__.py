"""`stepwell analyze`: what a short look at a model and its data can tell. One subject, one file."""

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

SUBJECTS = (gain, variance, interdependence, densities, increments, approximation, step_cost)
"""Modules with `register(subjects)`, in the order of the help."""


def register(verbs: Any) -> None:
    """Add the verb and its subjects to the command line."""
    verb = verbs.add_parser("analyze", help="look at a model before paying for a run", description=__doc__)
    subjects = verb.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    for module in SUBJECTS:
        module.register(subjects)
