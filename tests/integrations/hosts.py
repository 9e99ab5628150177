"""Examples in pairs, as tests see them: a host's loop, and the same with a pacer."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import stepwell
from stepwell.pacer import Pacer
from stepwell.pacer.pace import Pace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Feed = Callable[[pytest.MonkeyPatch, ModuleType, Iterator[Pace]], None]
"""Makes the host's own loop draw what was recorded, in place of what it would draw."""


@dataclass(frozen=True)
class Host:
    """An example `NAME.py`, its counterpart `NAME_paced.py`, and how the first is fed."""

    name: str
    feed: Feed
    steps: int = 104
    """Updates in which the held-out loss falls and the density moves."""
    falls_to: float = 0.7
    """The share of the first held-out loss that must be reached."""
    needs: tuple[str, ...] = ()
    """Packages without which it cannot be tried."""

    def module(self, paced: bool) -> ModuleType:
        """One of the two scripts, imported."""
        for package in self.needs:
            pytest.importorskip(package)
        path = EXAMPLES / f"{self.name}{'_paced' if paced else ''}.py"
        spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses and pickles look modules up by name.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    def changed_lines(self) -> list[str]:
        """The lines that the pacer adds to the host or puts in the place of others; empty ones are free."""
        before, after = (
            (EXAMPLES / f"{self.name}{end}.py").read_text().splitlines() for end in ("", "_paced")
        )
        changes = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
        added, removed = (
            [line[1:] for line in changes if line.startswith(sign) and line[1:].strip()] for sign in "+-"
        )
        assert len(removed) <= len(added), "a host loses no line that nothing replaces"
        return added


@dataclass
class Recording:
    """The pacers that a script made, and everything they drew."""

    pacers: list[Pacer] = field(default_factory=list)
    paces: list[Pace] = field(default_factory=list)

    def moved(self) -> float:
        """How far the first pacer's density is from its process's own, where it starts: mean |p - r|."""
        u = torch.linspace(0.00125, 0.99875, 400)
        pacer = self.pacers[0]
        return float((pacer.sampler.density(u) - pacer.process.reference.pdf(u)).abs().mean())


@contextmanager
def recorded(corrected: bool = True) -> Iterator[Recording]:
    """Keep what `stepwell.Pacer` makes and draws meanwhile.

    Without corrections all weights are 1, so that the host's own loss is the loss: the script's sampler is
    built anew from its name, with the same probes and the same learning.
    """
    kept = Recording()

    class Recorder(Pacer):
        def __init__(self, sampler: Any, process: Any, *args: Any, **kwargs: Any) -> None:
            if not corrected:
                assert isinstance(sampler, str), "an example names its sampler"
                sampler = stepwell.sampler(sampler, process, unbiased=False)
            super().__init__(sampler, process, *args, **kwargs)
            kept.pacers.append(self)

        def draw(self, *args: Any, **kwargs: Any) -> Pace:
            before = torch.get_rng_state()
            pace = super().draw(*args, **kwargs)
            assert torch.equal(torch.get_rng_state(), before), "the host's random state"
            kept.paces.append(pace)
            return pace

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.setattr(stepwell, "Pacer", Recorder, raising=False)
        yield kept


def feed_randint(patch: pytest.MonkeyPatch, module: ModuleType, paces: Iterator[Pace]) -> None:
    """`torch.randint` as hosts of whole timesteps call it."""
    patch.setattr(torch, "randint", lambda *args, **kwargs: next(paces).timesteps)
