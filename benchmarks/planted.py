"""Does it learn? The planted problem (tests/planted.py): ten bands, two of which have something to learn.

The share of all draws in the two bands, over 2,000 steps from the start; uniform draws are a fifth.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from results import HERE, keep

sys.path.insert(0, str(HERE.parent / "tests"))

SEEDS = range(10)
NEIGHBOURS = ((2, 3), (5, 6), (8, 9))
APART = (2, 7)
METHODS: dict[str, tuple[str, dict[str, object], tuple[tuple[int, int], ...]]] = {
    "alignment": ("alignment", {}, (*NEIGHBOURS, APART)),
    "alignment, simple": ("alignment", {"target": "simple"}, (*NEIGHBOURS, APART)),
    "beta-policy, credit=alignment": ("beta-policy", {"credit": "alignment"}, NEIGHBOURS),
    "beta-policy, corrected decrease": ("beta-policy", {}, NEIGHBOURS),
    "beta-policy, paper": ("beta-policy", {"paper": True}, NEIGHBOURS),
    "beta-policy, as published": ("beta-policy", {"as_published": True}, NEIGHBOURS),
    "neyman": ("neyman", {}, (*NEIGHBOURS, APART)),
}


def share(method: str, bands: tuple[int, int], seed: int) -> float:
    """One run in a process of its own."""
    import torch
    from planted import Planted, share_of_draws

    torch.set_num_threads(1)
    name, parameters, _ = METHODS[method]
    return share_of_draws(Planted(bands, seed), name, **parameters)


def main() -> None:
    """All methods, bands and seeds; the record is rewritten after every method."""
    chosen = sys.argv[1:] or list(METHODS)
    rows = [row for row in _kept() if row[0] not in chosen]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for method in chosen:
            for bands in METHODS[method][2]:
                shares = list(pool.map(share, [method] * 10, [bands] * 10, SEEDS))
                spread = " ".join(f"{value:.2f}" for value in shares)
                rows.append([method, f"{bands[0]}, {bands[1]}", f"{min(shares):.2f}", spread])
                print(rows[-1], flush=True)
            _keep(rows)


def _kept() -> list[list[str]]:
    """The rows of earlier runs: methods can be measured one by one."""
    path = HERE / "records" / "planted.json"
    found: list[list[str]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return found


def _keep(rows: list[list[str]]) -> None:
    keep(
        "planted",
        "The planted problem: share of draws in the two bands that have something to learn",
        f"{Path(__file__).name}: 10 bands of 100 timesteps, a linear denoiser each, 16-d Gaussian data, "
        "batch 64, Adam 2e-4, 2,000 steps; eight bands start at their optimum, two at zero. All draws from "
        "the first step on; uniform: 0.20. Ten seeds, default settings.",
        ["method", "bands", "least", "seeds 0 to 9"],
        rows,
        command="python benchmarks/planted.py",
    )


if __name__ == "__main__":
    main()
