"""Draw where an update lowers the target most: alignment of gradients between strata of time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stepwell.core.density import Density
from stepwell.core.feedback import GradientSignal
from stepwell.core.probe_spec import GradientSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler
from stepwell.samplers.strata import Strata, floored, strata_spec


def alignment(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int = 24,
    images: int = 16,
    decay: float = 0.7,
    floor: float = 0.2,
    target: str = "vlb",
    metric: str = "adam",
) -> TimestepSampler:
    """p in proportion to the first-order decrease of the target from an update on each stratum."""
    spec = strata_spec(process, strata, every_steps, images, target, metric)
    return floored(Alignment("alignment", process.reference, spec, decay), process.reference, floor)


class Alignment(Strata):
    """Masses = the gain <g_i, P sum_j g'_j>, where it is positive.

    Running means of sketches, not of products: noise then averages out before it is multiplied.
    """

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        super().__init__(label, reference, spec, decay)
        self._bank = torch.zeros(spec.strata, 2, 0)

    def _take(self, signal: GradientSignal, kept: Tensor) -> None:
        width = signal.halves.shape[-1]
        if self._bank.shape[-1] != width:
            self._bank = self._bank.new_zeros(len(kept), 2, width)
        kept = kept[:, None, None]
        self._bank = kept * self._bank + (1 - kept) * signal.halves

    def interdependence(self) -> Tensor:
        """[K, K]: how fast training on stratum i lowers the target in stratum j (Kim et al., Fig. 4)."""
        trained, target = self._mean(self._bank).unbind(1)
        across = trained @ target.T
        # With one objective both halves estimate the same gradient: using both ways halves the noise.
        return across if self._spec.target else (across + across.T) / 2

    def gains(self) -> Tensor:
        """[K]: how fast a draw from each stratum lowers the target."""
        return self.interdependence().mean(1)

    def _learned(self) -> Tensor:
        return self.gains().clamp(min=0)

    def reaches(self, u: Tensor) -> Tensor:
        # Any stratum may turn out to gain nothing, and is then left out: only a floor reaches all.
        return torch.zeros_like(u, dtype=torch.bool)

    def _metrics(self) -> Metrics:
        gains = self.gains()
        return {"negative_gains": (gains < 0).float().mean()}

    def portrait(self) -> Mapping[str, Tensor]:
        return {"interdependence": self.interdependence()}

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._bank = self._bank.to(device)

    def state_dict(self) -> State:
        return {**super().state_dict(), "bank": self._bank.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._bank = state["bank"].clone().to(self._seen)
