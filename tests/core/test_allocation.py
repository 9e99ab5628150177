"""What draws leave of the variance, against hand-computed values, a search and sampled gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from stepwell.core.allocation import neyman_masses, variance_left

SHARES = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
VARIANCES = torch.tensor([4.0, 25.0, 1.0], dtype=torch.float64)


def test_values_worked_out_by_hand() -> None:
    # q s is 1, 1 and 0.3: 1 / 2.3 of the draws in each of the first two; sum q v is 2 + 5 + 0.3.
    best = neyman_masses(VARIANCES, SHARES)
    torch.testing.assert_close(best, torch.tensor([1, 1, 0.3], dtype=torch.float64) / 2.3)
    assert float(variance_left(VARIANCES, best, SHARES)) == pytest.approx(2.3**2 / 7.3)
    assert float(variance_left(VARIANCES, SHARES, SHARES)) == pytest.approx(1)
    equal = torch.full((3,), 1 / 3, dtype=torch.float64)
    # 3 (0.25 x 4 + 0.04 x 25 + 0.09) / 7.3
    assert float(variance_left(VARIANCES, equal, SHARES)) == pytest.approx(6.27 / 7.3)
    floored = neyman_masses(VARIANCES, SHARES, 0.2)
    torch.testing.assert_close(floored, 0.8 * best + 0.2 * SHARES)


def test_no_masses_leave_less_than_neymans() -> None:
    def left(logits: np.ndarray) -> float:
        return float(variance_left(VARIANCES, torch.tensor(logits).softmax(0), SHARES))

    found = minimize(left, np.zeros(3), tol=1e-12)
    assert left(neyman_masses(VARIANCES, SHARES).log().numpy()) <= found.fun + 1e-9
    np.testing.assert_allclose(
        torch.tensor(found.x).softmax(0), neyman_masses(VARIANCES, SHARES).numpy(), atol=1e-3
    )


@pytest.mark.parametrize("masses", [[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
def test_corrected_draws_have_the_variance_that_is_told(masses: list[float]) -> None:
    """A million gradients of mean 0, so that nothing lies between strata."""
    generator = np.random.default_rng(0)

    def variance(p: Tensor) -> float:
        drawn = generator.choice(3, size=1_000_000, p=p.numpy())
        gradients = generator.normal(size=drawn.shape) * VARIANCES.sqrt().numpy()[drawn]
        return float(np.var(gradients * (SHARES / p).numpy()[drawn]))

    draws = torch.tensor(masses, dtype=torch.float64)
    # Each variance is known to 0.5 % at most (kurtosis under 25): 3 % fail less than once in 10 000.
    assert variance(draws) / variance(SHARES) == pytest.approx(
        float(variance_left(VARIANCES, draws, SHARES)), rel=0.03
    )


def test_a_stratum_without_noise_needs_no_draws_and_one_with_noise_does() -> None:
    variances = torch.tensor([1.0, 0.0])
    shares = torch.tensor([0.5, 0.5])
    assert float(variance_left(variances, neyman_masses(variances, shares), shares)) == pytest.approx(0.5)
    assert float(variance_left(variances, torch.tensor([0.0, 1.0]), shares)) == float("inf")
