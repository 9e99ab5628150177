"""`stepwell cp`: a shipped recipe as a file of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepwell.core.errors import StepwellError, unknown


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("cp", help="copy a recipe into a file of your own", description=__doc__)
    verb.add_argument("name", help="a workload, method file or study that `stepwell ls` prints")
    verb.add_argument("file", type=Path, help="where to write it, ending in .toml")
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Copy, never over something."""
    from stepwell.recipes.method import method_files, study_files, workload_files

    known = {**method_files(), **workload_files(), **study_files()}
    if options.name not in known:
        raise unknown("recipe", options.name, known)
    if options.file.suffix != ".toml":
        raise StepwellError(f"{options.file} must end in .toml, so that it can be told from a name.")
    if options.file.exists():
        raise StepwellError(f"{options.file} exists already: choose another name.")
    try:
        options.file.write_text(known[options.name].read_text())
    except OSError as error:
        raise StepwellError(f"cannot write {options.file}: {error.strerror}.") from error
    if options.name in study_files():
        kind = f"compare {options.file}"
    elif options.name in workload_files():
        kind = f"train {options.file}"
    else:
        kind = f"train fashion16 method={options.file}"
    print(f"Wrote {options.file}. Edit it, then: stepwell {kind}")
