"""Do draws follow a density? Each check states how often it would fail if they do."""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor


def assert_follows_masses(indices: Tensor, masses: Tensor, failure_rate: float = 1e-6) -> None:
    """Chi-square of bin counts against bin masses; bins expecting under 5 draws are pooled."""
    counts = torch.bincount(indices, minlength=len(masses)).double()
    expected = masses.double() / masses.double().sum() * len(indices)
    assert not counts[expected == 0].any(), "draws fell into bins that have no mass"
    order = expected.argsort()
    counts, expected = counts[order], expected[order]
    sparse = int((expected < 5).sum())
    if sparse:
        counts = torch.cat([counts[:sparse].sum()[None], counts[sparse:]])
        expected = torch.cat([expected[:sparse].sum()[None], expected[sparse:]])
    if expected[0] < 5 and len(expected) > 1:
        counts = torch.cat([(counts[0] + counts[1])[None], counts[2:]])
        expected = torch.cat([(expected[0] + expected[1])[None], expected[2:]])
    assert len(expected) >= 2, "too few draws to test anything: draw more or take coarser bins"
    statistic = float(((counts - expected) ** 2 / expected).sum())
    probability = float(stats.chi2.sf(statistic, len(expected) - 1))
    worst = int(((counts - expected) ** 2 / expected).argmax())
    assert probability > failure_rate, (
        f"chi-square {statistic:.1f} over {len(expected)} bins has probability {probability:.1e}; "
        f"worst bin: {counts[worst]:.0f} draws where {expected[worst]:.1f} were expected"
    )


def assert_uniform(v: Tensor, failure_rate: float = 1e-6) -> None:
    """Kolmogorov-Smirnov of independent values against the uniform distribution."""
    probability = float(stats.kstest(v.double().numpy(), "uniform").pvalue)
    assert probability > failure_rate, f"KS probability {probability:.1e}"
