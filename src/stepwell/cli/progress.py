"""How far a training is: a bar where there is a terminal, now and then a line where there is none."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

_LINE_EVERY_SECONDS = 20


class Progress:
    """Steps, rate, time left and loss."""

    def __init__(self, steps: int, seconds: float | None) -> None:
        self._steps, self._seconds = steps, seconds
        self._started, self._first_step = time.monotonic(), -1
        self._last_line = 0.0
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                transient=True,
            )
            self._task = self._bar.add_task("training", total=self._steps, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)

    def update(self, step: int, values: dict[str, Any]) -> None:
        """Where training is now."""
        now = time.monotonic()
        if self._first_step < 0:
            self._first_step, self._started = step, now
        rate = (step - self._first_step) / max(now - self._started, 1e-9)
        note = f"loss {values['loss']:.4f}, {rate:.1f} steps/s, looks at {values['looks']}"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=note)
        elif now - self._last_line > _LINE_EVERY_SECONDS:
            self._last_line = now
            print(f"step {step} of {self._steps}: {note}", flush=True)
