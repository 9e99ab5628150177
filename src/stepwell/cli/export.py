"""`stepwell export`: a run's network as folders that diffusers or peft load."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell.cli.options import add_command, begin, path_of
from stepwell.core.errors import StepwellError

_EXAMPLES = """examples:
  stepwell export runs/fashion16-auto-0
  stepwell export runs/tuned --adapters --out my-lora        LoRA alone, for peft

A U-Net without labels on DDPM's chain becomes a DDPMPipeline. Networks with labels, DiTs, flows and networks
of latents become a network and a scheduler of diffusers, those with captions with their text encoder; the
Python that generates with them is printed.
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(
        verbs,
        "export",
        run,
        help="write folders that diffusers or peft load",
        description=__doc__,
        examples=_EXAMPLES,
    )
    verb.add_argument("directory", type=path_of, metavar="RUN", help="a run directory")
    verb.add_argument("--out", type=path_of, default=None, help="by default RUN/pipeline, or RUN/adapters")
    verb.add_argument("--adapters", action="store_true", help="the LoRA adapters alone")


def run(options: argparse.Namespace) -> None:
    """Load the run's averaged weights and write them."""
    begin(f"exporting {options.directory}")
    from stepwell.generate.export import export, export_adapters
    from stepwell.recipes.captions import encoder_of
    from stepwell.recipes.experiment import trained

    out = options.out or options.directory / ("adapters" if options.adapters else "pipeline")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise StepwellError(f"{out} is not empty: choose another --out.")
    made = trained(options.directory)
    if options.adapters and not made.recipe.lora:
        raise StepwellError(f"{options.directory} has no adapters (lora=0): leave --adapters out.")
    if options.adapters:
        code = export_adapters(made.denoiser, out)
    else:
        latents = made.data.latents is not None
        encoder = encoder_of(made.recipe) if made.recipe.captions else None
        code = export(made.denoiser, made.process, made.data.train.shape, out, latents, encoder)
    print(f"Wrote {out} (EMA weights). In Python:\n\n{code}")
    if made.data.class_names:
        print("Labels: " + ", ".join(f"{n} {name}" for n, name in enumerate(made.data.class_names)))
    if made.data.latents is not None:
        print(
            f"These are latents of {made.data.latents.autoencoder}, scaled to mean 0 and deviation 1 per "
            f"channel by the figures in {made.recipe.data}: undo that, then decode."
        )
