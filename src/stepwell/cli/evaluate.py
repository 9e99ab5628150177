"""`stepwell evaluate`: how good a trained run is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from stepwell.cli.extra import require_extra


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("evaluate", help="score a run", description=__doc__)
    verb.add_argument("directory", type=Path, metavar="RUN", help="a run directory")
    verb.add_argument("-n", "--generated", type=int, default=1000, help="images for the distances; 0: none")
    verb.add_argument("--steps", type=int, default=None, help="denoising steps; by default the recipe's")
    verb.add_argument("--raw", action="store_true", help="the last weights, not their average")
    verb.add_argument("--json", action="store_true", help="for programs")
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load, score, print."""
    require_extra()
    from stepwell.recipes.build import trained
    from stepwell.recipes.score import Effort, score

    made = trained(options.directory, averaged=not options.raw)
    found = score(made, Effort(generated=options.generated, steps=options.steps))
    if options.json:
        print(json.dumps(found))
        return
    print(f"{options.directory}: {made.recipe.method} on {made.recipe.process}, held-out")
    for name, value in found.items():
        if name.startswith("objective/"):
            print(f"  {name.removeprefix('objective/') + ' loss':28} {value:.5f}")
    for name, value in found.get("bits_per_dimension", {}).items():
        print(f"  {'bits per dimension, ' + name:28} {value:.4f}")
    distances = found.get("fashion16_features", {})
    if distances:
        print(f"  Fréchet distance on fashion16 features (not FID), {distances['generated']} images:"
              f" {distances['frechet_distance']:.3f}")  # fmt: skip
        print(f"  kernel distance: {distances['kernel_distance']:.5f}"
              f" ± {distances['kernel_distance_standard_error']:.5f}")  # fmt: skip
