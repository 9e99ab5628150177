"""The server of `stepwell watch`: the report of running trainings, on this machine's loopback only."""

from __future__ import annotations

import errno
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stepwell.compare.report.page import payload, render, version
from stepwell.compare.views import Summary
from stepwell.core.errors import StepwellError
from stepwell.runs.lock import is_held

LOOPBACK = "127.0.0.1"
_READ = (".json", ".jsonl", ".png", ".toml")
_SKIPPED = ("checkpoints",)

Summarise = Callable[[Sequence[Path]], Summary]


class Live:
    """The newest summary of some directories, computed again only when a file in them has changed."""

    def __init__(self, paths: Sequence[Path], summarise: Summarise) -> None:
        self._paths, self._summarise = tuple(paths), summarise
        self._lock = threading.Lock()
        self._files: object = None
        self._shown = _waiting(self._paths, "No run has been read yet.")
        self._answer: tuple[str, str] | None = None

    def newest(self) -> tuple[Summary, str]:
        """The summary and its state: waiting, running, stopped or ended."""
        with self._lock:
            self._refresh()
            return self._shown

    def answer(self) -> tuple[str, str]:
        """The same for an open page: its version, and the content as JSON."""
        with self._lock:
            self._refresh()
            if self._answer is None:
                content = payload(*self._shown)
                tag = version(content)
                self._answer = tag, json.dumps({"version": tag, **content})
            return self._answer

    def _refresh(self) -> None:
        # Listed before reading: a file that changes in between is read again next time.
        files = tuple(sorted(_files(self._paths)))
        if files != self._files:
            self._shown, self._answer, self._files = self._read(), None, files

    def _read(self) -> tuple[Summary, str]:
        present = [path for path in self._paths if path.exists()]
        if not present:
            return _waiting(self._paths, "There is no such directory yet.")
        try:
            summary = self._summarise(present)
        except StepwellError as error:
            return _waiting(self._paths, str(error))
        except Exception as error:
            # A run that is being created, moved or deleted may be incomplete in any way: the page keeps what
            # it has until the next change.
            if self._shown[1] != "waiting":
                return self._shown
            return _waiting(self._paths, f"The runs cannot be read yet ({type(error).__name__}: {error}).")
        return summary, "running" if len(present) < len(self._paths) else summary.state


def _waiting(paths: Sequence[Path], reason: str) -> tuple[Summary, str]:
    where = ", ".join(map(str, paths))
    verdict = (f"Waiting for a run in {where}.", reason)
    return Summary(f"stepwell watch {where}", verdict, (), (), ()), "waiting"


def _files(paths: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    """Every file that a summary may read: name, size and time of change; and which runs are being written."""
    for top in paths:
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            if (held := is_held(Path(folder))) is not None:
                # A run that is killed changes no file.
                yield folder, 0, int(held)
            for name in names:
                if not name.startswith(".") and name.endswith(_READ):
                    with suppress(OSError):
                        status = os.stat(os.path.join(folder, name))
                        yield os.path.join(folder, name), status.st_size, status.st_mtime_ns


class Server(ThreadingHTTPServer):
    """Answers browsers on this machine only; a client who holds on is let go."""

    daemon_threads = True
    request_queue_size = 128
    most_connections = 64
    """One more lets go of the oldest, which waits for nothing: an answer takes milliseconds."""
    longest_seconds = 20.0
    """Of one connection, whatever it sends."""

    def __init__(self, live: Live, port: int) -> None:
        self.live = live
        self._open: dict[socket.socket, float] = {}
        self._open_lock = threading.Lock()
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
        """Like HTTPServer's, without the DNS lookup."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, in place of the oldest connection if there are too many."""
        with self._open_lock:
            self._open[request] = time.monotonic()
            oldest = list(self._open)[: -self.most_connections]
        _hang_up(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that ended."""
        with self._open_lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Let go of connections that last too long, such as one that sends a byte a minute."""
        past = time.monotonic() - self.longest_seconds
        with self._open_lock:
            slow = [connection for connection, since in self._open.items() if since < past]
        _hang_up(slow)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect in the middle of an answer."""


def _hang_up(connections: Sequence[socket.socket]) -> None:
    """End connections; the thread of each then ends by itself."""
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """`/` is the page, `/summary.json` its current content."""

    server: Server
    server_version, sys_version = "stepwell", ""
    timeout = 20

    def do_GET(self) -> None:
        """Answer requests that address this server by its own name."""
        # DNS rebinding: a foreign site can point its name to 127.0.0.1, but the browser then sends that name.
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
        """No log lines in the terminal."""
