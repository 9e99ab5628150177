"""The FIDs of Kim et al. 2025, and whether distances measured here point the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results import keep

from stepwell.compare.judgement import Judgement
from stepwell.compare.stats import Ratio
from stepwell.runs.metrics import FRECHET

FID: dict[str, dict[str, tuple[float, float]]] = {
    # Kim et al. 2025, Tables 1 to 4: FID after 0.2 M steps (Table 2: 100 epochs), and the last one told.
    "linear": {
        "uniform": (8.16, 3.19),
        "p2": (6.45, 4.70),
        "min-snr": (4.40, 3.16),
        "logit-normal": (5.38, 3.60),
        "speed-legacy": (4.08, 3.57),
        "beta-policy:as_published=true": (3.99, 2.94),
        "beta-policy:credit=alignment": (3.99, 2.94),
        "gradient-variance": (21.3, 11.3),
    },
    "cosine": {
        "uniform": (3.74, 3.14),
        "p2": (5.64, 5.04),
        "min-snr": (3.51, 3.07),
        "logit-normal": (4.55, 3.78),
        "speed-legacy": (4.12, 3.57),
        "beta-policy:as_published=true": (3.87, 3.00),
        "beta-policy:credit=alignment": (3.87, 3.00),
    },
    "quadratic": {
        "uniform": (4.04, 3.01),
        "p2": (4.93, 3.66),
        "min-snr": (4.76, 4.17),
        "logit-normal": (4.78, 3.51),
        "speed-legacy": (3.99, 3.52),
        "beta-policy:as_published=true": (3.96, 2.95),
        "beta-policy:credit=alignment": (3.96, 2.95),
    },
    "latents": {
        "uniform": (12.87, 8.72),
        "p2": (10.69, 6.88),
        "min-snr": (10.87, 6.83),
        "logit-normal": (12.81, 7.28),
        "speed-legacy": (14.40, 7.98),
        "beta-policy:as_published=true": (10.94, 6.62),
    },
    "latents-of-classes": {
        "min-snr": (11.5, 4.54),
        "beta-policy:as_published=true+min-snr": (11.3, 4.33),
    },
}
BASELINE = "uniform"
REFERENCE = "reference"
"""The same draws on their processes."""


def keep_against_paper(
    study: str,
    judgements: Sequence[Judgement],
    made_in: dict[str, Any],
    command: str,
    at_the_end: bool = False,
) -> None:
    """A record of every method's distance over its baseline's beside theirs, if they have any.

    Directions are compared with their early figures, or with those at the end of training.
    """
    rows = against_paper(judgements, at_the_end)
    if rows:
        columns = ["schedule", "method", "paper, early", "paper, end", "here", "direction"]
        how = BESIDE.format(which=LONG if at_the_end else SHORT)
        keep(f"{study}-paper", f"{study} against the paper's claims", how, columns, rows, made_in, command)


def against_paper(judgements: Sequence[Judgement], at_the_end: bool = False) -> list[list[str]]:
    """Every method's distance over its baseline's, beside the paper's FIDs, and whether they agree."""
    rows = []
    for judgement in judgements:
        theirs = FID.get(judgement.workload, {})
        against = BASELINE if judgement.against == REFERENCE else judgement.against
        if judgement.method not in theirs or against not in theirs:
            continue
        early, last = (
            one / base for one, base in zip(theirs[judgement.method], theirs[against], strict=True)
        )
        distance = judgement.scores[FRECHET.key]
        direction = _agrees(distance, last if at_the_end else early)
        rows.append(
            [judgement.workload, judgement.method, f"{early:.2f}", f"{last:.2f}", str(distance), direction]
        )
    return rows


def _agrees(here: Ratio, paper: float) -> str:
    """Only an interval without 1 can agree or disagree."""
    if not (here.lower or here.higher):
        return "undecided here"
    return "agrees" if here.lower == (paper < 1) else "DISAGREES"


BESIDE = (
    "FID of Kim et al. (50,000 images) over that of their baseline, early and at the end; here the Fréchet "
    "distance over the baseline's, 95 % interval, on the features named above, which are not Inception's. "
    "Whether the directions agree: {which}, and only where the "
    "interval excludes 1. The paper's own method may stand in two rows: as its code has it, and with the "
    "corrected credit."
)
SHORT = "with the early figure, since these runs are short"
LONG = "with the figure at the end, since these runs go on until little is won"
