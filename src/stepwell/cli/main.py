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
from stepwell.cli.tell import from_system, tell
from stepwell.core.errors import StepwellError

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0, or 2 after an error of ours."""
    options = parsed(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except StepwellError as error:
        tell(options.verb, error)
        return 2
    except BrokenPipeError:
        # `stepwell ls | head` closed the pipe, which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        tell(options.verb, from_system(error))
        return 2
    return 0
