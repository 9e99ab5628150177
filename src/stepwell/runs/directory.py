"""A run is a directory: recipe, environment, metrics, checkpoints, samples; and when a run is over."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from stepwell.runs.damaged_metrics import recover, whole_until
from stepwell.runs.io import finite, remove_leftovers, write_json

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
        self._metrics: TextIO | None = None
        self._lock: TextIO | None = None

    def open(
        self,
        recipe: dict[str, Any],
        may_change: frozenset[str],
        defaults: dict[str, Any] | None = None,
        copy: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        """Create the directory, or resume the run in it.

        `defaults` are values of settings that an older recipe does not list; `copy` finds the settings
        elsewhere if recipe.json is missing or damaged.
        """
        try:
            for folder in (self.path, self.checkpoints, self.samples):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run directory {self.path}: {error.strerror}.") from error
        try:
            self._take_lock()
            before = self._recipe_before(copy)
            if before is not None:
                self._compare({**(defaults or {}), **before}, recipe, may_change)
            for folder in (self.path, self.checkpoints, self.samples):
                remove_leftovers(folder)
            write_json(self.path / RECIPE, recipe)
            self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
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

    def _take_lock(self) -> None:
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{self.path} is being written by another process: wait for it, or choose another out=."
            ) from None

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
        assert self._metrics is not None
        try:
            self._metrics.write(json.dumps(finite(values)) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise RunError(
                f"could not write {self.path / METRICS} ({error.strerror}), so training stopped. Checkpoints "
                "are good: make room, then run the same command again."
            ) from error

    def evaluations(self, key: str) -> dict[int, float]:
        """A number of every evaluation so far, by step."""
        lines = (line for line in records(self.path) if line["kind"] == "evaluation")
        return {line["step"]: line[key] for line in lines if line.get(key) is not None}

    def metrics_bytes(self) -> int:
        """The length of metrics.jsonl in bytes, after flushing it to disk."""
        assert self._metrics is not None
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    def cut_metrics(self, length: int, step: int) -> None:
        """Truncate metrics.jsonl to its length at the checkpoint of `step`, which is resumed."""
        assert self._metrics is not None
        path = self.path / METRICS
        if not whole_until(path, length, step):
            length, note = recover(path, step)
            self.notes.append(note)
            # Another file has its name now.
            self._metrics.close()
            self._metrics = path.open("a", encoding="utf-8")
        self._metrics.truncate(length)
        self._metrics.seek(length)

    def close(self) -> None:
        """Close the metrics and release the lock."""
        for stream in (self._metrics, self._lock):
            if stream is not None:
                # A full disk takes no last line either; it was told when it was written.
                with suppress(OSError):
                    stream.close()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records in metrics.jsonl; an incomplete last line is left out."""
    with (path / METRICS).open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


_PACKAGES = ("stepwell", "torch", "numpy", "diffusers", "accelerate", "safetensors")


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
