"""Says which rank is gone: every process beats in the launcher's store, and the others listen.

Collectives cannot say it: gloo names an address, nccl nothing, and a process that is only stopped closes no
connection. Their own timeouts would also end healthy runs, whose ranks wait while rank 0 evaluates or saves.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from stepwell.core.errors import InvalidParameter, RankLost

LIMIT = "STEPWELL_RANK_TIMEOUT"
"""The variable with the seconds after which a rank that does not answer is given up."""
SECONDS = 60.0
"""Its default."""
START = 5
"""Ranks may take this many times as long to appear: a cluster starts them one after the other."""
_BEAT = 1.0
_SILENT = 5.0
"""Seconds without a beat that convict a rank, once a connection is known to be broken."""
_UNWIND = 5.0
"""Seconds for the main thread to end by itself, by the backend's error, before the process is ended."""
_FINISHED = 10**12
"""Beats of a rank that has ended as it should."""
_SESSIONS = count()

_LOST = ("connection closed", "connection reset", "connection refused", "broken pipe", "socket", "timed out")
"""How gloo says that a rank is gone, in errors that are otherwise like all others."""


@contextmanager
def neighbours_watched() -> Iterator[None]:
    """End with one sentence that names the rank, if another one of this launch fails, dies or stops."""
    rank, world = (
        int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
    )
    if world == 1 or "MASTER_ADDR" not in os.environ:
        yield
        return
    neighbours = Neighbours(rank, world, limit())
    try:
        yield
    except RankLost:
        raise
    except RuntimeError as error:
        if not (isinstance(error, DistError) or any(words in str(error).lower() for words in _LOST)):
            neighbours.tell(error)
            raise
        raise RankLost(neighbours.who_is_lost(error)) from error
    except BaseException as error:
        neighbours.tell(error)
        raise
    finally:
        neighbours.close()


def limit() -> float:
    """Seconds without an answer after which a rank is given up."""
    given = os.environ.get(LIMIT, str(SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < 1e6:
        raise InvalidParameter(f"{LIMIT}={given} is not a number of seconds from 1 to a million.")
    return seconds


class Neighbours:
    """One thread beats and listens; another ends the process once a rank is known to be lost.

    Rank 0 listens to all, the others to rank 0 and to the sentence that somebody wrote: the work of the store
    grows with the number of ranks and not with its square.
    """

    def __init__(self, rank: int, world: int, seconds: float) -> None:
        self._rank, self._world, self._seconds = rank, world, seconds
        self._closing, self._known = threading.Event(), threading.Event()
        self._suspicious = False
        self._sentence = ""
        self._answered: float | None = None
        """When the store answered last; None before it was reached."""
        self._own_words = ""
        # Runs of one process, and torchrun's attempts, do not hear each other.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._prefix = f"stepwell/{attempt}/{next(_SESSIONS)}"
        self._threads = [
            threading.Thread(target=work, daemon=True, name=f"stepwell-{work.__name__}")
            for work in (self._beat, self._judge)
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, error: BaseException) -> None:
        """Let the others know that this rank ends, and why; they hear it within two beats."""
        if isinstance(error, (SystemExit, GeneratorExit)):
            return
        words = str(error).strip() or "without a message"
        own = type(error).__module__.startswith("stepwell.")
        said = words if own else f"{type(error).__name__}: {words.splitlines()[0][:300]}"
        self._own_words = f"rank {self._rank} of {self._world} ended: {said}"
        self._known.wait(3 * self._interval)
        # The store may live in this process.
        if self._rank == 0 and not store_of_launcher():
            time.sleep(3 * self._interval)

    def who_is_lost(self, error: BaseException) -> str:
        """The sentence about the rank whose connection broke."""
        if threading.current_thread() is threading.main_thread():
            # A launcher ends the others at once, and this process ends in a moment, after saying why.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._suspicious = True
        if not self._known.wait(_SILENT + 5 * self._interval):
            said = " ".join(str(error).split())[:200]
            return (
                f"another of the {self._world} processes cannot be reached, so this one ends too ({said}): "
                "look for its message, then run the same command again."
            )
        return self._sentence

    def close(self) -> None:
        """Stop listening; the others hear that this rank has finished."""
        self._closing.set()
        for thread in self._threads:
            thread.join(2 * self._interval)

    @property
    def _interval(self) -> float:
        return min(_BEAT, self._seconds / 4)

    def _beat(self) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        wait = timedelta(seconds=START * self._seconds)
        try:
            # A connection of its own: the group's is busy while the main thread waits in it.
            store = PrefixStore(self._prefix, TCPStore(host, port, is_master=False, timeout=wait))
            beats = _Beats(store, self._rank, self._world, self._seconds)
            while not self._closing.is_set():
                beats.beat()
                self._answered = time.monotonic()
                everyone = self._rank == 0 or self._suspicious
                late = beats.late(range(self._world) if everyone else range(1), self._suspicious)
                self._learn(beats.sentence(self._own_words or late))
                self._closing.wait(self._interval)
            store.add(f"beat/{self._rank}", _FINISHED)
        except RuntimeError:
            # Also when rank 0 has finished as it should, a moment before this one.
            if not self._closing.wait(2 * _SILENT):
                self._learn(self._without_store(f"cannot be reached at {host}:{port}"))

    def _without_store(self, what: str) -> str:
        if store_of_launcher():
            return f"the launcher {what}, so rank {self._rank} of {self._world} ends too. {_GO_ON}"
        return f"rank 0 of {self._world} ended or {what}. {_GO_ON}"

    def _judge(self) -> None:
        while not self._closing.wait(self._interval):
            if self._answered is not None and time.monotonic() - self._answered > self._seconds:
                self._learn(self._without_store(f"has not answered for {self._seconds:g} s"))
            if self._sentence and not self._own_words:
                break
        else:
            return
        if self._closing.wait(_UNWIND):
            return
        who = "" if self._rank == 0 else f" (rank {self._rank})"
        wait_for_rank_0(self._rank, self._sentence)
        print(f"stepwell{who}: {self._sentence}", file=sys.stderr, flush=True)
        # The main thread waits in a collective for a rank that will not come. Like a kill, this leaves files
        # whole: they get their names when they are complete.
        os._exit(2)

    def _learn(self, sentence: str) -> None:
        if sentence and not self._sentence:
            self._sentence = sentence
            self._known.set()


_GO_ON = "What was saved is good: run the same command again to go on."


class _Beats:
    """The ranks' counters in the store, and when each was seen to change."""

    def __init__(self, store: Store, rank: int, world: int, seconds: float) -> None:
        self._store, self._rank, self._world, self._seconds = store, rank, world, seconds
        self._seen: dict[int, tuple[int, float]] = {}

    def beat(self) -> None:
        self._store.add(f"beat/{self._rank}", 1)

    def late(self, ranks: range, suspicious: bool) -> str:
        """What to say of the first of some ranks that is not heard any more; empty if there is none."""
        now, patience = time.monotonic(), min(_SILENT, self._seconds) if suspicious else self._seconds
        for rank in ranks:
            # Adding nothing reads a counter without waiting for it to exist.
            beats = self._store.add(f"beat/{rank}", 0)
            before, since = self._seen.get(rank, (-1, now))
            if beats != before:
                self._seen[rank] = beats, now
            elif (
                rank != self._rank and beats < _FINISHED and now - since > patience * (1 if beats else START)
            ):
                return self._words(rank, beats, now - since, suspicious)
        return ""

    def _words(self, rank: int, beats: int, silent: float, suspicious: bool) -> str:
        who = f"rank {rank} of {self._world}"
        if not beats:
            return f"{who} has not come within {silent:.0f} s: see whether it was started, and what it said."
        if suspicious:
            return f"{who} ended without a word: it was killed, or was out of memory. {_GO_ON}"
        return (
            f"{who} has not answered for {silent:.0f} s: it is stopped, or its machine is gone or too busy "
            f"({LIMIT} is the limit in seconds). {_GO_ON}"
        )

    def sentence(self, mine: str) -> str:
        """The first sentence that any rank wrote, this one's among them."""
        if mine:
            return str(self._store.compare_set("ended", "", mine), "utf-8")
        return str(self._store.get("ended"), "utf-8") if self._store.check(["ended"]) else ""


RANK_0_FIRST = 10.0
"""Seconds that other ranks wait before they speak: if rank 0 says the same, a launcher ends them then."""


def wait_for_rank_0(rank: int, sentence: str) -> None:
    """Let rank 0 speak first, unless it is the one that is lost."""
    if rank != 0 and not sentence.startswith("rank 0 of "):
        time.sleep(RANK_0_FIRST)


def store_of_launcher() -> bool:
    """Whether torchrun keeps the store; otherwise rank 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
