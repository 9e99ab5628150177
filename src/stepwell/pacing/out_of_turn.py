"""The error of calls in an order that has no meaning."""

from __future__ import annotations

from stepwell.core.errors import StepwellError


class OutOfTurn(StepwellError, RuntimeError):
    """A call that the pacer cannot place: it says what has to come first."""
