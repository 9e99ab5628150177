"""Who weights the losses: the host by itself, or by what a pace hands out."""

from __future__ import annotations

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter
from stepwell.weightings import Unweighted, Weighting


def trained_and_handed(own: Weighting | str, host: Weighting | str | None) -> tuple[Weighting, Weighting]:
    """The weighting that is trained, whoever applies it, and the one that a pace hands out."""
    given = own if host is None else host
    trained = build.weighting(given) if isinstance(given, str) else given
    if host is None:
        return trained, trained
    if own != "none":
        raise InvalidParameter(
            "weighting and host_weighting would weight one loss twice: give weighting= if the loop leaves "
            "that to pace.weight, host_weighting= if it weights by itself."
        )
    return trained, Unweighted()
