"""`NAME:key=value,key=value`, the one way to write a process, sampler or weighting, parsed in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.catalogue.entry import Entry, Kind
from stepwell.catalogue.find import find
from stepwell.core.errors import InvalidParameter, quoted

_WORDS = {"true": True, "false": False, "none": None}
_NUMBER = r"[-+]?(?:0[xX][\da-fA-F_]+|(?=[\d.])[\d_]*\.?[\d_]*(?:[eE][-+]?\d+)?)"
_MAY_BE_A_VALUE = re.compile(rf"""{_NUMBER}(?:\s*,\s*{_NUMBER})*,?|[-+]*[(\['"].*""", re.DOTALL)
"""Numbers, or the beginning of brackets or quotes: other texts are not parsed, and never warned about."""


@dataclass(frozen=True)
class Spec:
    """A process, sampler or weighting of the catalogue with its parameters.

    `build.process`, `build.weighting` and `build.sampler` take one wherever they take a name.
    """

    kind: Kind
    name: str
    """As the catalogue spells it."""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, kind: Kind, text: str) -> Spec:
        """The spec of NAME:key=value,...; names are checked here, parameters when it is built."""
        name, parameters = split_spec(text) if isinstance(text, str) else (text, {})
        return cls(kind, find(kind, name).name, parameters)

    @property
    def entry(self) -> Entry:
        """Its line of the catalogue."""
        return find(self.kind, self.name)

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={_text(value)}" for key, value in self.parameters.items())
        return f"{self.name}:{pairs}" if pairs else self.name


def split_spec(text: str) -> tuple[str, dict[str, Any]]:
    """`NAME:key=value,...` as a name and its parameters."""
    name, _, rest = text.partition(":")
    parameters: dict[str, Any] = {}
    for pair in _outside_brackets(rest):
        if pair:
            add_pair(parameters, pair, name)
    return name, parameters


def add_pair(parameters: dict[str, Any], pair: str, name: str) -> None:
    """Add `key=value` to the parameters of a name; the same one twice is an error."""
    key, value = split_pair(pair)
    if key in parameters:
        raise InvalidParameter(f"{name} got {key!r} twice.")
    parameters[key] = value


def _outside_brackets(text: str) -> list[str]:
    """The parts between the commas that are not inside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def split_pair(pair: str) -> tuple[str, Any]:
    """`key=value` as a key and its `literal` value."""
    key, equals, value = pair.partition("=")
    if not equals or not key:
        raise InvalidParameter(f"{quoted(pair)} is not of the form key=value.")
    return key, literal(value)


def literal(text: str) -> Any:
    """A number, true, false, none, a tuple or list of these; anything else is the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not _MAY_BE_A_VALUE.fullmatch(text):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if _is_plain(value) else text


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a word or a list of these: other things that Python can write are not."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _text(value: Any) -> str:
    """What `literal` reads as `value`."""
    if isinstance(value, str):
        return value if literal(value) == value else repr(value)
    return str(value).lower() if value is None or isinstance(value, bool) else repr(value)
