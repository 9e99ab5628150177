"""Draw where gradients are noisy: Neyman allocation, and the variance control of Kim et al."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core.density import Density
from stepwell.core.feedback import GradientSignal
from stepwell.core.probe_spec import GradientSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler
from stepwell.samplers.strata import Strata, floored, strata_spec


def neyman(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int = 16,
    images: int = 16,
    decay: float = 0.7,
    floor: float = 0.2,
    metric: str = "adam",
) -> TimestepSampler:
    """p in proportion to the standard deviation of the weighted gradient (Neyman 1934): least noise."""
    spec = replace(strata_spec(process, strata, every_steps, images, None, metric), contrast=True)
    return floored(
        GradientSpread("neyman", process.reference, spec, decay, power=0.5), process.reference, floor
    )


def gradient_variance(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int = 16,
    images: int = 16,
    decay: float = 0.7,
    floor: float = 0.0,
    metric: str = "plain",
) -> TimestepSampler:
    """p in proportion to the variance of the gradient, without correction (Kim et al. 2025, Tab. 4)."""
    spec = replace(strata_spec(process, strata, every_steps, images, None, metric), contrast=True)
    sampler = GradientSpread("gradient-variance", process.reference, spec, decay, power=1.0)
    return floored(sampler, process.reference, floor)


class GradientSpread(Strata):
    """Masses = (variance of one example's gradient, summed over parameters) ^ power."""

    def __init__(
        self, label: str, reference: Density, spec: GradientSpec, decay: float, power: float
    ) -> None:
        super().__init__(label, reference, spec, decay)
        self._power = power
        self._log_variance = torch.zeros(spec.strata)

    def _take(self, signal: GradientSignal, kept: Tensor) -> None:
        one, other = signal.halves
        # Half the squared distance of two independent means of n is the variance of one of them.
        variance = (one - other).square().sum() * (signal.images / 2)
        # Means of logarithms: a variance measured once is off by a factor, and early ones by a large one.
        self._log_variance = kept * self._log_variance + (1 - kept) * variance.clamp(min=1e-30).log()

    def _learned(self) -> Tensor:
        return (self._power * self._centred()).exp()

    def _centred(self) -> Tensor:
        """[K]: log variances around their mean, so that no scale overflows."""
        logs = self._mean(self._log_variance)
        return logs - logs.mean()

    def _metrics(self) -> Metrics:
        spread = (0.5 * self._centred()).exp()
        ratio = spread.mean().square() / spread.square().mean()
        return {"variance_ratio": ratio}

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._log_variance = self._log_variance.to(device)

    def state_dict(self) -> State:
        return {**super().state_dict(), "log_variance": self._log_variance.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._log_variance = state["log_variance"].clone().to(self._log_variance)
