"""What a host's script calls: train the host with and without the Pacer, compare, time, and write one row.

A script `benchmarks/hosts/NAME.py` makes one `Host` and calls `main(host)`. `run.py` starts it in the host's
own environment, in the folder `.hosts/NAME`, so that `source/` there is the checkout of its `SOURCE`:

    from hosts.check import Host, Tape, main
    from hosts.patch import diff_of
    from hosts.scripts import load                    # load(path, diff): a published script after the diff

    SOURCE = ("owner/name", "40 digits of a commit")  # only if files are needed that its package lacks

    def published(updates: int, tape: Tape) -> None:  # the host as it is, on a tiny random model
        for ...: tape(loss)                           # after every update, the loss that the host reports

    def paced(updates: int, tape: Tape) -> None:      # the same with the lines of its page
        ... stepwell.Pacer("auto", process) ...       # by this name: `check` records what it draws

    @contextmanager
    def fed(paces: Iterator[Pace]) -> Iterator[None]: # the host's own draw returns next(paces) in its units
        with mock.patch.object(host_module, "draw", lambda *args: next(paces).timesteps):
            yield

    main(Host(name=..., version=..., ran=..., left_out=..., diff=diff_of("PAGE", "a heading, or the first"),
              published=published, paced=paced, fed=fed))

Seeds are set before each training (torch, random, numpy). `paced` must make its Pacer inside the call. In the
run that is fed, the same sampler draws and learns without correction, so that every weight is 1.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest import mock

import torch

import stepwell
from stepwell.pacer import Pacer
from stepwell.pacer.pace import Pace

UPDATES = 60
LAST = 10
"""Updates whose mean is the final loss."""
BY_LOSSES = "loss-root"
"""Follows the losses also where `auto` stays at the reference because little is saved."""
ROUNDS, BLOCK, SETTLED = 5, 30, 10
"""Blocks of each kind that are timed, their updates, and how many of those at the start are not."""


class Stopped(Exception):
    """A training was interrupted on purpose, to resume it."""


class Tape:
    """The losses that a host reports, one for each update, and the processor time until then."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._times: list[float] = []

    def __call__(self, loss: float | torch.Tensor) -> None:
        self.losses.append(float(loss.detach() if isinstance(loss, torch.Tensor) else loss))
        self._times.append(time.process_time())

    def until(self, updates: int) -> Callable[[float | torch.Tensor], None]:
        """This tape, which interrupts the training in the update after so many."""

        def note(loss: float | torch.Tensor) -> None:
            if len(self.losses) == updates:
                raise Stopped
            self(loss)

        return note

    @property
    def seconds(self) -> float:
        """The processor time of the mean update, without the first ones: other processes do not count."""
        timed = self._times[SETTLED:]
        return (timed[-1] - timed[0]) / (len(timed) - 1)

    @property
    def final(self) -> float:
        """The mean loss of the last updates."""
        return fmean(self.losses[-LAST:])


Train = Callable[[int, Tape], None]
"""Train from the start for so many updates, and give the tape each one's loss."""


@dataclass(frozen=True)
class Host:
    """A trainer of others, what of it runs here, and its three ways to train."""

    name: str
    version: str
    """Of its package, or the commit of its source."""
    ran: str
    """The host's own classes and functions that were executed."""
    left_out: str
    """What was replaced or made small, plainly."""
    diff: str
    """What its page changes in it."""
    published: Train
    paced: Train
    fed: Callable[[Iterator[Pace]], AbstractContextManager[None]]
    resumed: Callable[[int, Tape], None] | None = None
    """Like `paced`, but saved and begun anew from the saved state after half of the updates."""


@dataclass
class Recording:
    """The pacers that a training made, and everything that each of them drew."""

    pacers: list[Pacer] = field(default_factory=list)
    draws: list[list[Pace]] = field(default_factory=list)

    @property
    def paces(self) -> list[Pace]:
        """The draws of all pacers, one after the other."""
        return [pace for drawn in self.draws for pace in drawn]


@contextmanager
def recorded(corrected: bool = True, instead: str = "") -> Iterator[Recording]:
    """Keep what `stepwell.Pacer` makes and draws meanwhile; without corrections every weight is 1.

    `instead` is the name of a sampler for the one that the host's lines ask for.
    """
    kept = Recording()

    class Recorder(Pacer):
        def __init__(self, sampler: Any = "auto", process: Any = None, *args: Any, **kwargs: Any) -> None:
            sampler = instead or sampler
            if not corrected:
                sampler = stepwell.sampler(sampler, process, unbiased=False)
            super().__init__(sampler, process, *args, **kwargs)
            kept.pacers.append(self)
            self.drawn: list[Pace] = []
            kept.draws.append(self.drawn)

        def draw(self, *args: Any, **kwargs: Any) -> Pace:
            before = torch.get_rng_state()
            pace = super().draw(*args, **kwargs)
            if not torch.equal(torch.get_rng_state(), before):
                raise SystemExit("the Pacer has used torch's global random numbers, which are the host's.")
            self.drawn.append(pace)
            return pace

    with mock.patch.object(stepwell, "Pacer", Recorder):
        yield kept


@contextmanager
def taped_backward(tape: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Give the tape every loss that `backward` is called on, for hosts whose `main` returns nothing."""
    backward = torch.Tensor.backward

    def with_tape(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        tape(loss.detach())
        backward(loss, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "backward", with_tape):
        yield


def trained(train: Train, updates: int = UPDATES) -> Tape:
    """Train from the same seed as always."""
    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    tape = Tape()
    train(updates, tape)
    if len(tape.losses) != updates:
        raise SystemExit(f"{updates} updates were asked for, and {len(tape.losses)} losses came back.")
    return tape


def bit_equal_when_fed(host: Host, published: Tape) -> bool:
    """Whether the host without the Pacer, at the Pacer's times, has the same losses to the last bit.

    `published` is the training with the host's own draws, which must differ.
    """
    with recorded(corrected=False) as kept:
        paced = trained(host.paced)
    if len(kept.pacers) != 1 or any(bool((pace.weight != 1).any()) for pace in kept.paces):
        raise SystemExit(
            f"{len(kept.pacers)} pacers were made, or a weight is not 1: one pacer, no weighting."
        )
    paces = iter(kept.paces)
    with recorded() as none, host.fed(paces):
        fed = trained(host.published)
    if none.pacers or next(paces, None) is not None:
        raise SystemExit("the published loop has made a Pacer, or has not taken every recorded draw.")
    if fed.losses == published.losses:
        raise SystemExit("feeding the recorded times changed no loss: the host draws somewhere else.")
    return fed.losses == paced.losses


def lines_changed(diff: str) -> int:
    """How many lines are added or take the place of others; empty ones are free."""
    added, removed = (
        sum(1 for line in diff.splitlines() if line.startswith(sign) and line[1:].strip()) for sign in "+-"
    )
    return max(added, removed)


def _quarters(density: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    """The mass of a density in each quarter of unit time, from data to noise."""
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    return [round(float(part.double().mean() / 4), 4) for part in density(u.float()).chunk(4)]


def row(host: Host) -> dict[str, Any]:
    """Everything that is measured of one host."""
    started = time.perf_counter()
    published = trained(host.published)
    equal = bit_equal_when_fed(host, published)
    with recorded() as kept:
        learned = trained(host.paced)
    pacer = kept.pacers[0]
    with recorded(instead=BY_LOSSES) as moved:
        trained(host.paced)
    resumed = None if host.resumed is None else _resumed(host.resumed, kept.paces)
    pairs = [_pair(host, number) for number in range(ROUNDS)]
    ratios = sorted(paced / without for without, paced in pairs)
    return {
        "host": host.name,
        "version": host.version,
        "ran": host.ran,
        "left_out": host.left_out,
        "updates": UPDATES,
        "bit_equal_when_fed": equal,
        "lines_changed": lines_changed(host.diff),
        "overhead": {"ratio": median(ratios), "least": ratios[0], "most": ratios[-1], "rounds": ROUNDS},
        "milliseconds_of_an_update": 1000 * median(without for without, _ in pairs),
        "sampler": repr(pacer.sampler),
        "mass_by_quarter": {
            "before": _quarters(pacer.process.reference.pdf),
            "after": _quarters(pacer.sampler.density),
            BY_LOSSES: _quarters(moved.pacers[0].sampler.density),
        },
        "final_loss": {"published": published.final, "paced": learned.final},
        "resumed": resumed,
        "seconds": time.perf_counter() - started,
    }


def _pair(host: Host, number: int) -> tuple[float, float]:
    """Seconds of an update in a block without the Pacer and in one with it; which is first alternates."""
    if number % 2:
        paced = trained(host.paced, BLOCK).seconds
        return trained(host.published, BLOCK).seconds, paced
    return trained(host.published, BLOCK).seconds, trained(host.paced, BLOCK).seconds


def _resumed(train: Train, uninterrupted: list[Pace]) -> str:
    """How many draws in a row, after a resume, are those of a run that was not interrupted."""
    with recorded() as kept:
        trained(train)
    if len(kept.pacers) != 2:
        raise SystemExit(
            f"`resumed` has made {len(kept.pacers)} pacers: one before the resume, one after it."
        )
    after = kept.draws[1]
    expected = uninterrupted[len(uninterrupted) - len(after) :]
    same = [torch.equal(one.u, other.u) for one, other in zip(after, expected, strict=True)]
    return f"{[*same, False].index(False)} of {len(after)} draws"


def main(host: Host) -> None:
    """Measure, and write the row to the file that `run.py` names."""
    torch.set_num_threads(1)
    found = row(host)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
