"""A run is a directory: recipe, environment, metrics, checkpoints, samples; and when a run is over."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from stepwell.runs.io import finite, write_json

RECIPE, ENVIRONMENT, METRICS = "recipe.json", "environment.json", "metrics.jsonl"
LOCK = ".lock"


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
        self._metrics: TextIO | None = None
        self._lock: TextIO | None = None

    def open(
        self, recipe: dict[str, Any], may_change: frozenset[str], defaults: dict[str, Any] | None = None
    ) -> bool:
        """Create the directory or resume the run in it; returns whether there was one.

        `defaults` are values of settings that an older recipe does not list.
        """
        try:
            for folder in (self.path, self.checkpoints, self.samples):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run directory {self.path}: {error.strerror}.") from error
        self._take_lock()
        stored = self.path / RECIPE
        resumed = stored.exists()
        if resumed:
            self._compare({**(defaults or {}), **json.loads(stored.read_text())}, recipe, may_change)
        write_json(stored, recipe)
        self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
        return resumed

    def _take_lock(self) -> None:
        self._lock = (self.path / LOCK).open("w")
        for tries in range(10):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                # `stepwell watch` takes it for a moment, to see whether the run is being written.
                time.sleep(0.05 * (tries < 9))
        raise RunError(
            f"{self.path} is being written by another process: wait for it, or choose another out=."
        )

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
        self._metrics.write(json.dumps(finite(values)) + "\n")
        self._metrics.flush()

    def metrics_bytes(self) -> int:
        """The length of metrics.jsonl in bytes, after flushing it to disk."""
        assert self._metrics is not None
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    def cut_metrics(self, length: int) -> None:
        """Truncate metrics.jsonl to its length at the checkpoint that is resumed."""
        assert self._metrics is not None
        if os.fstat(self._metrics.fileno()).st_size < length:
            raise RunError(f"{self.path / METRICS} is shorter than at its last checkpoint: it was edited.")
        self._metrics.truncate(length)
        self._metrics.seek(length)

    def close(self) -> None:
        """Close the metrics and release the lock."""
        for stream in (self._metrics, self._lock):
            if stream is not None:
                stream.close()


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
