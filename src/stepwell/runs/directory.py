"""A run is a directory: recipe, environment, metrics, checkpoints, samples; and when a run is over."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stepwell.runs.io import remove_leftovers, write_json
from stepwell.runs.lock import Lock, LockError
from stepwell.runs.metrics_file import MetricsFile

RECIPE, ENVIRONMENT, METRICS = "recipe.json", "environment.json", "metrics.jsonl"


@dataclass(frozen=True)
class Limit:
    """How long a run trains: optimizer steps, or training seconds if those are used up first."""

    steps: int
    seconds: float | None = None

    def reached(self, step: int, seconds: float) -> bool:
        """Whether a run is over after `step` steps and this much training time."""
        return step >= self.steps or (self.seconds is not None and seconds >= self.seconds)


class RunError(Exception):
    """The run directory cannot be created, locked or resumed."""


class Run:
    """A run directory open for writing, locked against other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.samples = path / "checkpoints", path / "samples"
        self.recipe: dict[str, Any] = {}
        """The settings that it was opened with."""
        self.notes: list[str] = []
        """What was damaged, and what of it could be recovered."""
        self._metrics: MetricsFile | None = None
        self._lock: Lock | None = None

    def open(
        self,
        recipe: dict[str, Any],
        may_change: frozenset[str],
        defaults: dict[str, Any] | None = None,
        copy: Callable[[], dict[str, Any] | None] = lambda: None,
        patience: float = 0.0,
    ) -> None:
        """Create the directory, or resume the run in it.

        `defaults` are values of settings that an older recipe does not list; `copy` finds the settings
        elsewhere if recipe.json is missing or damaged; `patience` is for how many seconds to wait until
        another process has left the directory.
        """
        try:
            for folder in (self.path, self.checkpoints, self.samples):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run directory {self.path}: {error.strerror}.") from error
        try:
            self._take_lock(time.monotonic() + patience)
            before = self._recipe_before(copy)
            if before is not None:
                self._compare({**(defaults or {}), **before}, recipe, may_change)
            for folder in (self.path, self.checkpoints, self.samples):
                remove_leftovers(folder)
            write_json(self.path / RECIPE, recipe)
            self._metrics = MetricsFile(self.path / METRICS)
        except OSError as error:
            raise RunError(
                f"cannot write to the run directory {self.path}: {error.strerror}. Its checkpoints are as "
                "they were: make room, or choose another out=, then run the same command again."
            ) from error
        self.recipe = recipe

    def _recipe_before(self, copy: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """The settings of the run that is resumed; None of a new one, or if no file has them any more."""
        stored = self.path / RECIPE
        try:
            before = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else None
        except ValueError:
            before = None
        if isinstance(before, dict):
            return before
        found, problem = copy(), "is damaged" if stored.exists() else "is gone"
        if found is not None:
            self.notes.append(f"{stored} {problem}; a checkpoint has a copy, and it was written again.")
        elif stored.exists():
            self.notes.append(
                f"{stored} {problem} and no checkpoint has a copy: it was written again from this command, "
                "and whether the run began with the same settings cannot be checked."
            )
        return found

    def _take_lock(self, deadline: float) -> None:
        while self._lock is None:
            try:
                self._lock = Lock.take(self.path)
            except LockError as error:
                if time.monotonic() >= deadline:
                    raise RunError(
                        f"{self.path} is in use: {error}; wait for it, or choose another out=."
                    ) from None
                time.sleep(1)
            except OSError as error:
                raise RunError(f"cannot write to the run directory {self.path}: {error.strerror}.") from error

    def _compare(self, before: dict[str, Any], now: dict[str, Any], may_change: frozenset[str]) -> None:
        changed = [
            f"{key}={before.get(key)!r} there, {now.get(key)!r} here"
            for key in sorted(before.keys() | now.keys())
            if key not in may_change and before.get(key) != now.get(key)
        ]
        if changed:
            raise RunError(
                f"{self.path} holds another run ({'; '.join(changed)}): repeat its settings to resume it, "
                "or choose another out=."
            )

    def record(self, values: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        try:
            self._open_metrics().append(values)
        except OSError as error:
            raise RunError(
                f"could not write {self.path / METRICS} ({error.strerror}), so training stopped. Checkpoints "
                "are good: make room, then run the same command again."
            ) from error

    def evaluations(self, key: str) -> dict[int, float]:
        """A number of every evaluation so far, by step."""
        lines = (line for line in records(self.path) if line["kind"] == "evaluation")
        return {line["step"]: line[key] for line in lines if line.get(key) is not None}

    def sync_metrics(self) -> None:
        """Wait until metrics.jsonl is on the disk."""
        self._open_metrics().sync()

    def cut_metrics(self, step: int, recorded: str = "") -> None:
        """Forget what came after the checkpoint that is resumed, whose newest record was `recorded`."""
        metrics = self._open_metrics()
        kept, unreadable = metrics.cut(step)
        if unreadable or (recorded and metrics.newest != recorded):
            self.notes.append(
                f"{self.path / METRICS} was cut or edited since the checkpoint of step {step}: {kept} "
                f"records up to that step are kept, {unreadable} lines could not be read, and curves will "
                "lack what is missing. The weights and all that follows are not affected."
            )

    @property
    def recorded(self) -> str:
        """Kind and step of the newest record."""
        return self._open_metrics().newest

    def thin_metrics(self, newest: int, every: int) -> None:
        """Drop most of the old training records."""
        self._open_metrics().thin(newest, every)

    def _open_metrics(self) -> MetricsFile:
        """The metrics, while this process may write them."""
        assert self._metrics is not None
        assert self._lock is not None
        try:
            self._lock.require()
        except LockError as error:
            raise RunError(f"{self.path} is no longer written by this process: {error}.") from None
        return self._metrics

    def close(self) -> None:
        """Close the metrics and release the lock."""
        if self._metrics is not None:
            # A full disk takes no last line either; it was told when it was written.
            with suppress(OSError):
                self._metrics.close()
        if self._lock is not None:
            self._lock.release()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records in metrics.jsonl; an incomplete last line is left out."""
    with (path / METRICS).open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def safe_name(name: str) -> str:
    """A name as a folder can have it."""
    return "".join(letter if letter.isalnum() or letter in "-_.+" else "-" for letter in name)


_PACKAGES = ("stepwell", "torch", "numpy", "diffusers", "accelerate", "safetensors")


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that training depends on; None: not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def environment(**more: Any) -> dict[str, Any]:
    """Versions, commit and machine (nothing that identifies a person), with `more` from the caller."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "command": [*_program(sys.argv[0]), *sys.argv[1:]],
        **more,
    }


def _program(started: str) -> list[str]:
    """What to type for a program that was started as `started`."""
    path = Path(started)
    if path.name in ("__main__.py", "stepwell"):
        return ["stepwell"]
    name = path.name if path.is_absolute() else str(path)
    return ["python", name] if path.suffix == ".py" else [name]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
