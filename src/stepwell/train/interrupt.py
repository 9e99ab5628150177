"""Ctrl-C and SIGTERM: finish the step on all ranks, save, leave."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate import Accelerator


class Interrupt:
    """Catches the first signal; a second one stops at once, as usual."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._before: dict[int, Any] = {}
        self._caught = False

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._catch)
            except ValueError:
                # Not the main thread: whoever runs us there handles signals.
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught = True
        signal.signal(number, self._before[number])

    def agree(self, over: bool) -> tuple[bool, bool]:
        """Whether any rank was interrupted, or is over: all ranks ask in every step and hear the same."""
        if self._accelerator.num_processes == 1:
            return self._caught, over
        flags: Any = torch.tensor([float(self._caught), float(over)], device=self._accelerator.device)
        caught, ended = self._accelerator.reduce(flags, "sum").tolist()
        return caught > 0, ended > 0
