"""What may be asked of any source of images."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.core import require
from stepwell.core.errors import InvalidParameter


@dataclass(frozen=True)
class Options:
    """The options of `load`, checked; None leaves the choice to the data."""

    size: int | None = None
    channels: int | None = None
    labels: bool = False
    flips: bool | None = None
    strict: bool = False
    workers: int = 2
    memory_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        if self.size is not None:
            require.count("size", self.size)
        if self.channels not in (None, 1, 3):
            raise InvalidParameter(f"channels must be 1 (grey) or 3 (colour), not {self.channels!r}.")
        require.count("workers", self.workers)
        require.count("memory_bytes", self.memory_bytes, least=0)

    def flip_or(self, default: bool) -> tuple[bool, tuple[str, ...]]:
        """Whether to mirror images, and a note if nobody asked for it."""
        if self.flips is not None:
            return self.flips, ()
        note = "mirror images count as data; flips=False if left and right mean something here"
        return default, (note,) if default else ()
