"""How much less noise a better choice of timesteps would leave, and what that is worth: one short probe.

With strata that hold the shares q_i of the objective, and s_i the standard deviation of one example's
weighted gradient in stratum i, a batch of B drawn stratum by stratum has the variance sum(q s^2) / B if it is
drawn like the objective, and sum(q s)^2 / B if in proportion to q s (Neyman 1934). For K strata of equal
shares the ratio is (sum s)^2 / (K sum s^2).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
from stepwell.catalogue.find import find
from stepwell.data.source import ExampleSource
from stepwell.probes.context import ProbeSetup
from stepwell.samplers.gradients import strata_spec
from stepwell.train.step import Training
from stepwell.weightings import Weighting


@dataclass(frozen=True)
class Gain:
    """What a probe found, all for the model as it is now; gradients are of the weighted loss."""

    borders: tuple[float, ...]
    """[K + 1]: of the strata, in unit time."""
    spread: tuple[float, ...]
    """[K]: the standard deviation of one example's gradient in each stratum, over the mean of all."""
    shares: tuple[float, ...]
    """[K]: what each stratum holds of the objective."""
    metric: str
    """adam: gradients were measured in the metric of Adam's preconditioner; none: plainly."""
    batch: int
    """The batch that the figures below are for."""
    floor: float
    """The share of even draws, those of the objective's own density, that `neyman` keeps by default."""
    ratio: Estimate
    """(sum q s)^2 / sum q s^2: the variance within strata, drawn in proportion over drawn evenly."""
    ratio_floored: Estimate
    """The same for `neyman` with its floor."""
    between_share: Estimate
    """The share of even, independent draws' variance that lies between strata: stratified draws have none."""
    critical_batch: Estimate
    """tr Cov / |mean|^2 of one example's gradient: in larger batches the signal outweighs the noise."""
    noise_share: Estimate
    """f = (tr Cov / B) / (tr Cov / B + |mean|^2): the noise in the second moment of an update."""
    images_ratio: Estimate
    """1 - f (1 - r): the images that `neyman` would need, over even draws'; an estimate.

    Steps to a target go like 1 + tr Cov / (B |mean|^2) at the best learning rate (McCandlish et al. 2018,
    Eq. 2.7, for a Hessian like the identity in this metric), and r is the ratio of the two variances.
    """

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def gain(
    training: Training,
    source: ExampleSource,
    batch: int,
    effort: Effort,
    weighting: Weighting | None = None,
    progress: Progress = unseen,
) -> Gain:
    """The gain of a training as it stands, on images it was not necessarily shown; `batch` over all ranks."""
    setup, examples = watch(training, source, effort, weighting)
    return gain_of(setup, examples, batch, effort, progress)


def gain_of(
    setup: ProbeSetup, examples: Examples, batch: int, effort: Effort, progress: Progress = unseen
) -> Gain:
    """The gain of any losses with any optimizer."""
    spec = strata_spec(setup.process, effort.strata, 1, effort.images, None, "adam")
    shares = setup.process.reference.masses(torch.tensor(spec.borders, dtype=torch.float64)).double()
    halves = halves_of(setup, examples, spec, effort.rounds, progress)
    floor = next(p.default for p in find("sampler", "neyman").parameters if p.name == "floor")

    def statistic(rounds: Tensor) -> Tensor:
        return _figures(halves[rounds], shares, effort.images, batch, floor)

    ratio, floored, between, per_signal, images = jackknife(statistic, effort.rounds)
    spread = variances(halves, effort.images).sqrt()
    per_signal = per_signal.within(0.0, float("inf"))
    return Gain(
        borders=spec.borders,
        spread=tuple((spread / (shares @ spread)).tolist()),
        shares=tuple(shares.tolist()),
        metric="adam" if preconditioned(setup) else "none",
        batch=batch,
        floor=floor,
        ratio=ratio.within(0.0, 1.0),
        ratio_floored=floored.within(0.0, 1.0),
        between_share=between.within(0.0, 1.0),
        critical_batch=per_signal.mapped(lambda signal: 1 / signal if signal else float("inf")),
        noise_share=per_signal.mapped(lambda signal: 1 / (1 + batch * signal)),
        images_ratio=images.within(0.0, 1.0),
    )


def _figures(halves: Tensor, shares: Tensor, images: int, batch: int, floor: float) -> Tensor:
    """[5]: ratio, ratio with a floor, share between strata, |mean|^2 / tr Cov, ratio of images."""
    variance = variances(halves, images)
    spread, within = variance.sqrt(), shares @ variance
    mean = shares @ spread
    # Draws there, over even draws: each has to be worth as much less.
    density = (1 - floor) * spread / mean + floor
    ratio, floored = mean.square() / within, shares @ (variance / density) / within
    # Products of different images' means: their noise has no part in the expectation.
    one, other = halves.mean(0).unbind(1)
    signal = (shares @ one) @ (shares @ other)
    between = shares @ (one * other).sum(-1) - signal
    total = within + between.clamp(min=0)
    noise = 1 / (1 + batch * (signal / total).clamp(min=0))
    images_ratio = 1 - noise * (1 - floored * within / total)
    return torch.stack([ratio, floored, between / total, signal / total, images_ratio])
