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
"""Measurements of a stratum before their spread means anything."""
ERRORS = 2.0
"""A gain of fewer standard errors than this counts as none."""


class SureGains(Alignment):
    """Alignment that also keeps how much the angle to the target's gradient differs between measurements.

    A policy follows what it is paid: where the target's weights are steep, as the bound's are near the data,
    one lucky measurement would carry it off. Angles, since gradients shrink as training goes on: the spread
    of the gains themselves would be that trend.
    """

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        super().__init__(label, reference, spec, decay)
        self._visits = torch.zeros(spec.strata)
        self._cosines = torch.zeros(spec.strata, 2)

    def learn(self, feedback: Feedback) -> Metrics:
        metrics, signal = super().learn(feedback), feedback.signal
        if not isinstance(signal, GradientSignal):
            return metrics
        finite = signal.halves.isfinite().all()
        target = self._mean(self._bank)[:, 1].mean(0)
        cosine = torch.cosine_similarity(signal.halves[0].detach().float(), target, dim=0)
        cosine = torch.where(finite, cosine, 0.0)
        here = torch.arange(len(self._visits), device=cosine.device) == signal.stratum
        kept = torch.where(here & finite, self._decay, 1.0)[:, None]
        self._cosines = kept * self._cosines + (1 - kept) * torch.stack([cosine, cosine.square()])
        self._visits = self._visits + (here & finite)
        return {**metrics, "sure_gains": (self.sure() != 0).float().mean()}

    @property
    def ready(self) -> Tensor:
        """Whether every stratum was measured often enough: a bool of no dimensions, on the device."""
        return (self._visits >= LEAST_VISITS).all()

    def sure(self) -> Tensor:
        """[K]: gains in units of their mean, shrunk as noisy cosines are (James and Stein, positive part).

        Where all is noise, all are 0.
        """
        gains = self.gains()
        first, second = self._mean(self._cosines).unbind(1)
        # As many measurements as the running mean remembers.
        count = self._visits.clamp(min=2, max=(1 + self._decay) / (1 - self._decay))
        error = ((second - first.square()).clamp(min=0) / (count - 1)).sqrt()
        noise = ERRORS * error / first.abs().clamp(min=1e-30)
        return gains / gains.abs().mean().clamp(min=1e-30) * (1 - noise.square()).clamp(min=0)

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._visits, self._cosines = self._visits.to(device), self._cosines.to(device)

    def state_dict(self) -> State:
        return {**super().state_dict(), "visits": self._visits.clone(), "cosines": self._cosines.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._visits, self._cosines = (state[key].clone().to(self._seen) for key in ("visits", "cosines"))
