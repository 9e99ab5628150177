"""The report as a page that follows running trainings: a small server on this machine's loopback only."""

from __future__ import annotations

import errno
import json
import os
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stepwell.compare.report.page import payload, render, version
from stepwell.compare.views import Summary
from stepwell.core.errors import StepwellError

LOOPBACK = "127.0.0.1"
_READ = (".json", ".jsonl", ".png", ".toml")
_SKIPPED = ("checkpoints",)

Summarise = Callable[[Sequence[Path]], Summary]


class Live:
    """The newest summary of some directories, made again only if a file in them has changed."""

    def __init__(self, paths: Sequence[Path], summarise: Summarise) -> None:
        self._paths, self._summarise = tuple(paths), summarise
        self._lock = threading.Lock()
        self._seen: object = None
        self._shown = _waiting(self._paths, "No run has been read yet.")
        self._answer: tuple[str, str] | None = None

    def newest(self) -> tuple[Summary, str]:
        """The summary, and whether its runs are waited for, running or ended."""
        with self._lock:
            self._look()
            return self._shown

    def answer(self) -> tuple[str, str]:
        """The same for a page that is open already: a tag that changes when it does, and JSON."""
        with self._lock:
            self._look()
            if self._answer is None:
                content = payload(*self._shown)
                tag = version(content)
                self._answer = tag, json.dumps({"version": tag, **content})
            return self._answer

    def _look(self) -> None:
        # Listed before reading: what changes meanwhile differs from it, and is read next time.
        seen = tuple(sorted(_files(self._paths)))
        if seen != self._seen:
            self._shown, self._answer, self._seen = self._read(), None, seen

    def _read(self) -> tuple[Summary, str]:
        there = [path for path in self._paths if path.exists()]
        if not there:
            return _waiting(self._paths, "There is no such directory yet.")
        try:
            summary = self._summarise(there)
        except StepwellError as error:
            return _waiting(self._paths, str(error))
        except Exception as error:
            # A run that is being made, moved or deleted can be caught between two files, in any shape: the
            # page keeps what it knew and looks again at the next change.
            if self._shown[1] != "waiting":
                return self._shown
            return _waiting(
                self._paths, f"What is there cannot be read yet ({type(error).__name__}: {error})."
            )
        return summary, "running" if summary.running or len(there) < len(self._paths) else "ended"


def _waiting(paths: Sequence[Path], reason: str) -> tuple[Summary, str]:
    where = ", ".join(map(str, paths))
    said = (f"Waiting for a run in {where}.", reason)
    return Summary(f"stepwell watch {where}", said, (), (), ()), "waiting"


def _files(paths: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    """Everything that a summary may be made from, by name, size and time of change."""
    for top in paths:
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            for name in names:
                if not name.startswith(".") and name.endswith(_READ):
                    try:
                        found = os.stat(os.path.join(folder, name))
                    except OSError:
                        continue
                    yield os.path.join(folder, name), found.st_size, found.st_mtime_ns


class Server(ThreadingHTTPServer):
    """Answers this machine's own browser, and nobody else."""

    daemon_threads = True

    def __init__(self, live: Live, port: int) -> None:
        self.live = live
        try:
            super().__init__((LOOPBACK, port), Handler)
        except OverflowError:
            raise StepwellError(
                f"--port {port}: a port is a number from 0 (any that is free) to 65535."
            ) from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StepwellError(f"cannot listen on port {port}: {error.strerror}.") from error
            raise StepwellError(
                f"port {port} is in use: choose another with --port, or --port 0 for any that is free."
            ) from None

    def server_bind(self) -> None:
        """As HTTPServer does it, but without asking a name server who we are."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of an answer is no news."""


class Handler(BaseHTTPRequestHandler):
    """`/` is the page, `/summary.json` what is new in it."""

    server: Server
    server_version, sys_version = "stepwell", ""
    timeout = 20

    def do_GET(self) -> None:
        """Answer, if the question came to us by our own name."""
        # A foreign page can make its own name point to 127.0.0.1; it cannot make the browser say ours.
        names = {f"{host}:{self.server.server_port}" for host in (LOOPBACK, "localhost", "[::1]")}
        path = self.path.partition("?")[0]
        if self.headers.get("Host", "").lower() not in names:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "Ask for 127.0.0.1 or localhost.\n")
        elif path == "/":
            summary, state = self.server.live.newest()
            self._send(HTTPStatus.OK, "text/html", render(summary, state))
        elif path == "/summary.json":
            self._summary()
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is / and /summary.json.\n")

    do_HEAD = do_GET  # noqa: N815

    def _summary(self) -> None:
        tag, text = self.server.live.answer()
        if self.headers.get("If-None-Match") == f'"{tag}"':
            self._send(HTTPStatus.NOT_MODIFIED, "application/json", "")
        else:
            self._send(HTTPStatus.OK, "application/json", text)

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "Only GET and HEAD.\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The terminal belongs to the reader."""
