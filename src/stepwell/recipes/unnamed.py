"""Settings that follow others where nobody named them: a short run has a short warm-up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stepwell.train.optimizers import OPTIMIZERS

EVALUATIONS = 20
"""Of a run whose steps were named and evaluate_every was not."""


def how_often(steps: int, times: int) -> int:
    """Steps between so many occasions in a run."""
    return max(1, steps // times)


def followed(values: Mapping[str, Any], named: Collection[str]) -> dict[str, Any]:
    """New values of settings that were not `named`, but depend on one that was."""
    wanted: dict[str, Any] = {}
    if "steps" in named:
        wanted |= _scaled(values)
    if "optimizer" in named:
        wanted |= OPTIMIZERS[values["optimizer"]].usual
    return {name: new for name, new in wanted.items() if name not in named and new != values[name]}


def _scaled(values: Mapping[str, Any]) -> dict[str, int]:
    """A tenth of the steps for warm-up at most, twenty evaluations, and enough of the rest."""
    steps = values["steps"]
    shares = {"checkpoint_every": 4, "sample_every": 4, "record_every": 20}
    return {
        "warm_up_steps": min(values["warm_up_steps"], steps // 10),
        "evaluate_every": how_often(steps, EVALUATIONS) if values["evaluate_every"] else 0,
        **{name: min(values[name], how_often(steps, times)) for name, times in shares.items()},
    }
