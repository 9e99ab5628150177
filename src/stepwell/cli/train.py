"""`stepwell train`: from a workload and a method to a run directory."""

from __future__ import annotations

import argparse
import os
from typing import Any

from stepwell.cli.options import require_extra

_EXAMPLES = """examples:
  stepwell train fashion16 method=min-snr
  stepwell train fashion16 method=logit-normal:mean=0.5+min-snr process=cosine steps=2000 seed=1 out=runs/try
  stepwell train images data=my/photos size=32
  stepwell train images data=my/photos size=32 super_resolution=4
  stepwell train fashion16 from=runs/base data=mine.npz lr=1e-3 lora=8
  stepwell train cifar10-ddpm method=neyman --dry-run      what it costs, before there are data or a GPU
  torchrun --nproc_per_node 2 -m stepwell train fashion16 accumulate=2

Run the same command again to resume: the result is bit for bit that of a run never stopped.
`stepwell train WORKLOAD --settings` lists every setting.
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser(
        "train",
        help="train a workload with a method",
        description="Train a workload, shipped or a .toml of your own, with any method and settings.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("workload", help="a name that `stepwell ls workloads` prints, or a .toml file")
    verb.add_argument("settings", nargs="*", metavar="key=value", help="method, data, steps, lr, out, ...")
    verb.add_argument("--dry-run", action="store_true", help="print the resolved recipe and what it costs")
    verb.add_argument("--inexact", action="store_true", help="resume with other processes or data")
    verb.add_argument("--settings", action="store_true", dest="explain", help="list every setting and stop")
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Resolve, then train or explain."""
    require_extra()
    from stepwell.recipes.load import load
    from stepwell.recipes.run import with_out

    if options.dry_run:
        _plan(options)
        return
    recipe = with_out(load(options.workload, options.settings), options.workload)
    if options.explain:
        _explain(recipe)
    else:
        _train(recipe, options.inexact)


def _plan(options: argparse.Namespace) -> None:
    """The recipe and what it costs; its data need not be there yet."""
    from stepwell.recipes.dry_run import planned, report
    from stepwell.recipes.run import with_out

    recipe = with_out(planned(options.workload, options.settings), options.workload)
    found = report(recipe)
    # Every rank counts and measures, one of them tells.
    if os.environ.get("RANK", "0") == "0":
        _explain(recipe)
        print(f"\n{found}")


def _train(recipe: Any, inexact: bool) -> None:
    from stepwell.cli.progress import Progress
    from stepwell.recipes.run import run_recipe

    with Progress(recipe.steps) as progress:
        at = run_recipe(recipe, inexact=inexact, say=progress.say, progress=progress.at)
    if at.step < recipe.steps and (recipe.seconds is None or at.clock.seconds < recipe.seconds):
        # Interrupted, saved and said so: a script must not take it for finished.
        raise SystemExit(130)
    if os.environ.get("RANK", "0") == "0":
        print(f"{recipe.out}: {at.step} steps, {at.clock.seconds:.0f} training seconds.")
        print(f"Next: stepwell evaluate {recipe.out}; stepwell generate {recipe.out} --out images.png")


def _explain(recipe: Any) -> None:
    from stepwell.recipes.schema import MEANINGS

    for key, meaning in MEANINGS.items():
        print(f"{key:18} = {getattr(recipe, key)!r:24} # {meaning}")
