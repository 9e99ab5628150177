"""`stepwell analyze cost`: the time of methods' training steps on this machine, and by counting."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepwell.cli.analyze.run_or_workload import add_arguments, plan_of
from stepwell.cli.columns import table
from stepwell.cli.options import add_command, begin, output, whole, whole_numbers
from stepwell.cli.progress import measuring
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.analyze.step_cost import StepCost, Stepped
    from stepwell.data.source import DataSet
    from stepwell.models.denoiser import Denoiser
    from stepwell.recipes.plan import Plan


METHODS = "uniform,neyman,alignment,beta-policy,loss-ema"
_EXAMPLES = """examples:
  stepwell analyze cost fashion16 model=small
  stepwell analyze cost fashion16 --methods neyman,beta-policy:subset=3,every_steps=40 --batches 16,64,256
  stepwell analyze cost runs/fashion16-uniform-0 --rounds 40

Steps of a method and of uniform are timed alternately, so that other load on the machine affects both:
trust the ratios and their intervals. Nothing is written. uniform against itself shows the noise.
"""
PAPER = (3, 1000, 128, 40)
"""Kim et al.'s |S|, T, batch and f_S on CIFAR-10."""


def register(analyses: Any) -> None:
    """Add the analysis to the command line."""
    parser = add_command(
        analyses,
        "cost",
        run,
        help="the time of methods' training steps on this machine",
        description="Time the training steps of methods against those of uniform.",
        examples=_EXAMPLES,
    )
    add_arguments(parser)
    parser.add_argument(
        "--methods", default=METHODS, metavar="NAME,...", help="methods as in train's method="
    )
    parser.add_argument("--batches", metavar="N,...", help="batch sizes (default: the recipe's)")
    parser.add_argument(
        "--rounds",
        type=whole(1000),
        default=12,
        help="rounds per method and batch size: of six steps, or of 32 for methods that measure nothing (12)",
    )


def run(options: argparse.Namespace) -> None:
    """Build, time, print."""
    begin(f"cost of {options.what}")
    from stepwell.core import require

    require.count("rounds", options.rounds)
    methods = split_methods(options.methods)
    plan = plan_of(options.what, options.settings)
    recipe = plan.recipe
    batches = whole_numbers("--batches", options.batches) or [recipe.batch]
    costs = _timed(plan, methods, batches, options.rounds)
    counts = {size: _published(plan, size) for size in batches}
    values = {"costs": [asdict(cost) for cost in costs], "published": counts, "rounds": options.rounds}
    title = f"{options.what}: {recipe.model} on {recipe.data}, {options.rounds} rounds"
    output(options, values, f"{title}\n\n{_report(costs, counts)}")


def split_methods(text: str) -> list[str]:
    """Methods separated by commas; a key=value after a comma belongs to the method before it."""
    methods: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if methods and "=" in word and ":" not in word.partition("=")[0]:
            methods[-1] += f",{word}"
        elif word:
            methods.append(word)
    if not methods:
        raise StepwellError(f"--methods {text!r} names none: write, for example, --methods uniform,neyman.")
    return methods


def _timed(plan: Plan, methods: Sequence[str], batches: Sequence[int], rounds: int) -> list[StepCost]:
    from stepwell.analyze.step_cost import step_cost
    from stepwell.recipes.experiment import data_of, network_of
    from stepwell.recipes.plan import resolve

    settings = plan.recipe.values()
    # All are resolved first: mistakes are reported before anything is timed.
    plans = {
        method: resolve({**settings, "method": method}, source=f"method={method}")
        for method in dict.fromkeys(["uniform", *methods])
    }
    data = data_of(plan.recipe)
    costs: list[StepCost] = []
    for batch in batches:
        # All train one network in turn: two of a kind differ by 1 % by where they lie in memory.
        network = network_of(plan, data)
        base = _stepped(plans["uniform"], batch, data, network)
        for method in methods:
            subject = _stepped(plans[method], batch, data, network)
            costs.append(step_cost(method, batch, base, subject, rounds))
            measuring(len(costs), len(batches) * len(methods))
    return costs


def _stepped(plan: Plan, batch: int, data: DataSet, network: Denoiser) -> Stepped:
    from stepwell.analyze.step_cost import stepped
    from stepwell.recipes.experiment import Experiment
    from stepwell.recipes.training import accelerator_of, training_of

    sized = plan.with_settings(batch=batch)
    return stepped(training_of(Experiment(sized, data, network), accelerator_of(plan.recipe)), batch)


def _published(plan: Plan, batch: int) -> dict[str, float]:
    """The paper's arithmetic for its own method, with this plan's timesteps and batch."""
    from stepwell.analyze.step_cost import published_forwards, published_ratio

    timesteps = plan.process.timesteps or 1000
    subset, _, _, every = PAPER
    return {
        "forwards": published_forwards(subset, timesteps, batch),
        "ratio": published_ratio(subset, timesteps, batch, every),
    }


def _report(costs: Sequence[StepCost], counts: dict[int, dict[str, float]]) -> str:
    from stepwell.analyze.step_cost import published_forwards, published_ratio

    rows = [["method", "batch", "step", "95 % interval", "with probe", "every", "counted"]]
    for each in costs:
        ratio = each.ratio
        interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
        measures = [f"{each.due_ratio:.2f}x", str(each.every_steps)] if each.every_steps > 1 else ["-", "-"]
        cells = [str(each.batch), f"{ratio.value:.3f}x", interval, *measures, f"{each.counted:.3f}x"]
        rows.append([each.method, *cells])
    subset, timesteps, batch, _ = PAPER
    lines = [
        *table(rows, right=True),
        "",
        "All relative to a step of uniform. Counted: by the probe's forward passes; a training step is four.",
        "Kim et al. count 2|S| + 2T/B passes per policy step, and their policy network like the denoiser:",
        f"  theirs, batch {batch}: {published_forwards(subset, timesteps, batch):.1f} passes, "
        f"{published_ratio(*PAPER):.2f}x; about 1.5x measured (cited, not measured here)",
    ]
    for size, each_count in counts.items():
        lines += [f"  here, batch {size}: {each_count['forwards']:.1f} passes, {each_count['ratio']:.2f}x"]
    return "\n".join(lines)
