"""Special functions against scipy's."""

from __future__ import annotations

import pytest
import torch
from cases import case
from scipy import special

from stepwell.samplers.static import beta_cdf, log_beta

SHAPES = (1e-5, 0.1, 0.5, 0.9740869842, 1.0, 2.0, 20.0, 1000.0)
PAIRS = [case(a, b, quick=(i + j) % 3 == 0) for i, a in enumerate(SHAPES) for j, b in enumerate(SHAPES)]
INNER = torch.cat(
    [torch.logspace(-12, -2, 21), torch.linspace(0.02, 0.98, 97), 1 - torch.logspace(-2, -6, 9)]
)
GRID = torch.cat([torch.zeros(1), INNER.double(), torch.ones(1)]).double()


@pytest.mark.parametrize(
    ("a", "b"),
    [case(a, b, quick=(i + j) % 3 == 0) for i, a in enumerate(SHAPES) for j, b in enumerate(SHAPES)],
)
def test_beta_cdf_is_scipys(a, b):
    wanted = torch.tensor(special.betainc(a, b, GRID.numpy()))
    # Large shapes lose digits in the logarithm of the beta function, here as there.
    torch.testing.assert_close(beta_cdf(GRID, a, b), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("a", "b"), [(0.8, 1.0), (2.0, 5.0), (0.5, 0.5), (300.0, 7.0)])
def test_beta_cdf_mirrors(a, b):
    u = torch.linspace(0, 1, 129, dtype=torch.float64)
    torch.testing.assert_close(beta_cdf(u, a, b), 1 - beta_cdf(1 - u, b, a), rtol=0, atol=1e-13)


def test_beta_cdf_knows_its_simple_cases():
    u = torch.linspace(0, 1, 129, dtype=torch.float64)
    torch.testing.assert_close(beta_cdf(u, 1.0, 1.0), u)
    torch.testing.assert_close(beta_cdf(u, 0.8, 1.0), u**0.8)
    torch.testing.assert_close(beta_cdf(u, 1.0, 3.0), 1 - (1 - u) ** 3)


def test_beta_cdf_rises_from_zero_to_one():
    for a, b in ((0.01, 30.0), (0.8, 1.0), (30.0, 0.01)):
        values = beta_cdf(GRID.sort().values, a, b)
        assert values[0] == 0
        assert values[-1] == 1
        assert (values.diff() >= 0).all()


def test_beta_cdf_is_computed_in_float64():
    assert beta_cdf(torch.tensor([0.3]), 2.0, 3.0).dtype == torch.float64


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1.0, 1.0), (0.8, 30.0), (200.0, 300.0)])
def test_log_beta_is_scipys(a, b):
    assert log_beta(a, b) == pytest.approx(float(special.betaln(a, b)), rel=1e-12, abs=1e-12)
