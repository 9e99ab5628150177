"""Everything Stepwell raises on purpose.

StepwellError
├── UnknownName        a process, sampler or weighting that nobody registered
├── InvalidParameter   a value that can never work (negative gamma, an empty range, zero timesteps)
├── Unsupported        two valid pieces that have no meaning together (vlb on a continuous process)
├── StateMismatch      a state dict that belongs to another sampler
└── NonFiniteLoss      NaN or infinity where a learner expects losses
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StepwellError(Exception):
    """The root of every error that Stepwell raises on purpose."""


class UnknownName(StepwellError, ValueError):
    """A name that is not in the catalogue; the message lists the known ones and the nearest."""


class InvalidParameter(StepwellError, ValueError):
    """A value that can never work, whatever it is combined with."""


class Unsupported(StepwellError, ValueError):
    """Valid pieces that have no meaning together."""


class StateMismatch(StepwellError, ValueError):
    """A state dict that was written by something else."""


class NonFiniteLoss(StepwellError, ArithmeticError):
    """NaN or infinity reached a sampler that learns from losses."""


def unknown(kind: str, given: object, known: Iterable[str]) -> UnknownName:
    """An UnknownName that says what was given, the nearest known name and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(given).lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UnknownName(f"{given!r} is not a known {kind}.{hint} Known: {', '.join(names)}.")
