"""Gradient variance and loss over time, of the simple loss and the bound (Kim et al. 2025, Fig. 2 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.analyze.estimates import (
    Effort,
    Estimate,
    Examples,
    Progress,
    gradient_inputs,
    gradient_metric,
    gradient_variances,
    half_gradients,
    jackknife,
    no_progress,
)
from stepwell.catalogue import build
from stepwell.core.errors import Unsupported
from stepwell.core.probe import GradientSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample
from stepwell.data.source import ExampleSource
from stepwell.probes.context import LossAt, ProbeSetup
from stepwell.runs.metrics import OBJECTIVES
from stepwell.samplers.gradients import strata_spec
from stepwell.train.step import Training
from stepwell.weightings import Weighting


@dataclass(frozen=True)
class Curve:
    """One objective over time."""

    variance: tuple[Estimate, ...]
    """[K]: the trace of the covariance of one example's weighted gradient within the stratum."""
    loss: tuple[Estimate, ...]
    """[K]: the mean weighted loss of the same examples."""


@dataclass(frozen=True)
class Variance:
    """Gradient variance and loss in every stratum, for the model as it is now."""

    borders: tuple[float, ...]
    """[K + 1]: borders of the strata, in unit time."""
    curves: dict[str, Curve]
    """By name of the objective."""
    missing: dict[str, str]
    """Objectives that the process does not support, and why."""
    metric: str
    """adam: gradients were scaled by Adam's preconditioner; or plain."""
    gradients: int
    """Examples measured in each stratum."""


def variance(
    training: Training,
    source: ExampleSource,
    effort: Effort,
    metric: str = "plain",
    progress: Progress = no_progress,
) -> Variance:
    """The variance for a training in its present state, which stays as it is."""
    setup, examples = gradient_inputs(training, source, effort)
    return variance_of(setup, examples, effort, metric, progress)


def variance_of(
    setup: ProbeSetup,
    examples: Examples,
    effort: Effort,
    metric: str = "plain",
    progress: Progress = no_progress,
) -> Variance:
    """The variance for any losses; both objectives have the same examples, times and noise."""
    spec = strata_spec(setup.process, effort.strata, 1, effort.images, None, metric)
    weightings, missing = objectives(setup.process)
    curves: dict[str, Curve] = {}
    for place, (name, weighting) in enumerate(weightings.items()):

        def passed(done: int, total: int, before: int = place) -> None:
            progress(before * total + done, len(weightings) * total)

        # Only the halves' distance is needed, which takes one pass instead of two.
        difference = replace(spec, difference_only=True)
        curves[name] = _curve(replace(setup, weighting=weighting), examples, difference, effort, passed)
    count = 2 * effort.images * effort.rounds
    return Variance(spec.borders, curves, missing, gradient_metric(setup, spec), count)


def objectives(process: NoiseProcess) -> tuple[Mapping[str, Weighting], dict[str, str]]:
    """The weightings of the paper's two losses, and why a process does not support one of them."""
    weightings: dict[str, Weighting] = {}
    missing: dict[str, str] = {}
    for name, known in OBJECTIVES.items():
        weighting = build.weighting(known)
        try:
            weighting(process, torch.full((1,), 0.5))
        except Unsupported as error:
            missing[name] = str(error)
        else:
            weightings[name] = weighting
    return weightings, missing


@dataclass
class _Recorded:
    """Losses that record their times and values, so that the probe's examples give the loss too."""

    loss_at: LossAt
    calls: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        plain = self.loss_at(x0, noise, u, condition)
        self.calls.append((u.detach(), plain.detach()))
        return plain


def _curve(
    setup: ProbeSetup, examples: Examples, spec: GradientSpec, effort: Effort, progress: Progress
) -> Curve:
    recorded = _Recorded(setup.loss_at)
    halves = half_gradients(replace(setup, loss_at=recorded), examples, spec, effort.rounds, progress)
    weighted = [plain * setup.weighting(setup.process, u) for u, plain in recorded.calls]
    losses = torch.stack([each.double().mean().cpu() for each in weighted]).view(effort.rounds, spec.strata)
    by_round = jackknife(lambda rounds: gradient_variances(halves[rounds], effort.images), effort.rounds)
    return Curve(
        variance=tuple(each.clamped(0.0, float("inf")) for each in by_round),
        loss=tuple(jackknife(lambda rounds: losses[rounds].mean(0), effort.rounds)),
    )
