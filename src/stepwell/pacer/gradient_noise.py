"""The gradient's signal and noise, measured: from which batch size on noise no longer limits training.

An update's gradient is the mean gradient G plus noise, which falls with the batch. B_crit = tr Cov / |G|^2,
with tr Cov the variance of one example's gradient, is the batch at which both are equal (McCandlish et al.
2018, Eq. 2.8), here in the metric of Adam's preconditioner. It depends on the weights it is measured at:
small batches and large learning rates displace them at random, and most of |G|^2 there only leads back.
Averaged weights are nearly free of that: at batch 4 they gave 110, the last ones 13 (benchmarks/LOG.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.estimates import MIN_ROUNDS, Estimate, jackknife
from stepwell.core.tensors import State
from stepwell.core.tick import stream_key
from stepwell.probes.context import ProbeContext
from stepwell.probes.gradients import Gradients
from stepwell.samplers.gradients import strata_spec

STRATA = 8
LEAST_EXAMPLES = 2 * STRATA
"""Of a measurement: one in each half of each stratum."""
KEPT = 8
"""Measurements that count: older ones belong to a model that has changed since."""


@dataclass(frozen=True)
class Noise:
    """What the measurements so far say."""

    variances: Tensor
    """[K]: tr Cov of one example's gradient within each stratum; the objective draws all equally often."""
    between: Tensor
    """tr Cov between strata, which independent draws have beside that within them; stratified ones do not."""
    signal: Tensor
    """|G|^2."""

    @property
    def total(self) -> Tensor:
        """tr Cov of one example's gradient, drawn like the objective."""
        return self.variances.mean() + self.between.clamp(min=0)

    def critical_batch(self) -> Tensor:
        """tr Cov / |G|^2; infinite where no signal was seen."""
        return torch.where(self.signal > 0, self.total / self.signal, torch.inf)

    def images(self, batch: int, left: float, stratified: bool) -> Tensor:
        """Images of draws that leave a share of the variance within strata over those of the objective's own.

        (1 + left x) / (1 + x) with x = critical batch / batch (McCandlish et al. 2018, Eq. 2.7).
        """
        remains = left * self.variances.mean() + (0.0 if stratified else self.between.clamp(min=0))
        signal = batch * self.signal.clamp(min=0)
        return (signal + remains) / (signal + self.total)


class GradientNoise:
    """Keeps the last measurements, and answers with intervals over them."""

    def __init__(self) -> None:
        self._rows = torch.zeros(0, STRATA + 2, dtype=torch.float64)
        """[n <= KEPT, K + 2]: variances within strata, signal + between, signal."""
        self._count = 0

    def measure(self, context: ProbeContext) -> None:
        """Two gradients in each stratum, of different examples of the context's x0 [n, ...]."""
        each = len(context.x0) // LEAST_EXAMPLES
        if not each:
            raise InvalidParameter(
                f"the gradient's noise is measured on {LEAST_EXAMPLES} examples or more, two in each of "
                f"{STRATA} strata of time, not on {len(context.x0)}: give measure a larger x0."
            )
        spec = strata_spec(context.setup.process, STRATA, 1, each * context.group.world, None, "adam")
        seed = stream_key(context.tick.seed, f"gradient noise {self._count}")
        halves = []
        for stratum in range(STRATA):
            rows = torch.arange(2 * each * stratum, 2 * each * (stratum + 1), device=context.x0.device)
            probe, here = (
                Gradients(),
                context.of_examples(rows, replace(context.tick, seed=seed, step=stratum)),
            )
            probe.add_batch(here.x0, here.condition, spec, context.group.world)
            signal = probe.after(here, spec)
            assert signal is not None, "there are as many examples as the probe needs"
            halves.append(signal.halves.double().cpu())
        self._add(torch.stack(halves), each * context.group.world)

    def _add(self, halves: Tensor, images: int) -> None:
        """Take in the mean gradients [K, 2, d] of two halves of `images` examples in each stratum."""
        self._count += 1
        if not bool(halves.isfinite().all()):
            return
        one, other = halves.unbind(1)
        # Half the squared distance of two independent means of n is the variance of one of them.
        variances = (one - other).square().sum(-1) * (images / 2)
        # Products of means of different images have no noise in their expectation.
        both = torch.stack([(one * other).sum(-1).mean(), one.mean(0) @ other.mean(0)])
        self._rows = torch.cat([self._rows, torch.cat([variances, both])[None]])[-KEPT:]

    @property
    def measured(self) -> int:
        """How many measurements count."""
        return len(self._rows)

    def noise(self, rows: Tensor | slice = slice(None)) -> Noise:
        """The mean of some or all measurements."""
        mean = self._rows[rows].mean(0)
        return Noise(mean[:STRATA], mean[-2] - mean[-1], mean[-1])

    def estimates(self, batch: int, shares: list[tuple[float, bool]]) -> list[Estimate] | None:
        """The critical batch, then the images of draws that leave each (share, stratified); None: too few."""
        if self.measured < MIN_ROUNDS:
            return None

        def statistic(rows: Tensor) -> Tensor:
            noise = self.noise(rows)
            # Of the signal over the noise: its inverse has no bound.
            per_noise = noise.signal / noise.total
            return torch.stack([per_noise, *(noise.images(batch, left, even) for left, even in shares)])

        per_noise, *images = jackknife(statistic, self.measured)
        critical = per_noise.clamped(0.0, float("inf")).mapped(lambda v: 1 / v if v else float("inf"))
        return [critical, *(image.clamped(0.0, 2.0) for image in images)]

    def state_dict(self) -> State:
        """The measurements that count."""
        return {"rows": self._rows.clone(), "count": self._count}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self._rows, self._count = state["rows"].clone().cpu(), int(state["count"])
