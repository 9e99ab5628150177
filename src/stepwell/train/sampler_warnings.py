"""Warnings when the metrics that a sampler reports show that it no longer helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.core.density import centres
from stepwell.pacer import Pacer

PATIENCE = 3
"""Readings in a row before a warning is given or withdrawn: one batch may be an outlier."""


@dataclass(frozen=True)
class Detector:
    """Alarmed while a metric is beyond `limit`, and calm again once it is back past `calm`."""

    name: str
    metric: str
    limit: float
    calm: float
    advice: str
    """What to tell the user; {share} is the metric in per cent."""

    def alarmed(self, value: float) -> bool:
        """Whether the value is beyond the limit, on the side away from `calm`."""
        return value >= self.limit if self.calm < self.limit else value <= self.limit

    def calmed(self, value: float) -> bool:
        """Whether the value is as it should be; between the two nothing changes."""
        return value < self.calm if self.calm < self.limit else value > self.calm


DETECTORS = (
    Detector(
        "collapsed",
        "sampler/top_tenth_mass",
        # With the default floor a policy that has collapsed altogether has 0.91.
        limit=0.85,
        calm=0.75,
        advice="the policy collapsed: {share} of its draws fall into a tenth of time, and the rest is "
        "hardly trained. Give it a larger floor= or entropy=, or a lower learning_rate=.",
    ),
    Detector(
        "unexplained",
        "sampler/explained",
        limit=0.3,
        calm=0.5,
        advice="the subset of timesteps explains only {share} of the decrease that it stands for, so the "
        "reward is mostly about something else. Give it a larger subset=, or credit=alignment.",
    ),
    Detector(
        "jumping",
        "sampler/policy_move",
        limit=0.3,
        calm=0.1,
        advice="the policy jumps: one update moved {share} of its draws elsewhere. Divide its "
        "learning_rate= by ten.",
    ),
    Detector(
        "few effective samples",
        "sampler/effective_sample_share",
        limit=0.3,
        calm=0.4,
        advice="the corrections differ so much that a batch counts like {share} of its examples. Give "
        "the sampler a larger floor= (or uniform_share=), which bounds them.",
    ),
    Detector(
        "gains are noise",
        "sampler/negative_gains",
        limit=0.4,
        calm=0.25,
        advice="the gains are mostly noise: {share} of the strata seem to make the target worse. "
        "Measure with more images=, a larger decay=, or fewer strata=.",
    ),
)


def stayed_at_reference(pacer: Pacer, steps: int) -> str:
    """What to tell about a sampler that learns, and after so many steps still draws like its reference.

    Empty if it moved, or if its forecast says that there is nothing to win.
    """
    sampler = pacer.sampler
    if not sampler.learns:
        return ""
    reference = sampler.reference or pacer.process.reference
    u = centres(256).float()
    moved = (sampler.density(u) - reference.pdf(u)).abs().max() > STAYED * reference.pdf(u).max()
    if moved or pacer.forecast().nothing_to_win:
        return ""
    advice = "Train longer."
    if pacer.first_round is not None:
        advice = (
            f"It has measured all of time once after {pacer.first_round} steps: train longer, or give fewer "
            "strata=."
        )
    return (
        f"all {steps} steps were drawn like the reference: the sampler had not learned enough to draw "
        f"otherwise, so this run says nothing about it. {advice}"
    )


STAYED = 1e-3
"""A density that differs by less than this share of the reference's maximum has not moved."""


@dataclass
class _Reading:
    warned: bool = False
    streak: int = 0
    """Readings in a row that would change `warned`."""


class SamplerWarnings:
    """Checks every record of a run; each detector warns once, and again only after its metric was calm."""

    def __init__(self) -> None:
        self._readings = {detector.name: _Reading() for detector in DETECTORS}

    def check(self, values: Mapping[str, float]) -> list[str]:
        """The warnings that these values of one record call for."""
        found = []
        for detector in DETECTORS:
            value, reading = values.get(detector.metric), self._readings[detector.name]
            if value is None:
                continue
            changes = detector.calmed(value) if reading.warned else detector.alarmed(value)
            reading.streak = reading.streak + 1 if changes else 0
            if reading.streak >= PATIENCE:
                reading.warned, reading.streak = not reading.warned, 0
                if reading.warned:
                    found.append(detector.advice.format(share=f"{100 * value:.0f} %"))
        return found

    def state_dict(self) -> dict[str, Any]:
        """What has been warned about, so that a resumed run warns like one that was never stopped."""
        return {name: {"warned": r.warned, "streak": r.streak} for name, r in self._readings.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; detectors that it does not know start calm."""
        self._readings = {detector.name: _Reading(**state.get(detector.name, {})) for detector in DETECTORS}
