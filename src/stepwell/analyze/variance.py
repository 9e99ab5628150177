"""The variance of one example's gradient and its loss over time, for the simple loss and for the bound.

The paper's Fig. 2 and 6 (Kim et al. 2025): where in time a training's gradients are noisy, and how that
depends on the schedule and on the objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.analyze.estimates import (
    Effort,
    Estimate,
    Examples,
    Progress,
    halves_of,
    jackknife,
    preconditioned,
    unseen,
    variances,
    watch,
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
    """One objective over time, for the model as it is now."""

    variance: tuple[Estimate, ...]
    """[K]: the trace of the covariance of one example's weighted gradient, its time drawn in the stratum."""
    loss: tuple[Estimate, ...]
    """[K]: the mean weighted loss of the same examples."""


@dataclass(frozen=True)
class Variance:
    """What a probe found in every stratum."""

    borders: tuple[float, ...]
    """[K + 1]: of the strata, in unit time."""
    curves: dict[str, Curve]
    """By the objective's name."""
    missing: dict[str, str]
    """Objectives that the process does not have, and why."""
    metric: str
    """plain, or adam: gradients were measured in the metric of Adam's preconditioner."""
    gradients: int
    """Examples measured in each stratum."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def variance(
    training: Training,
    source: ExampleSource,
    effort: Effort,
    metric: str = "plain",
    progress: Progress = unseen,
) -> Variance:
    """The variance of a training as it stands, which it leaves as it is."""
    setup, examples = watch(training, source, effort)
    return variance_of(setup, examples, effort, metric, progress)


def variance_of(
    setup: ProbeSetup, examples: Examples, effort: Effort, metric: str = "plain", progress: Progress = unseen
) -> Variance:
    """The variance of any losses, for both objectives with the same examples, times and noise."""
    spec = strata_spec(setup.process, effort.strata, 1, effort.images, None, metric)
    weightings, missing = objectives(setup.process)
    curves: dict[str, Curve] = {}
    for place, (name, weighting) in enumerate(weightings.items()):

        def passed(done: int, total: int, before: int = place) -> None:
            progress(before * total + done, len(weightings) * total)

        # Only the halves' distance is needed, which takes one pass instead of two.
        only = replace(spec, difference_only=True)
        curves[name] = _curve(replace(setup, weighting=weighting), examples, only, effort, passed)
    scaled = spec.preconditioned and preconditioned(setup)
    count = 2 * effort.images * effort.rounds
    return Variance(spec.borders, curves, missing, "adam" if scaled else "plain", count)


def objectives(process: NoiseProcess) -> tuple[Mapping[str, Weighting], dict[str, str]]:
    """The weightings of the paper's two losses, and why a process does not have one of them."""
    found: dict[str, Weighting] = {}
    missing: dict[str, str] = {}
    for name, known in OBJECTIVES.items():
        weighting = build.weighting(known)
        try:
            weighting(process, torch.full((1,), 0.5))
        except Unsupported as error:
            missing[name] = str(error)
        else:
            found[name] = weighting
    return found, missing


@dataclass
class _Heard:
    """Losses that remember what they were asked: the probe's own examples tell the loss too."""

    loss_at: LossAt
    calls: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        plain = self.loss_at(x0, noise, u, condition)
        self.calls.append((u.detach(), plain.detach()))
        return plain


def _curve(
    setup: ProbeSetup, examples: Examples, spec: GradientSpec, effort: Effort, progress: Progress
) -> Curve:
    heard = _Heard(setup.loss_at)
    halves = halves_of(replace(setup, loss_at=heard), examples, spec, effort.rounds, progress)
    weighted = [plain * setup.weighting(setup.process, u) for u, plain in heard.calls]
    losses = torch.stack([each.double().mean().cpu() for each in weighted]).view(effort.rounds, spec.strata)
    by_round = jackknife(lambda rounds: variances(halves[rounds], effort.images), effort.rounds)
    return Curve(
        variance=tuple(each.within(0.0, float("inf")) for each in by_round),
        loss=tuple(jackknife(lambda rounds: losses[rounds].mean(0), effort.rounds)),
    )
