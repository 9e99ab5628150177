"""`stepwell VERB ...`: parse the command line, run the verb, print our errors as one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import stepwell
from stepwell.cli import (
    analyze,
    compare,
    data,
    evaluate,
    export,
    fit,
    generate,
    ls,
    report,
    show,
    table,
    train,
    watch,
)
from stepwell.cli.streams import lasting_streams
from stepwell.cli.tell import from_system, tell
from stepwell.core.errors import StepwellError
from stepwell.core.memory import memory_watched

VERBS = (ls, show, table, fit, data, train, generate, evaluate, analyze, compare, report, watch, export)


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    top = argparse.ArgumentParser(
        prog="stepwell", description="Choose which timesteps a diffusion model trains on."
    )
    top.add_argument("--version", action="version", version=f"stepwell {stepwell.__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        verb.register(verbs)
    return top


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command; key=value words may also come after options."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if rest and hasattr(options, "settings") and all("=" in word and word[0] != "-" for word in rest):
        options.settings += rest
    elif rest:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


_LOWER = {
    "generate": "lower --batch.",
    "data": "lower --batch.",
    "evaluate": "lower -n, or --batch between two sets of images.",
    "analyze": "lower batch= or --images, or take a smaller model.",
}
"""What takes most memory, by verb; training says it itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0, 2 after an error of ours, 130 after Ctrl-C."""
    with lasting_streams() as output:
        code = _run(arguments)
        output.flush()
        if output.error is not None and code == 0:
            print(
                f"stepwell: all was done, but standard output takes no text ({output.error.strerror}): what "
                "was printed is incomplete.",
                file=sys.stderr,
            )
            return 2
    return code


def _run(arguments: Sequence[str] | None) -> int:
    options = parsed(arguments)
    try:
        with memory_watched(_LOWER.get(options.verb, "close other programs, or ask for less.")):
            options.run(options)
    except StepwellError as error:
        tell(options.verb, error)
        return 2
    except OSError as error:
        tell(options.verb, from_system(error))
        return 2
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(f"stepwell {options.verb}: stopped.", file=sys.stderr)
        return 130
    return 0
