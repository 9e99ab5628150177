"""Timesteps for any training loop, and feedback from it to the sampler.

pacer: the object; pace: what draw returns; window: the micro-batches since the last update; attach: optimizer
hooks; probe_loop: runs the sampler's probe around updates; input_check: is the network shown the noise that
was drawn?
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.core.deprecated import deprecated
from stepwell.pacer.pace import Pace as Pace
from stepwell.pacer.pacer import Pacer as Pacer
from stepwell.pacer.window import CallOrderError as CallOrderError

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return deprecated(__name__, name, {"OutOfTurn": "stepwell.pacer.CallOrderError"})
