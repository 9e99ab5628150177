"""`stepwell export`: a run as a folder for diffusers' DDPMPipeline."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell.cli.options import add_command, path_of, require_extra
from stepwell.core.errors import StepwellError


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(verbs, "export", run, help="write a folder that diffusers loads", description=__doc__)
    verb.add_argument("directory", type=path_of, metavar="RUN", help="a run directory")
    verb.add_argument("--out", type=path_of, default=None, help="by default RUN/pipeline")


def run(options: argparse.Namespace) -> None:
    """Load the run's averaged weights and save a pipeline."""
    require_extra()
    from stepwell.generate.diffusers_io import export
    from stepwell.recipes.experiment import trained

    out = options.out or options.directory / "pipeline"
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise StepwellError(f"{out} is not empty: choose another --out.")
    made = trained(options.directory)
    export(made.denoiser, made.process, out, latents=made.data.latents is not None)
    print(f"Wrote {out}. In Python: diffusers.DDPMPipeline.from_pretrained({str(out)!r})")
