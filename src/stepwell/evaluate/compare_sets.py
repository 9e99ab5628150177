"""Compare two sets of images: Fréchet and kernel distance, precision and recall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stepwell.core.errors import InvalidParameter
from stepwell.core.reading import place
from stepwell.data.arrays import keys_of
from stepwell.data.npz import IMAGE_KEYS
from stepwell.evaluate.distances import PrecisionRecall, frechet_distance, precision_recall
from stepwell.evaluate.extractors import Extractor
from stepwell.evaluate.feature_files import (
    Features,
    Statistics,
    extract,
    has_statistics,
    read_statistics,
    statistics_of,
)
from stepwell.evaluate.image_sets import open_images
from stepwell.evaluate.kernel_distance import KernelDistance, kernel_distance

Progress = Callable[[str, int, int], None]
"""(set, images done, of how many)."""
_FEWEST = 4
"""Images that a kernel distance, and precision with k = 3, need."""


@dataclass(frozen=True)
class Reading:
    """How sets are read: how many images (None: all), resized to what size (None: as stored)."""

    count: int | None = None
    size: int | None = None
    batch: int = 32


@dataclass(frozen=True)
class Side:
    """One of two sets: its features, its statistics from a file, or both."""

    name: str
    features: Features | None
    stored: Statistics | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def statistics(self) -> Statistics:
        """As stored, else computed from the features."""
        if self.stored is not None:
            return self.stored
        assert self.features is not None
        return statistics_of(self.features)


@dataclass(frozen=True)
class Comparison:
    """The distances between two sets; None where only statistics are known."""

    title: str
    identity: str
    frechet: float
    kernel: KernelDistance | None
    shares: PrecisionRecall | None
    counts: tuple[int | None, int | None]
    notes: tuple[str, ...]


def side(spec: str | Path, extractor: Extractor, reading: Reading, progress: Progress) -> Side:
    """A set of images or a statistics file, with its features extracted.

    guided-diffusion's reference batches have both: statistics of all data and some of the images. As in its
    own evaluator, the Fréchet distance then uses the statistics, everything else the images.
    """
    path = place(spec)
    stored = read_statistics(path, extractor) if has_statistics(path) else None
    if stored is not None and not any(key in IMAGE_KEYS for key in keys_of(path)):
        return Side(str(spec), None, stored)
    images = open_images(spec, extractor.channels, reading.size)
    features = extract(
        images,
        extractor,
        count=reading.count,
        batch=reading.batch,
        progress=lambda done, total: progress(str(spec), done, total),
    )
    if features.count < 2:
        raise InvalidParameter(f"{spec} has 1 image, and a covariance needs at least 2.")
    return Side(str(spec), features, stored, images.notes)


def compare(generated: Side, reference: Side, extractor: Extractor) -> Comparison:
    """All distances that can be computed between two sides."""
    kernel, shares = None, None
    a, b = generated.features, reference.features
    if a is not None and b is not None and min(a.count, b.count) >= _FEWEST:
        ours, theirs = a.all(), b.all()
        kernel, shares = kernel_distance(ours, theirs), precision_recall(ours, theirs)
    return Comparison(
        extractor.title,
        extractor.identity,
        frechet_distance(generated.statistics, reference.statistics),
        kernel,
        shares,
        (generated.statistics.count, reference.statistics.count),
        tuple(_notes(generated, reference, extractor, kernel is None)),
    )


def _notes(generated: Side, reference: Side, extractor: Extractor, bare: bool) -> list[str]:
    notes = list[str]()
    for one in (generated, reference):
        notes += [f"{one.name}: {note}." for note in one.notes]
        count = one.statistics.count
        if count is not None and count <= extractor.dimensions:
            notes.append(
                f"{one.name}: {count} images are too few for {extractor.dimensions} dimensions. The distance "
                "is biased upwards: compare it only with others at this count."
            )
        if one.statistics.identity is None:
            notes.append(
                f"{one.name} does not name its extractor and resizing: {extractor.identity} is assumed."
            )
    counts = {one.statistics.count for one in (generated, reference)}
    if bare:
        statistics = [one.name for one in (generated, reference) if one.features is None]
        why = f"{' and '.join(statistics)} has statistics only" if statistics else "too few images"
        notes.append(f"kernel distance, precision and recall are not available: {why}.")
    elif len(counts) > 1 and min(count or 0 for count in counts) < 10_000:
        notes.append("few images bias the distance upwards: compare it with others at the same count.")
    return notes
