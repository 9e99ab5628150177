"""What can be measured around an update: the decrease of the loss, and gradients per stratum of time."""

from __future__ import annotations

from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.probes.context import Probe as Probe
from stepwell.probes.decrease import Decrease
from stepwell.probes.gradients import Gradients


def probe_for(spec: ProbeSpec | None) -> Probe:
    """The probe that measures what a sampler asks for."""
    if isinstance(spec, GradientSpec):
        return Gradients()
    if isinstance(spec, DecreaseSpec):
        return Decrease()
    return Probe()
