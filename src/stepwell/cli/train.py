"""`stepwell train`: from a workload and a method to a run directory."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from stepwell.cli.options import add_command, require_extra

if TYPE_CHECKING:
    from stepwell.recipes.plan import Plan
    from stepwell.recipes.schema import Recipe

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
    verb = add_command(
        verbs,
        "train",
        run,
        help="train a workload with a method",
        description="Train a workload, shipped or a .toml of your own, with any method and settings.",
        examples=_EXAMPLES,
    )
    verb.add_argument("workload", help="a name that `stepwell ls workloads` prints, or a .toml file")
    verb.add_argument("settings", nargs="*", metavar="key=value", help="method, data, steps, lr, out, ...")
    verb.add_argument("--dry-run", action="store_true", help="print the resolved recipe and what it costs")
    verb.add_argument("--inexact", action="store_true", help="resume with other processes or data")
    verb.add_argument("--settings", action="store_true", dest="explain", help="list every setting and stop")


def run(options: argparse.Namespace) -> None:
    """Resolve, then train or explain."""
    require_extra()
    from stepwell.recipes.load import load
    from stepwell.recipes.run import with_out

    # A dry run also counts workloads whose data are not named yet.
    plan = load(options.workload, options.settings, data_needed=not options.dry_run)
    plan = with_out(plan, options.workload)
    if options.dry_run:
        _dry_run(plan)
    elif options.explain:
        _explain(plan.recipe)
    else:
        _train(plan, options.inexact)


def _dry_run(plan: Plan) -> None:
    from stepwell.recipes.dry_run import report

    cost = report(plan)
    # Every rank counts and measures, one of them prints.
    if os.environ.get("RANK", "0") == "0":
        _explain(plan.recipe)
        print(f"\n{cost}")


def _train(plan: Plan, inexact: bool) -> None:
    from stepwell.cli.progress import TrainingProgress
    from stepwell.recipes.run import run_plan

    recipe = plan.recipe
    with TrainingProgress(recipe.steps) as progress:
        at = run_plan(plan, inexact=inexact, say=progress.say, progress=progress.at)
    if not at.finished(recipe.limit):
        # Interrupted, saved and said so: a script must not take it for finished.
        raise SystemExit(130)
    if os.environ.get("RANK", "0") == "0":
        print(f"{recipe.out}: {at.step} steps, {at.clock.seconds:.0f} training seconds.")
        print(f"Next: stepwell evaluate {recipe.out}; stepwell generate {recipe.out} --out images.png")


def _explain(recipe: Recipe) -> None:
    from stepwell.recipes.schema import SETTINGS

    for name, setting in SETTINGS.items():
        print(f"{name:18} = {getattr(recipe, name)!r:24} # {setting.meaning}")
