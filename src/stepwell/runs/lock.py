"""One writer for a run directory, also on storage that several machines share.

A lock is a file `.lock-N` that says who holds it; the highest N counts. Creating N + 1 (O_EXCL, atomic on NFS
since version 3) takes it from a holder that is gone, so of many that try, one wins; numbers never go back,
so a slow one cannot take the place of a newer one. The holder sets the file's time again and again: times
are compared with the storage's own clock, never with another machine's. `flock` is not used: NFS may not
have it, and it says neither who holds a lock nor since when.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stepwell.runs.io import write_atomic

HEARTBEAT = 15.0
"""Seconds between two signs of life."""
STALE_AFTER = 120.0
"""Seconds without one after which the holder on another machine counts as gone."""
_NAME = re.compile(r"\.lock-(\d{6,})")
_RELEASED = b"released\n"


class LockError(Exception):
    """Another process writes here, or took over."""


@dataclass(frozen=True)
class Owner:
    """A process, so that others can tell whether it still runs."""

    host: str
    pid: int
    started: str
    """When the process began, as its kernel counts: a process id may be used again."""
    processes: str
    """Which list of processes `pid` belongs to: a boot of a machine, and a container on it."""
    token: str
    """Of this one lock."""

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _started(pid), _processes(), uuid.uuid4().hex)

    def gone(self) -> bool:
        """Whether it surely ended: it was on this machine, and its process is no longer there."""
        if self.processes != _processes():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return _started(self.pid) != self.started


def _started(pid: int) -> str:
    """The start of a process in clock ticks since the boot; empty if it ended or nothing says so."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    return ""


def _processes() -> str:
    """This boot of this machine and its container; where the kernel does not say, the machine's name."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


@dataclass(frozen=True)
class _Found:
    """A lock file: its number, its holder (None: released, or not written yet) and the last sign of life."""

    number: int
    owner: Owner | None
    released: bool
    beaten: float


class Lock:
    """The right to write to a folder; `require` says when it was lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owner = Owner.here()
        self._number = 0
        self._verified = 0.0
        self._taken_by: str | None = None
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"lock of {folder}", daemon=True)

    @classmethod
    def take(cls, folder: Path) -> Lock:
        """Lock a folder, or say who holds it."""
        lock = cls(folder)
        found = _newest(folder)
        if found is not None:
            lock._require_free(found)
        number = 1 if found is None else found.number + 1
        content = json.dumps(asdict(lock._owner)).encode()
        try:
            handle = os.open(_file(folder, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            raise LockError("another process locked it at this moment") from None
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # A full disk: a lock without an owner would keep everybody out.
            _file(folder, number).unlink(missing_ok=True)
            raise
        lock._number = number
        # Read back: what a machine remembers of a folder may be older than the folder.
        if lock._taker() is not None:
            _file(folder, number).unlink(missing_ok=True)
            raise LockError("another process locked it at this moment")
        for older in _numbers(folder):
            if older < number:
                _file(folder, older).unlink(missing_ok=True)
        lock._verified = time.time()
        lock._heart.start()
        return lock

    def _require_free(self, found: _Found) -> None:
        owner = found.owner
        if found.released or (owner is not None and owner.gone()):
            return
        age = max(0.0, _clock_of(self._folder) - found.beaten)
        here = owner is not None and owner.processes == self._owner.processes
        # A process that still runs here may be stopped or slow, but it is not gone.
        if age > STALE_AFTER and not here:
            return
        who = "an unknown process" if owner is None else f"process {owner.pid} on {owner.host}"
        raise LockError(f"{who} writes there (last sign of life {age:.0f} s ago)")

    def require(self) -> None:
        """Raise LockError if another process has taken over, as it may after a long silence of this one."""
        # Far more often than that the heartbeat looks; only after a pause it may be behind.
        if self._taken_by is None and abs(time.time() - self._verified) > STALE_AFTER / 2:
            try:
                self._look()
            except OSError as error:
                raise LockError(f"whether it is still locked cannot be seen ({error.strerror})") from error
        if self._taken_by is not None:
            raise LockError(self._taken_by)

    def release(self) -> None:
        """Leave the folder to others."""
        self._stop.set()
        if self._heart.ident is not None:
            self._heart.join()
        with suppress(LockError, OSError):
            self.require()
            # The file stays, so that numbers never go back.
            write_atomic(_file(self._folder, self._number), _RELEASED)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            with suppress(OSError):  # the storage is away: the next one may reach it
                self._look()
            if self._taken_by is not None:
                return

    def _look(self) -> None:
        """See whether the lock is still ours, and give a sign of life."""
        self._taken_by = self._taker()
        if self._taken_by is None:
            os.utime(_file(self._folder, self._number))
            self._verified = time.time()

    def _taker(self) -> str | None:
        """Who has the lock instead of us."""
        found = _newest(self._folder)
        if found is not None and found.number == self._number and found.owner == self._owner:
            return None
        by = "another process" if found is None or found.owner is None else f"process {found.owner.pid}"
        where = "" if found is None or found.owner is None else f" on {found.owner.host}"
        return f"{by}{where} took over after this one gave no sign of life for {STALE_AFTER:.0f} s"


def is_held(folder: Path) -> bool | None:
    """Whether a process writes to a folder; None if that cannot be known, as of a copy without its lock.

    Only read, by this machine's clock.
    """
    try:
        found = _newest(folder)
    except OSError:
        return None
    if found is None:
        return None
    owner = found.owner
    if found.released or (owner is not None and owner.gone()):
        return False
    here = owner is not None and owner.processes == Owner.here().processes
    return here or time.time() - found.beaten <= STALE_AFTER


def _file(folder: Path, number: int) -> Path:
    return folder / f".lock-{number:06d}"


def _numbers(folder: Path) -> Iterator[int]:
    for name in os.listdir(folder):
        matched = _NAME.fullmatch(name)
        if matched:
            yield int(matched[1])


def _newest(folder: Path) -> _Found | None:
    """The lock that counts; None if there never was one."""
    for _ in range(100):
        number = max(_numbers(folder), default=0)
        if number == 0:
            return None
        try:
            # Opened, not only asked for its time: NFS looks at the server again then.
            with _file(folder, number).open("rb") as file:
                beaten, content = os.fstat(file.fileno()).st_mtime, file.read()
        except FileNotFoundError:
            continue  # a newer one replaced it
        released = content == _RELEASED
        return _Found(number, None if released else _owner(content), released, beaten)
    raise LockError("others lock it again and again")


def _owner(content: bytes) -> Owner | None:
    """Who wrote a lock; None if it is not, or not yet, written."""
    with suppress(ValueError, TypeError):
        return Owner(**json.loads(content))
    return None


def _clock_of(folder: Path) -> float:
    """What time it is where the folder is stored."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-") as file:
        return os.fstat(file.fileno()).st_mtime
