"""Two mistakes that every framework's callback can see: it was given no pacer, or nobody asks it."""

from __future__ import annotations

from typing import Any

from stepwell.core.errors import InvalidParameter
from stepwell.pacer import OutOfTurn, Pacer


def require_pacer(given: Any, call: str) -> Pacer:
    """`given`, if it is a Pacer."""
    if not isinstance(given, Pacer):
        raise InvalidParameter(
            f"{call} needs a stepwell.Pacer, not {type(given).__name__}: write pacer = stepwell.Pacer("
            '"neyman", noise_scheduler, loss_at=...) and give it to the callback and to the code that draws.'
        )
    return given


def require_draws(pacer: Pacer, before: int, where: str) -> None:
    """Whether training draws from the pacer: it did `before` times when it began."""
    if pacer.draws <= before:
        raise OutOfTurn(
            f"a batch was trained and the pacer drew nothing: in {where}, take timesteps from "
            "pace = pacer.draw(x0) and multiply the losses by pace.weight. Use the pacer that the callback "
            "has, not a second one."
        )
