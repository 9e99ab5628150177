"""Training seconds: a clock that stands still during evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Counts seconds while it runs; continues from `seconds` after a resume."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._started = seconds, time.perf_counter()
        self._paused = 0

    @property
    def seconds(self) -> float:
        """Training seconds so far."""
        running = 0.0 if self._paused else time.perf_counter() - self._started
        return self._before + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside does not count."""
        if not self._paused:
            self._before = self.seconds
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._started = time.perf_counter()
