"""Gradient variance and loss over time, of the simple loss and the bound (Kim et al. 2025, Fig. 2 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.analyze.gradient_rounds import GradientRounds
from stepwell.core.errors import Unsupported
from stepwell.core.estimates import Estimate, jackknife
from stepwell.core.probe import GradientSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample
from stepwell.probes.context import LossAt
from stepwell.weightings import Unweighted, Vlb, Weighting


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
    cap: float | None
    """The largest weight of the bound; None: its own weights, as in the paper."""
    metric: str
    """adam: gradients were scaled by Adam's preconditioner; or plain."""
    gradients: int
    """Examples measured in each stratum."""


def variance(gradients: GradientRounds, metric: str = "plain", cap: float | None = None) -> Variance:
    """Variance and loss of both objectives, with the same examples, times and noise."""
    spec, effort = gradients.spec(metric), gradients.effort
    # Only the halves' difference is needed, which takes one backward pass instead of two.
    difference = replace(spec, difference_only=True)
    weightings, missing = objectives(gradients.setup.process, cap)
    curves: dict[str, Curve] = {}
    for place, (name, weighting) in enumerate(weightings.items()):

        def progress(done: int, total: int, before: int = place) -> None:
            gradients.progress(before * total + done, len(weightings) * total)

        setup = replace(gradients.setup, weighting=weighting)
        curves[name] = _curve(replace(gradients, setup=setup, progress=progress), difference)
    count = 2 * effort.images * effort.rounds
    return Variance(spec.borders, curves, missing, cap, gradients.metric(spec), count)


def objectives(
    process: NoiseProcess, cap: float | None = None
) -> tuple[Mapping[str, Weighting], dict[str, str]]:
    """The weightings of the paper's two losses, and why a process does not support one of them."""
    known: dict[str, Weighting] = {"simple": Unweighted(), "bound": Vlb(cap=cap)}
    weightings: dict[str, Weighting] = {}
    missing: dict[str, str] = {}
    for name, weighting in known.items():
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


def _curve(gradients: GradientRounds, spec: GradientSpec) -> Curve:
    setup, rounds = gradients.setup, gradients.effort.rounds
    recorded = _Recorded(setup.loss_at)
    halves = replace(gradients, setup=replace(setup, loss_at=recorded)).halves(spec)
    weighted = [plain * setup.weighting(setup.process, u) for u, plain in recorded.calls]
    losses = torch.stack([each.double().mean().cpu() for each in weighted]).view(rounds, spec.strata)
    variances = jackknife(lambda chosen: gradients.variances(halves[chosen]), rounds)
    return Curve(
        variance=tuple(each.clamped(0.0, float("inf")) for each in variances),
        loss=tuple(jackknife(lambda chosen: losses[chosen].mean(0), rounds)),
    )
