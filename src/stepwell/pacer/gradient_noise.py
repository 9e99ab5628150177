"""The gradient's signal and noise, measured: from which batch size on noise no longer limits training.

The critical batch is tr Cov / |G|^2 (`core/allocation.py`), with tr Cov the variance of one example's
gradient, here in the metric of Adam's preconditioner. It depends on the weights it is measured at: small
batches and large learning rates displace them at random, and most of |G|^2 there only leads back. Averaged
weights are nearly free of that: at batch 4 they gave 110, the last ones 13 (benchmarks/LOG.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.allocation import Noise, critical_batch
from stepwell.core.errors import InvalidParameter
from stepwell.core.estimates import MIN_ROUNDS, NORMAL, Estimate, jackknife
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


class Draws(NamedTuple):
    """Draws whose images are asked for."""

    left: float
    """What they leave of the variance within strata."""
    error: float
    """Its standard error."""
    stratified: bool


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
            here = context.of_examples(rows, replace(context.tick, seed=seed, step=stratum))
            probe = Gradients()
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

    def variances(self) -> Tensor:
        """[K]: tr Cov of one example's gradient within each stratum, all of equal shares."""
        return self._rows[:, :STRATA].mean(0)

    def noise(self, rows: Tensor | slice = slice(None)) -> Noise:
        """The mean of some or all measurements."""
        mean = self._rows[rows].mean(0)
        return Noise(mean[:STRATA].mean(), mean[-2] - mean[-1], mean[-1])

    def estimates(self, batch: int, asked: Sequence[Draws]) -> list[Estimate] | None:
        """The critical batch, then the images of each of the draws; None until enough is known."""
        if self.measured < MIN_ROUNDS or not batch:
            return None

        def statistic(rows: Tensor) -> Tensor:
            noise = self.noise(rows)
            images = [noise.images(batch, draws.left, draws.stratified) for draws in asked]
            return torch.stack([noise.per_noise(), *images])

        per_noise, *images = jackknife(statistic, self.measured)
        noise, found = self.noise(), [critical_batch(per_noise)]
        # What draws leave is known from other data: its error comes on top.
        slope = noise.images(batch, 1.0, True) - noise.images(batch, 0.0, True)
        for draws, image in zip(asked, images, strict=True):
            found.append(image.widened(NORMAL * draws.error * float(slope)).clamped(0.0, 2.0))
        return found

    def state_dict(self) -> State:
        """The measurements that count."""
        return {"rows": self._rows.clone(), "count": self._count}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        rows = saved_state.tensor(state, "rows", "the gradient's noise", (None, STRATA + 2))
        self._rows, self._count = rows.cpu(), saved_state.count(state, "count", "the gradient's noise")
