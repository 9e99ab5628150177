"""How far a training is: steps, rate and loss."""

from __future__ import annotations

from typing import Any

from stepwell.cli.bar import Bar, Rate


class Progress(Bar):
    """Steps, rate, time left, loss and where the sampler looks."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._rate: Rate | None = None

    def at(self, step: int, values: dict[str, Any]) -> None:
        """Where training is now."""
        if self._rate is None:
            # A resumed run begins somewhere, and what is made once takes time before the first step.
            self._rate = Rate(step)
        note = f"loss {values['loss']:.4f}, {self._rate(step):.1f} steps/s, looks at {values['looks']}"
        self.update("training steps", step, self._steps, note)
