"""The Pacer: timesteps for any training loop, and feedback to the sampler that chose them."""

from __future__ import annotations

from stepwell.pacer.pace import Pace as Pace
from stepwell.pacer.pacer import Pacer as Pacer
from stepwell.pacer.window import OutOfTurn as OutOfTurn
