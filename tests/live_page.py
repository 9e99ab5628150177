"""The server of `stepwell watch` in a thread, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stepwell.compare.watch import Live, Server


@contextmanager
def served(live: Live, port: int = 0, longest_seconds: float = 20.0) -> Iterator[Server]:
    """Answer until the block ends."""
    with Server(live, port) as server:
        server.longest_seconds = longest_seconds
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
