"""How far a generation is: a bar where there is a terminal, now and then a line where there is none."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

_LINE_EVERY_SECONDS = 20


class ImagesProgress:
    """Images, rate and time left, of the processes that `say` it."""

    def __init__(self, total: int, says: bool) -> None:
        self._total, self._says = total, says
        self._there = self._made = 0
        self._started = self._last_line = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> ImagesProgress:
        if self._says and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("generating"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                transient=True,
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("generating", total=self._total, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def rate(self) -> float:
        """Images a second, of those that were made now."""
        return self._made / max(time.monotonic() - self._started, 1e-9)

    def __call__(self, count: int, made: bool) -> None:
        """A batch of images was made, or was there already."""
        self._there += count
        if not made:
            # The clock of the rate starts with the first batch that has to be made.
            self._started = time.monotonic()
        self._made += count if made else 0
        note = f"{self.rate:.1f} images/s"
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._there, note=note)
        elif self._says and made and now - self._last_line > _LINE_EVERY_SECONDS:
            self._last_line = now
            print(f"{self._there} of {self._total} images: {note}", flush=True)
