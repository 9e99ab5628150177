"""`stepwell watch`: the report as a page that follows running trainings, on this machine only."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from stepwell.cli.options import add_command, path_of, whole

PORT = 8642


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(verbs, "watch", run, help="follow running trainings in a browser", description=__doc__)
    verb.add_argument(
        "directories", nargs="+", type=path_of, metavar="DIR", help="a run, or a directory of runs"
    )
    verb.add_argument("--port", type=whole(), default=PORT, help=f"on 127.0.0.1; 0 takes any ({PORT})")
    verb.add_argument("--no-open", action="store_true", help="do not open a browser")


def run(options: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    from stepwell.compare.run_states import followed
    from stepwell.compare.watch import Live, Server

    with Server(Live(options.directories, followed), options.port) as server:
        print(f"{server.url} shows {', '.join(map(str, options.directories))}; Ctrl-C ends it", flush=True)
        if not options.no_open and _has_screen():
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def _has_screen() -> bool:
    """Without one, `webbrowser` would start a text browser in this terminal."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
