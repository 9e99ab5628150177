"""Stepwell: which timesteps a diffusion model trains on.

Names load on first use (PEP 562), so `import stepwell` and the command line stay quick without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.core.deprecated import deprecated

if TYPE_CHECKING:
    from stepwell import loss_at as loss_at
    from stepwell.catalogue.build import process as process
    from stepwell.catalogue.build import sampler as sampler
    from stepwell.catalogue.build import weighting as weighting
    from stepwell.core.errors import StepwellError as StepwellError
    from stepwell.core.feedback import Feedback as Feedback
    from stepwell.core.process import NoiseProcess as NoiseProcess
    from stepwell.core.sampler import Draw as Draw
    from stepwell.core.sampler import TimestepSampler as TimestepSampler
    from stepwell.core.tick import Tick as Tick
    from stepwell.objective import Objective as Objective
    from stepwell.pacer import Pacer as Pacer
    from stepwell.processes.scheduler import process_from as process_from
    from stepwell.samplers.combinators import mix as mix
    from stepwell.samplers.combinators import shift as shift
    from stepwell.samplers.combinators import stratified as stratified
    from stepwell.samplers.combinators import unbiased as unbiased
    from stepwell.samplers.combinators import warm_up as warm_up
    from stepwell.samplers.combinators import within as within
    from stepwell.samplers.over_steps import over_steps as over_steps
    from stepwell.weightings import Weighting as Weighting

__version__ = "0.1.0"

_NAMES = {
    "catalogue.build": "process sampler weighting",
    "core.errors": "StepwellError",
    "core.feedback": "Feedback",
    "core.process": "NoiseProcess",
    "core.sampler": "Draw TimestepSampler",
    "core.tick": "Tick",
    "objective": "Objective",
    "pacer": "Pacer",
    "processes.scheduler": "process_from",
    "samplers.combinators": "mix shift stratified unbiased warm_up within",
    "samplers.over_steps": "over_steps",
    "weightings": "Weighting",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_DEPRECATED = {
    "ProbeSpec": "stepwell.core.probe.ProbeSpec",
    "Signal": "stepwell.core.feedback.Signal",
    "areas": "stepwell.core.increments.areas",
    "convert": "stepwell.core.prediction.convert",
    "increments": "stepwell.core.increments.increments",
    "pmf": "stepwell.core.sampler.pmf",
}

__all__ = sorted({*_HOMES, "loss_at"})


def __getattr__(name: str) -> Any:
    if name == "loss_at":
        return import_module("stepwell.loss_at")
    if name in _HOMES:
        return getattr(import_module(f"stepwell.{_HOMES[name]}"), name)
    return deprecated(__name__, name, _DEPRECATED)


def __dir__() -> list[str]:
    return __all__
