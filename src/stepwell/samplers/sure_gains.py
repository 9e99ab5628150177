"""Gains of strata that can be told from noise: what a policy may be paid for."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.density import Density
from stepwell.core.feedback import Feedback, GradientSignal
from stepwell.core.probe_spec import GradientSpec
from stepwell.core.sampler import Metrics, State
from stepwell.samplers.alignment import Alignment

LEAST_VISITS = 3
"""Measurements of a stratum before its spread means anything."""
ERRORS = 2.0
"""A gain of fewer standard errors than this counts as none."""


class SureGains(Alignment):
    """Alignment that also keeps how much a stratum's gain differs from one measurement to the next.

    A policy follows what it is paid: where the target's weights are steep, as the bound's are near the data,
    one lucky measurement would carry it off.
    """

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        super().__init__(label, reference, spec, decay)
        self._visits = torch.zeros(spec.strata)
        self._moments = torch.zeros(spec.strata, 2)

    def learn(self, feedback: Feedback) -> Metrics:
        metrics, signal = super().learn(feedback), feedback.signal
        if not isinstance(signal, GradientSignal):
            return metrics
        finite = signal.halves.isfinite().all()
        target = self._mean(self._bank)[:, 1].mean(0)
        # In units of the mean gain: gradients shrink as training goes on, which is no noise.
        gain = signal.halves[0].detach().float() @ target / self._scale()
        gain = torch.where(finite, gain, 0.0)
        here = torch.arange(len(self._visits), device=gain.device) == signal.stratum
        kept = torch.where(here & finite, self._decay, 1.0)[:, None]
        self._moments = kept * self._moments + (1 - kept) * torch.stack([gain, gain.square()])
        self._visits = self._visits + (here & finite)
        return {**metrics, "sure_gains": (self.sure() != 0).float().mean()}

    def _scale(self) -> Tensor:
        return self.gains().abs().mean().clamp(min=1e-30)

    @property
    def ready(self) -> Tensor:
        """Whether every stratum was measured often enough: a bool of no dimensions, on the device."""
        return (self._visits >= LEAST_VISITS).all()

    def sure(self) -> Tensor:
        """[K]: gains in units of their mean, shrunk by what noise would give (James and Stein, positive part).

        Where all is noise, all are 0.
        """
        gains = self.gains() / self._scale()
        first, second = self._mean(self._moments).unbind(1)
        # As many measurements as the running mean remembers.
        count = self._visits.clamp(min=2, max=(1 + self._decay) / (1 - self._decay))
        error = ((second - first.square()).clamp(min=0) / (count - 1)).sqrt()
        noise = ERRORS * error / gains.abs().clamp(min=1e-30)
        return gains * (1 - noise.square()).clamp(min=0)

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._visits, self._moments = self._visits.to(device), self._moments.to(device)

    def state_dict(self) -> State:
        return {**super().state_dict(), "visits": self._visits.clone(), "moments": self._moments.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._visits, self._moments = (state[key].clone().to(self._seen) for key in ("visits", "moments"))
