"""Options, checks and output that several commands share."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepwell.cli.columns import folded
from stepwell.core import require
from stepwell.core.errors import InvalidParameter, StepwellError, quoted
from stepwell.core.reading import place
from stepwell.runs.io import finite

SPEC = "NAME[:key=value,...]"
"""How a process, sampler or weighting is written."""


def path_of(text: str) -> Path:
    """A path on the command line, which may begin with ~."""
    try:
        return place(text)
    except StepwellError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(most: int = require.MOST, least: int | None = None) -> Callable[[str], int]:
    """Reads a whole number up to a limit: where it becomes memory or time that nobody can mean."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{quoted(text)} is no whole number.") from None
        if value > most or (least is not None and value < least):
            limits = f"at most {most:,}" if least is None else f"from {least:,} to {most:,}"
            raise argparse.ArgumentTypeError(f"{quoted(text)} must be {limits}.")
        return value

    return read


def number(text: str) -> float:
    """Reads a finite number."""
    try:
        return require.finite("it", float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no finite number.") from None


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], None],
    *,
    help: str,
    description: str | None,
    examples: str = "",
) -> argparse.ArgumentParser:
    """Add a command that calls `run` with its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_save(parser: argparse.ArgumentParser) -> None:
    """Add --save."""
    parser.add_argument("--save", type=path_of, metavar="FILE.png", help="save a figure (.png, .svg or .pdf)")


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add --shape, which may be given several times."""
    parser.add_argument(
        "--shape",
        type=shape_of,
        action="append",
        default=[],
        metavar="C,H,W",
        help="of one example, for densities that depend on it: an image C,H,W, a video C,F,H,W, tokens n,d; "
        "several times for several resolutions",
    )


def shape_of(text: str) -> tuple[int, ...]:
    """The sizes in C,H,W."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and len(word) < 10 and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no shape: write sizes such as 16,128,128.")
    return tuple(int(word) for word in words)


def check_picture(path: Path) -> None:
    """Raise InvalidParameter if no picture can be written to this path."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidParameter(f"--save {path}: the file must end in .png, .svg or .pdf.")
    if not path.parent.is_dir():
        raise InvalidParameter(f"--save {path}: there is no folder {path.parent}.")
    if path.is_dir():
        raise InvalidParameter(f"--save {path}: that is a folder.")


def print_json(values: Any) -> None:
    """Print values as one line of JSON."""
    print(json.dumps(finite(values)))


def output(
    options: argparse.Namespace, values: Any, text: str, draw: Callable[[Path], None] | None = None
) -> None:
    """Save the figure if --save is given, then print the values (--json) or the text."""
    save = options.save if draw is not None else None
    if save is not None and draw is not None:
        draw(save)
    if options.json:
        print_json(values)
        return
    print(folded(text.rstrip("\n")))
    if save is not None:
        print(f"\nSaved {save}")


def whole_numbers(option: str, text: str | None) -> list[int]:
    """The sorted numbers of an option such as 0,50,200; empty if it is not given."""
    words = [] if text is None else text.split(",")
    if not all(word.strip().isdecimal() and len(word.strip()) < 16 for word in words):
        raise StepwellError(f"{option} {text}: write whole numbers separated by commas, as in 0,50,200.")
    return sorted({int(word) for word in words})


def require_extra() -> None:
    """Raise StepwellError if a package of the `train` extra is missing."""
    needed = ("accelerate", "diffusers", "safetensors", "numpy", "PIL")
    missing = [name for name in needed if not find_spec(name)]
    if missing:
        raise StepwellError(
            f"this needs {', '.join(missing)}, which torch does not install: pip install 'stepwell[train]'."
        )


def begin(what: str) -> None:
    """Check that packages are there, and give a sign of life: importing torch takes seconds."""
    require_extra()
    sign_of_life(what)


def sign_of_life(what: str) -> None:
    """Say what is begun, once for all ranks, if torch is still to be imported."""
    if os.environ.get("RANK", "0") == "0" and "torch" not in sys.modules:
        print(f"{what}: importing torch", file=sys.stderr, flush=True)
