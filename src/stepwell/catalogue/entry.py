"""One line of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

Kind = Literal["process", "sampler", "weighting"]
KINDS: tuple[Kind, ...] = ("process", "sampler", "weighting")


@dataclass(frozen=True)
class Parameter:
    """A keyword of a factory, with its default as a reader would write it."""

    name: str
    default: Any
    meaning: str
    required: bool = False


@dataclass(frozen=True)
class Entry:
    """A name, where its factory is, and what a user should know before building it."""

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
    """Other tools' names for the parameters."""
    learns: bool = False
    stratified: bool = False
    """Whether its draws are spread evenly over the batch unless asked otherwise."""
    unbiased: bool = False
    """Whether the sampler is corrected by reference / density unless asked otherwise."""

    def factory(self) -> Any:
        """The callable behind the name."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)
