"""How far a job is: a bar where there is a terminal, now and then a line where there is none."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

_LINE_EVERY_SECONDS = 20


class Bar:
    """One line for each task: what is done, of how much, the time left, and a note. On stderr."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._tasks: dict[str, Any] = {}
        self._rich: Any = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if not self._silent and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._rich = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                transient=True,
                console=Console(stderr=True),
            )
            self._rich.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._rich is not None:
            self._rich.console.print(text, highlight=False, markup=False)
        elif not self._silent:
            print(text, flush=True)

    def update(self, task: str, done: int, total: int, note: str = "") -> None:
        """How far a task is; the first call makes it known."""
        if self._rich is not None:
            if task not in self._tasks:
                self._tasks[task] = self._rich.add_task(task, total=total, note="")
            self._rich.update(self._tasks[task], completed=done, total=total, note=note)
        elif not self._silent and time.monotonic() - self._last_line > _LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(f"{task}: {done:,} of {total:,}{', ' if note else ''}{note}", file=sys.stderr, flush=True)


class Rate:
    """How much a second since now, when so much was there already."""

    def __init__(self, done: int = 0) -> None:
        self._started, self._done = time.monotonic(), done

    def __call__(self, done: int) -> float:
        """The rate now that so much is done."""
        return (done - self._done) / max(time.monotonic() - self._started, 1e-9)
