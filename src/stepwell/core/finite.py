"""Losses that a learner may use."""

from __future__ import annotations

from torch import Tensor

from stepwell.core.errors import NonFiniteLoss
from stepwell.core.feedback import Feedback
from stepwell.core.shapes import PerExample


def usable(losses: PerExample, feedback: Feedback, learner: object) -> Tensor:
    """Which losses [B] a learner may count; on the CPU, one that is not finite is an error.

    On an accelerator looking would stop the device, so they are left out and counted instead.
    """
    finite, u = losses.isfinite(), feedback.u
    if losses.device.type == "cpu" and not bool(finite.all()):
        where = ", ".join(f"{time:.4f}" for time in u[~finite][:5].tolist())
        raise NonFiniteLoss(
            f"{int((~finite).sum())} of {len(losses)} losses given to {learner!r} are NaN or infinite, at "
            f"u = {where}. Nothing was learned from this batch: look at the learning rate or the data."
        )
    return finite if feedback.counts is None else finite & feedback.counts
