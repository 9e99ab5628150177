"""What the paper's tables cost at full scale, as Markdown: every run of a study, counted and estimated.

    python benchmarks/scale.py table1-full table2-full table3-full

Nothing is trained: each recipe is counted on the meta device, as `stepwell train --dry-run` does it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stepwell.compare.study import Study, load_study
from stepwell.recipes.cost import GPUS, Cost, Gpu, cost_of, probe_work
from stepwell.recipes.load import load
from stepwell.recipes.meta_flops import Flops

EVALUATIONS = {"linear": 5, "cosine": 3, "quadratic": 4, "celebahq": 2, "imagenet": 5}
"""FIDs a run, by workload: the columns of the paper's tables."""


def costs(study: Study) -> Iterator[tuple[str, str, Cost]]:
    """Workload, method and the cost of one seed; each network is counted once."""
    for workload, table in study.workloads.items():
        known: Cost | None = None
        for method in study.methods:
            plan = load(str(table["recipe"]), [f"method={method}"], data_needed=False)
            if known is None:
                known = cost_of(plan)
            probe = probe_work(plan, known.network, processes=1)
            yield workload, method, replace(known, plan=plan, probe=probe)


def hours(gpu: Gpu, cost: Cost, workload: str) -> tuple[float, float]:
    """Training and all FIDs of a run, from and to."""
    images = cost.sampling * EVALUATIONS[workload]
    parts = [gpu.hours(cost.training, cost.recipe.precision), gpu.hours(images, "no")]
    return sum(fast for fast, _ in parts), sum(slow for _, slow in parts)


def table(study: Study) -> Iterator[str]:
    """One line for methods that cost alike, and the sum over methods, workloads and seeds."""
    yield "| runs of one seed | method | training | images | " + " | ".join(gpu.name for gpu in GPUS) + " |"
    yield "|" + "---|" * (4 + len(GPUS))
    total = [[0.0, 0.0] for _ in GPUS]
    alike: dict[tuple[str, str], list[str]] = {}
    for workload, method, cost in costs(study):
        found = [hours(gpu, cost, workload) for gpu in GPUS]
        for sums, (fast, slow) in zip(total, found, strict=True):
            sums[0] += fast * len(study.seeds)
            sums[1] += slow * len(study.seeds)
        images = f"{EVALUATIONS[workload]} x {_exa(cost.sampling)}"
        alike.setdefault((workload, f"{_exa(cost.training)} | {images} | {_cells(found)}"), []).append(method)
    for (workload, rest), methods in alike.items():
        yield f"| {workload} | {', '.join(f'`{method}`' for method in methods)} | {rest} |"
    yield f"| all, {len(study.seeds)} seeds | | | | {_cells(total)} |"


def _cells(found: Sequence[Sequence[float]]) -> str:
    return " | ".join(f"{fast:,.0f} to {slow:,.0f}" for fast, slow in found)


def _exa(work: Flops) -> str:
    return f"{work.total / 1e18:.3g} EFLOP"


def main() -> None:
    """Print a table for every study that is named."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("studies", nargs="*", default=["table1-full", "table2-full", "table3-full"])
    for name in options.parse_args().studies:
        print(f"### {name}", "", *table(load_study(name, ["data=later"])), "", sep="\n")


if __name__ == "__main__":
    main()
