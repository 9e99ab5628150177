"""A pool of training processes: one process and one thread a trial, as many at once as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from stepwell.compare.attempt import attempt
from stepwell.compare.trials import Trial
from stepwell.recipes.schema import Recipe


@dataclass(frozen=True)
class Event:
    """Progress or the end of a trial."""

    trial: Trial
    kind: str
    """progress, done, failed or interrupted."""
    share: float = 0.0
    """The share of its training that is done."""
    message: str = ""


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_trials(trials: Sequence[Trial], effort: dict[str, int], workers: int) -> Iterator[Event]:
    """Train and score trials in order; one that fails does not stop the others.

    Closing the iterator stops the runs: they save, and continue when they are started again.
    """
    # A fork server imports torch, diffusers and peft, which take seconds, once for all trials.
    context = multiprocessing.get_context("forkserver")
    adapters = ["peft"] if any(trial.recipe.lora for trial in trials) else []
    context.set_forkserver_preload(["stepwell.recipes.score", "stepwell.recipes.run", *adapters])
    _start_server()
    waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
    for trial in trials:
        waiting.put(trial)
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    stop = threading.Event()
    threads = [
        threading.Thread(target=_work, args=(context, waiting, events, stop, effort), daemon=True)
        for _ in range(min(workers, len(trials)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            while (event := events.get()) is not None:
                yield event
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _start_server() -> None:
    """Start the fork server deaf to Ctrl-C, which reaches it too and would end it while it imports."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        # Not the main thread: signals are the caller's business there.
        return
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def _work(context: Any, waiting: Any, events: Any, stop: threading.Event, effort: dict[str, int]) -> None:
    """Run one trial after the other, each in a process of its own, whose death does not harm the rest."""
    while not stop.is_set():
        try:
            trial = waiting.get_nowait()
        except queue.Empty:
            break
        try:
            ours, theirs = context.Pipe()
            process = context.Process(target=_trial, args=(trial.recipe, trial.scored, effort, theirs))
            process.start()
            theirs.close()
            ended = _follow(trial, ours, process, events, stop)
        except Exception as error:  # no memory for another process, say: the study must not wait forever
            ended = Event(trial, "failed", message=f"its process could not be run: {error}.")
        events.put(ended)
    events.put(None)


def _follow(trial: Trial, pipe: Connection, process: Any, events: Any, stop: threading.Event) -> Event:
    """Forward a process's progress as events; returns how it ended."""
    last: Event | None = None
    stopped = False
    while True:
        if stop.is_set() and not stopped:
            process.terminate()
            stopped = True
        try:
            if not pipe.poll(0.2):
                continue
            kind, share, message = pipe.recv()
        except (EOFError, OSError):
            break
        last = Event(trial, kind, share, message)
        if kind == "progress":
            events.put(last)
    process.join()
    if stopped and (last is None or last.kind == "progress"):
        return Event(trial, "interrupted")
    if last is None or last.kind == "progress":
        how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"
        return Event(trial, "failed", message=f"its process ended with {how}.")
    return last


def _trial(recipe: Recipe, scored: bool, effort: dict[str, int], pipe: Connection) -> None:
    """Train and score one run in this process, sending progress and the ending through the pipe."""
    # Ctrl-C reaches the whole process group: the study handles it, and asks its runs to save and stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = time.monotonic()

    def progress(step: int, values: dict[str, Any]) -> None:
        spent = (time.monotonic() - started) / recipe.seconds if recipe.seconds else 0.0
        try:
            pipe.send(("progress", min(1.0, max(step / recipe.steps, spent)), ""))
        except OSError:
            # The study was killed: save and stop, so that the next one can open the directory.
            os.kill(os.getpid(), signal.SIGTERM)

    kind, message = attempt(recipe.values(), scored, effort, progress)
    with suppress(OSError):  # the study may be gone
        pipe.send((kind, 1.0, message))
