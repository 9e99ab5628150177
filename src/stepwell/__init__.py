"""Stepwell: which timesteps a diffusion model trains on.

Names load on first use (PEP 562), so `import stepwell` and the command line stay quick without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell import loss_at as loss_at
    from stepwell.catalogue.build import process as process
    from stepwell.catalogue.build import sampler as sampler
    from stepwell.catalogue.build import weighting as weighting
    from stepwell.core.errors import StepwellError as StepwellError
    from stepwell.core.feedback import Feedback as Feedback
    from stepwell.core.feedback import Signal as Signal
    from stepwell.core.increments import areas as areas
    from stepwell.core.increments import increments as increments
    from stepwell.core.probe import ProbeSpec as ProbeSpec
    from stepwell.core.process import NoiseProcess as NoiseProcess
    from stepwell.core.sampler import Draw as Draw
    from stepwell.core.sampler import TimestepSampler as TimestepSampler
    from stepwell.core.sampler import pmf as pmf
    from stepwell.core.tick import Tick as Tick
    from stepwell.objective import Objective as Objective
    from stepwell.pacer import Pacer as Pacer
    from stepwell.processes.prediction import convert as convert
    from stepwell.processes.scheduler import process_from as process_from
    from stepwell.samplers.combinators import mix as mix
    from stepwell.samplers.combinators import stratified as stratified
    from stepwell.samplers.combinators import unbiased as unbiased
    from stepwell.samplers.combinators import warm_up as warm_up
    from stepwell.samplers.warped import shift as shift
    from stepwell.samplers.warped import within as within
    from stepwell.weightings import Weighting as Weighting

__version__ = "0.1.0"

_HOMES = {
    "Draw": "core.sampler",
    "Feedback": "core.feedback",
    "NoiseProcess": "core.process",
    "Objective": "objective",
    "Pacer": "pacer",
    "ProbeSpec": "core.probe",
    "Signal": "core.feedback",
    "StepwellError": "core.errors",
    "Tick": "core.tick",
    "TimestepSampler": "core.sampler",
    "Weighting": "weightings",
    "areas": "core.increments",
    "convert": "processes.prediction",
    "increments": "core.increments",
    "mix": "samplers.combinators",
    "pmf": "core.sampler",
    "process": "catalogue.build",
    "process_from": "processes.scheduler",
    "sampler": "catalogue.build",
    "shift": "samplers.warped",
    "stratified": "samplers.combinators",
    "unbiased": "samplers.combinators",
    "warm_up": "samplers.combinators",
    "weighting": "catalogue.build",
    "within": "samplers.warped",
}

_MODULES = {"loss_at"}

__all__ = sorted({*_HOMES, *_MODULES})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"stepwell.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'stepwell' has no attribute {name!r}")
    return getattr(import_module(f"stepwell.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
