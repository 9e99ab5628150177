"""The exceptions that Stepwell raises.

StepwellError
├── UnknownName        a process, sampler or weighting that is not in the catalogue
├── InvalidParameter   a value that can never work (negative gamma, an empty range, zero timesteps)
├── Unsupported        valid parts that do not work together (vlb on a continuous process)
├── StateMismatch      a state dict that belongs to another sampler
├── NonFiniteLoss      NaN or infinity where a learner expects losses
├── RankLost           another process of a group ended, or cannot be reached
└── OutOfMemory        the machine or its accelerator has too little memory for what was asked
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StepwellError(Exception):
    """The base of all errors below."""


class UnknownName(StepwellError, ValueError):
    """A name that is not in the catalogue; the message lists the known ones and the nearest."""


class InvalidParameter(StepwellError, ValueError):
    """A value that can never work."""


class Unsupported(StepwellError, ValueError):
    """Valid parts that do not work together."""


class StateMismatch(StepwellError, ValueError):
    """A state dict that another kind of object saved."""


class NonFiniteLoss(StepwellError, ArithmeticError):
    """NaN or infinity in the losses that a sampler learns from."""


class RankLost(StepwellError, RuntimeError):
    """Another process of the group ended, or cannot be reached."""


class OutOfMemory(StepwellError, MemoryError):
    """Too little memory for what was asked."""


_QUOTED = 300


def quoted(value: object) -> str:
    """A value as messages show it: the beginning of a long one."""
    return shortened(repr(value), _QUOTED)


def shortened(text: str, most: int = 300) -> str:
    """A text, or the beginning of a long one."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def unknown(kind: str, name: object, known: Iterable[str], listed_by: str = "") -> UnknownName:
    """An UnknownName whose message has the nearest known name and all of them, or the command that does."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name)[:_QUOTED].lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    rest = f"`{listed_by}` lists them all." if listed_by else f"Known: {', '.join(names)}."
    return UnknownName(f"{quoted(name)} is not a known {kind}.{hint} {rest}")
