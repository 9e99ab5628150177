"""`over-steps` by names: `stages=[0 uniform; 2000 logit-normal:mean=1]`, or a mapping of steps to names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.samplers.over_steps import over_steps


def staged(
    process: NoiseProcess, stages: str | Mapping[Any, str | TimestepSampler], blend: str = "switch"
) -> TimestepSampler:
    """One sampler for each stage of training, by optimizer step."""
    named = _parsed(stages) if isinstance(stages, str) else stages
    if not isinstance(named, Mapping):
        raise InvalidParameter(f"stages must be written {_FORM}, not {stages!r}.")
    built = {
        _step(step): build.sampler(one, process) if isinstance(one, str) else one
        for step, one in named.items()
    }
    return over_steps(built, blend)


_FORM = "[0 uniform; 2000 logit-normal:mean=1], steps and samplers"


def _parsed(text: str) -> dict[str, str]:
    stages: dict[str, str] = {}
    for stage in text.strip().removeprefix("[").removesuffix("]").split(";"):
        step, _, name = stage.strip().partition(" ")
        if not name:
            raise InvalidParameter(f"stages={text}: {stage.strip()!r} is no stage; write {_FORM}.")
        if step in stages:
            raise InvalidParameter(f"stages={text}: step {step} has two samplers.")
        stages[step] = name.strip()
    return stages


def _step(step: Any) -> int:
    # A TOML table has text for keys.
    return int(step) if isinstance(step, str) and step.isdecimal() else step
