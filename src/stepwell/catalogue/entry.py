"""One entry of the catalogue, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

Kind = Literal["process", "sampler", "weighting"]
KINDS: tuple[Kind, ...] = ("process", "sampler", "weighting")


@dataclass(frozen=True)
class Parameter:
    """A keyword of a factory: the factory checks its values."""

    name: str
    default: Any
    meaning: str
    required: bool = False


@dataclass(frozen=True)
class Difference:
    """Where a default is not what its paper says."""

    what: str
    paper: str
    here: str
    why: str
    changes: str
    """What was measured of it."""


@dataclass(frozen=True)
class Entry:
    """A name, its factory, and what a user should know before building it."""

    kind: Kind
    name: str
    target: str
    """`module:attribute` of the factory, imported on first use."""
    summary: str
    source: str
    """The paper or package it comes from."""
    parameters: tuple[Parameter, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the factory that the name decides."""
    aliases: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Other tools' names for the parameters, and ours."""
    process: str | None = None
    """The only kind of process that it is for; None: any."""
    learns: bool = False
    stratified: bool = False
    """Whether its draws are spread evenly over the batch by default."""
    unbiased: bool = False
    """Whether it is corrected by reference / density by default."""
    differences: tuple[Difference, ...] = ()
    """Where its default is not what the paper says."""

    def factory(self) -> Any:
        """The callable behind the name."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)
