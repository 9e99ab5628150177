"""One fuzzed command: run in this process in a copy of a small home, and what became of it."""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import Literal

from stepwell.cli.main import main
from stepwell.compare.watch import Server

Outcome = Literal["accepted", "one sentence", "traceback", "silent", "slow"]
OUTCOMES: tuple[Outcome, ...] = ("accepted", "one sentence", "traceback", "silent", "slow")
SLOW_SECONDS = 5.0
"""Of processor time: another process on the machine does not make a case slow."""
_HANGS_AFTER = 60
_MEMORY = 6 << 30
"""Bytes that a case may take on top of what the process has."""
_LONGEST = 4000
"""Characters of an error that is still a sentence."""


@dataclass(frozen=True)
class Case:
    """A command, what is done to the home before, and what must not happen."""

    family: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None] | None = None
    """Damages the home, which is the current folder too."""
    refused: bool = False
    """These words cannot be meant: exit 0 would be silent acceptance."""
    shows: str = ""
    """Stands in the output if the command is accepted; otherwise something was misread."""
    never: tuple[str, ...] = ()
    """Does not stand in the output, such as a NaN in a density."""


@dataclass(frozen=True)
class Result:
    """What became of a case."""

    outcome: Outcome
    seconds: float
    detail: str


class Hangs(BaseException):
    """Raised by the alarm clock; no `except Exception` may take it."""


def run_case(case: Case, home: Path, place: Path) -> Result:
    """Run a case in a fresh copy of the home at `place`."""
    shutil.copytree(home, place, symlinks=True)
    before = Path.cwd()
    os.chdir(place)
    out, err = io.StringIO(), io.StringIO()
    started = time.process_time()
    try:
        with _quiet(out, err), _alarm(place), _bounded_memory(), _alone():
            if case.prepare is not None:
                case.prepare(place)
            code, detail = _called(case.words)
    finally:
        os.chdir(before)
        shutil.rmtree(place, ignore_errors=True)
    seconds = time.process_time() - started
    return Result(*_judged(case, code, detail, seconds, out.getvalue(), err.getvalue()))


def _called(words: tuple[str, ...]) -> tuple[object, str]:
    """The exit code, or "raised" and "hangs", with the traceback."""
    try:
        return main(list(words)), ""
    except SystemExit as ended:
        return 0 if ended.code is None else ended.code, ""
    except Hangs:
        return "hangs", _where(traceback.format_exc())
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "raised", _where(traceback.format_exc())


def _where(text: str) -> str:
    """The end of a traceback with the last line of ours."""
    lines = text.strip().splitlines()
    ours = [line.strip() for line in lines if "/stepwell/" in line and "fuzz" not in line]
    return f"{lines[-1][:300]}  [{ours[-1] if ours else lines[-3].strip()}]"


def _judged(
    case: Case, code: object, detail: str, seconds: float, out: str, err: str
) -> tuple[Outcome, float, str]:
    if code == "raised":
        return "traceback", seconds, detail
    if code == "hangs" or seconds > SLOW_SECONDS:
        return "slow", seconds, detail or f"{seconds:.1f} s: {err.strip()[-200:]}"
    if "Traceback (most" in err:
        return "traceback", seconds, err.strip()[-300:]
    if code == 0:
        if case.refused:
            return "silent", seconds, f"accepted: {out.strip()[-200:]}"
        if case.shows not in out:
            return "silent", seconds, f"{case.shows!r} is not in the output"
        if any(text in out for text in case.never):
            return "silent", seconds, f"one of {case.never} is in the output"
        return "accepted", seconds, ""
    said = err.strip()
    if code != 2 or not said or len(said) > _LONGEST or not _is_ours(said):
        return "traceback", seconds, f"exit {code} with {len(said)} characters: {said[:300]!r}"
    return "one sentence", seconds, said[-300:]


def _is_ours(said: str) -> bool:
    """Whether an error is told by stepwell, or by argparse with its usage."""
    return any(line.startswith("stepwell") for line in said.splitlines())


@contextmanager
def _quiet(out: io.StringIO, err: io.StringIO) -> Iterator[None]:
    with warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(err):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _alarm(place: Path) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs

    def end_pipes() -> None:
        # Code that is not Python waits on after the alarm, until somebody has opened the other end.
        for path in place.rglob("*"):
            with suppress(OSError):
                if path.is_fifo():
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_HANGS_AFTER)
    clock = Timer(_HANGS_AFTER + 1, end_pipes)
    clock.start()
    try:
        yield
    finally:
        clock.cancel()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def _alone() -> Iterator[None]:
    """Without what earlier commands left in the process; `watch` answers once instead of for ever."""
    from accelerate.state import AcceleratorState

    def once(self: Server, poll_interval: float = 0.5) -> None:
        self.live.answer()

    serve, Server.serve_forever = Server.serve_forever, once  # type: ignore[method-assign]
    try:
        yield
    finally:
        Server.serve_forever = serve  # type: ignore[method-assign]
        AcceleratorState._reset_state(reset_partial_state=True)
