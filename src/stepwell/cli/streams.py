"""Standard output and error that may go away: work goes on without a reader, and what was lost is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class Lasting:
    """A text stream that is silent once nobody takes what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None
        """Why text was lost; a reader who left (`| head -1`) has seen enough, which is no reason."""

    def write(self, text: str) -> int:
        """Write text, or nothing if the stream is gone."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._silence(error)
            return len(text)

    def flush(self) -> None:
        """Pass on what is buffered, or drop it if the stream is gone."""
        try:
            self._stream.flush()
        except OSError as error:
            self._silence(error)

    def _silence(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            self.error = error
        # At its end Python flushes what is still buffered: it goes nowhere, too.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[Lasting]:
    """Inside, no output fails; gives standard output, which knows whether text was lost."""
    _fill_closed_descriptors()
    before = sys.stdout, sys.stderr
    output, errors = (Lasting(stream) for stream in before)
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, errors)
    try:
        yield output
    finally:
        output.flush()
        errors.flush()
        sys.stdout, sys.stderr = before


def _fill_closed_descriptors() -> None:
    """Open what was closed (`>&-`) as nothing: the next file would be standard output, for libraries in C."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.open(os.devnull, os.O_RDWR)
    # Python has no stream where a descriptor was closed when it started.
    if cast(TextIO | None, sys.stdout) is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if cast(TextIO | None, sys.stderr) is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
