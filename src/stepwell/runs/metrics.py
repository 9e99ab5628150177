"""The metrics of a run, one entry each: `evaluate`, `compare`, the report and the docs all read this list.

Losses are computed in `evaluate/bands.py`, everything else in `recipes/score.py`, under the key of the entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OBJECTIVES = {"simple": "none", "bound": "vlb"}
"""DDPM's two losses by the names that people use, and the weightings that define them.

`vlb` caps the bound's weights at 1 on discrete chains, so this is not the bound itself on cosine: its last
timestep would be 97 % of it.
"""
_NAMES = {weighting: name for name, weighting in OBJECTIVES.items()}
LOSS = "objective/"
FEATURES = "_features"
"""Ends the section of a score that holds distances on some network's features: fashion16_features."""
QUADRATURE = "quadrature"
"""How an evaluation's times were chosen; other rules give other losses. Runs of version 0.1 do not say."""
FORECAST = "forecast/"
"""Begins the keys of what a run expected of its draws (`pacer/forecast.py`)."""
INCEPTION = "inception"
EXTRACTORS = (INCEPTION, "resnet20-cifar10", "fashion16")
"""The feature networks of distances."""
CONDITIONS = ("extractor", "generated", "reference", "images", "made_by")
"""What a section of a score says about how it was measured."""


@dataclass(frozen=True)
class Metric:
    """One number of a run: where it is recorded, what it is called and which way is better."""

    key: str
    """A loss's key in metrics.jsonl, or SECTION.NAME in score.json; * stands for the feature extractor."""
    title: str
    format: str = ".4f"
    unit: str = ""
    higher_is_better: bool = False
    heading: str = ""
    """Heading of its ratios in a comparison; empty: it has none."""
    of_images: bool = False
    """Measured on generated images: the verdict mentions it beside a win."""
    needs: str = ""
    """The recipe setting without which it is not measured."""
    details: str = ""
    """What `stepwell evaluate` adds in brackets, as a format string over the section of the score."""
    note: str = ""
    """How to read it in a comparison."""
    on_inception: str = ""
    """Its usual name, which only distances on Inception's features may have."""

    def read(self, score: Mapping[str, Any]) -> float:
        """Its value in a score; NaN where it was not measured."""
        value = self._section(score).get(self.key.rpartition(".")[2])
        return math.nan if value is None else float(value)

    def text(self, score: Mapping[str, Any]) -> str:
        """Its value with unit and details."""
        value = f"{self.read(score):{self.format}} {self.unit}".rstrip()
        return f"{value} ({self.details.format_map(self._section(score))})" if self.details else value

    def measured_alike(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether two scores have it from as many images, made and compared in the same way."""
        first, second = self._section(one), self._section(other)
        # Older scores do not say everything.
        told = [key for key in CONDITIONS if key in first and key in second]
        return features_of(one) == features_of(other) and all(first[key] == second[key] for key in told)

    def name(self, features: str = "") -> str:
        """Its title; a distance says whose features it is on."""
        if not self.on_inception or not features:
            return self.title
        if features == INCEPTION:
            return self.on_inception
        return f"{self.title} on {features} features (not {self.on_inception})"

    @property
    def weighting(self) -> str:
        """The weighting of a loss."""
        return _weighting(self.key)

    @property
    def column(self) -> str:
        """The heading of its values in a table."""
        if not self.higher_is_better:
            return self.title
        return f"{self.title} ({self.unit}{', ' if self.unit else ''}higher is better)"

    def error(self, value: float) -> float:
        """What ratios are taken of, lower is better: the value, or the relative RMS error behind decibels."""
        if self.unit == "dB":
            return float(10 ** (-value / 20))
        if self.higher_is_better:
            return 1 / value if value else math.inf
        return value

    @property
    def error_title(self) -> str:
        """What `error` is called."""
        return self.heading if self.higher_is_better else self.title

    def _section(self, score: Mapping[str, Any]) -> Mapping[str, Any]:
        section = self.key.rpartition(".")[0]
        if section == f"*{FEATURES}":
            section = next((key for key in score if key.endswith(FEATURES)), section)
        values = score.get(section, {}) if section else score
        return values if isinstance(values, Mapping) else {}


BITS = Metric(
    "bits_per_dimension.total",
    "bits per dimension",
    heading="bits",
    details="decoder {decoder:.4f}, diffusion {diffusion:.4f}, prior {prior:.4f}",
)
FRECHET = Metric(
    f"*{FEATURES}.frechet_distance",
    "Fréchet distance",
    heading="distance",
    of_images=True,
    details="{generated} images",
    on_inception="FID",
)
KERNEL = Metric(
    f"*{FEATURES}.kernel_distance",
    "kernel distance",
    ".6f",
    # No ratios: an unbiased estimate may be negative.
    of_images=True,
    details="± {kernel_distance_standard_error:.6f}",
    on_inception="KID",
)
PSNR = Metric(
    "super_resolution.psnr",
    "PSNR",
    ".2f",
    "dB",
    higher_is_better=True,
    heading="RMS error",
    of_images=True,
    needs="super_resolution",
    details="{images} images; plain enlargement: {psnr_of_plain_enlargement:.2f} dB",
    note="RMS errors are those of the mean PSNR, which favours blurred images: read them with the distance.",
)
SCORED = (BITS, FRECHET, KERNEL, PSNR)
"""What a finished run is scored by, in the order of tables."""


_CAPPED = "weights of at most 1 where timesteps are discrete"


def loss(name: str) -> Metric:
    """The held-out loss of a weighting: `simple`, `bound`, or a weighting's name or recorded key."""
    weighting = _weighting(name)
    name = _NAMES.get(weighting, weighting)
    title = name if name == "bound" else f"{name} loss"
    return Metric(f"{LOSS}{name}", title, ".5f", details=_CAPPED if weighting == "vlb" else "")


def _weighting(name: str) -> str:
    bare = name.removeprefix(LOSS)
    return OBJECTIVES.get(bare, bare)


def named_now(record: dict[str, Any]) -> dict[str, Any]:
    """A record of any version under today's names: version 0.1 wrote objective/none and objective/vlb."""
    old = {f"{LOSS}{weighting}": f"{LOSS}{name}" for weighting, name in _NAMES.items()}
    return {old.get(key, key): value for key, value in record.items()}


CURVES = tuple(map(loss, ("simple", "min-snr", "bound")))
"""The losses that every report draws."""


def features_of(score: Mapping[str, Any]) -> str:
    """The network whose features a score's distances are on; empty if it has none."""
    return next((key.removesuffix(FEATURES) for key in score if key.endswith(FEATURES)), "")
