"""Two sets of images compared: Fréchet and kernel distance, precision and recall, and how they were made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stepwell.core.errors import InvalidParameter
from stepwell.data.npz import IMAGE_KEYS
from stepwell.evaluate.distances import (
    KernelDistance,
    PrecisionRecall,
    frechet_distance,
    kernel_distance,
    precision_recall,
)
from stepwell.evaluate.extractors import Extractor
from stepwell.evaluate.feature_files import (
    Features,
    Statistics,
    extract,
    has_statistics,
    read_statistics,
    statistics_of,
)
from stepwell.evaluate.image_sets import keys_of, open_images

Progress = Callable[[str, int, int], None]
_FEWEST = 4
"""Features that a kernel distance and precision with k = 3 need."""


@dataclass(frozen=True)
class Reading:
    """How sets are read."""

    count: int | None = None
    size: int | None = None
    batch: int = 32


@dataclass(frozen=True)
class Side:
    """One of two sets: its statistics, and its features if there are any."""

    name: str
    features: Features | None
    stored: Statistics | None = None

    @cached_property
    def statistics(self) -> Statistics:
        """As stored, else of the features; only the rank that compares asks for them."""
        if self.stored is not None:
            return self.stored
        assert self.features is not None
        return statistics_of(self.features)


@dataclass(frozen=True)
class Comparison:
    """What two sets have in common; None where only statistics are known."""

    title: str
    identity: str
    frechet: float
    kernel: KernelDistance | None
    shares: PrecisionRecall | None
    counts: tuple[int | None, int | None]
    notes: tuple[str, ...]


def side(spec: str | Path, extractor: Extractor, reading: Reading, progress: Progress) -> Side:
    """A set or a statistics file, ready to be compared.

    Reference batches of guided-diffusion have both: statistics of the whole data set and some of its images.
    The distance is then to the statistics, and the rest to the images, as in their own evaluator.
    """
    path = Path(spec).expanduser()
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
    return Side(str(spec), features, stored)


def compare(generated: Side, reference: Side, extractor: Extractor) -> Comparison:
    """All numbers that these two sides allow."""
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
        count = one.statistics.count
        if count is not None and count <= extractor.dimensions:
            notes.append(
                f"{one.name}: {count} images are too few for {extractor.dimensions} dimensions. The distance "
                "is far too large: compare it only with others at this count."
            )
        if one.statistics.identity is None:
            notes.append(
                f"{one.name} does not say which extractor and resizing made it: it is taken for "
                f"{extractor.identity}."
            )
    counts = {one.statistics.count for one in (generated, reference)}
    if bare:
        statistics = [one.name for one in (generated, reference) if one.features is None]
        why = f"{' and '.join(statistics)} has statistics only" if statistics else "too few images"
        notes.append(f"kernel distance, precision and recall are not available: {why}.")
    elif len(counts) > 1 and min(count or 0 for count in counts) < 10_000:
        notes.append("few images bias the distance upwards: compare it with others at the same count.")
    return notes
