"""What each difference of beta-policy's default from the paper changes on the planted problem.

The default with one rule as the paper has it, and all of them together: the share of all draws in the two
bands that have something to learn (uniform: 0.20), the policy's entropy at the end (uniform: 0), and how much
the examples' rewards differ before they are standardised, which the entropy's weight has to be compared with.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, median

from results import HERE, keep

sys.path.insert(0, str(HERE.parent / "tests"))

SEEDS, BANDS = range(5), (5, 6)
RULES: dict[str, tuple[str, ...]] = {
    "default": (),
    "S chosen before paying": ("late",),
    "row of earlier data": ("earlier_example",),
    "row of all timesteps": ("grid",),
    "a and b without bounds": ("bounds",),
    "no uniform share": ("floor",),
    "raw rewards, mean over dimensions": ("advantage",),
    "raw rewards, squared norm": ("advantage", "squared_norm"),
    "paper": ("late", "earlier_example", "grid", "bounds", "floor", "advantage", "squared_norm", "target"),
}
"""Input pixels do not show here, since the examples are vectors, nor the cap, which linear never reaches."""


def measured(label: str, seed: int) -> tuple[float, float, float]:
    """Share of draws, last entropies and deviation of rewards of one run, in a process of its own."""
    from dataclasses import replace
    from unittest.mock import patch

    import torch
    from planted import BATCH, Planted, share_of_draws

    from stepwell.pacer import Pacer
    from stepwell.samplers.beta_policy import sampler
    from stepwell.samplers.beta_policy.rewards import CORRECTED, PAPER

    torch.set_num_threads(1)
    entropies: list[float] = []
    deviations: list[float] = []

    def watch(step: int, pacer: Pacer) -> None:
        if step % 40 == 39:
            entropies.append(float(pacer.metrics["policy_entropy"]))
            # The metric is |mean| / (deviation / sqrt(B)).
            ratio = pacer.metrics["reward"].abs() / pacer.metrics["reward_snr"]
            deviations.append(float(ratio) * BATCH**0.5)

    rules = replace(CORRECTED, **{name: getattr(PAPER, name) for name in RULES[label]})
    with patch.dict(sampler._SOURCES, {"": rules}):
        share = share_of_draws(Planted(BANDS, seed), "beta-policy", watch=watch)
    return share, mean(entropies[-10:]), median(deviations)


def main() -> None:
    """Every rule with every seed."""
    rows = []
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for label in RULES:
            found = list(pool.map(measured, [label] * len(SEEDS), SEEDS))
            shares, entropies, deviations = zip(*found, strict=True)
            spread = f"{min(shares):.2f} to {max(shares):.2f}"
            entropy, deviation = f"{mean(entropies):.3f}", f"{median(deviations):.1e}"
            rows.append([label, f"{mean(shares):.3f}", spread, entropy, deviation])
            print(rows[-1], flush=True)
    keep(
        "policy-rules",
        "beta-policy's default with single rules of the paper, on the planted problem",
        f"{Path(__file__).name}: the planted problem of planted.py, bands 5 and 6 of ten, {len(SEEDS)} "
        "seeds; each row is the default with one rule as the paper has it. The entropy is the policy's, a "
        "mean of its last ten updates; 0 is uniform. The deviation is that of the examples' rewards before "
        "they are standardised, a median over updates.",
        ["as in the paper", "share of draws", "seeds", "entropy", "deviation of rewards"],
        rows,
    )


if __name__ == "__main__":
    main()
