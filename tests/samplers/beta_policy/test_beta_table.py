"""Tables of Beta densities: against the incomplete beta function, and draws against the tables."""

from __future__ import annotations

import pytest
import torch
from accelerator import DEVICE, accelerator
from cases import case
from odds import assert_follows_masses, assert_uniform
from torch import Tensor

import stepwell
from stepwell.core.density import Uniform, edges, rounded
from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.beta import LEAST_BINS, BetaTable
from stepwell.samplers.static import beta, beta_cdf

SHAPES = (0.3, 0.5, 0.974, 1.0, 2.5, 10.0, 30.0)
PAIRS = [case(a, b, quick=(i + j) % 3 == 0) for i, a in enumerate(SHAPES) for j, b in enumerate(SHAPES)]
TABLE = BetaTable(1000, Uniform())


def shapes(*pairs: tuple[float, float], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(pairs, dtype=dtype)


def exact(borders: Tensor, a: float, b: float) -> Tensor:
    """Masses between borders; from above in the upper half, where differences of the CDF lose digits."""
    low, high = beta_cdf(borders, a, b).diff(), -beta_cdf(1 - borders, b, a).diff()
    return torch.where(borders[1:] <= 0.5, low, high)


@pytest.mark.parametrize(
    ("a", "b"),
    [case(a, b, quick=(i + j) % 3 == 0) for i, a in enumerate(SHAPES) for j, b in enumerate(SHAPES)],
)
def test_masses_are_those_of_the_beta_distribution(a: float, b: float) -> None:
    expected = exact(TABLE.borders, a, b)
    found = TABLE.masses(shapes((a, b)))[0].double()
    counted = expected > 1e-9
    assert torch.allclose(found[counted], expected[counted], rtol=2e-4)
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("timesteps", [1, 2, 7, 300, 513, 4000])
def test_any_number_of_timesteps_has_a_good_table(timesteps: int) -> None:
    table = BetaTable(timesteps, Uniform())
    assert table.bins % timesteps == 0
    assert table.bins >= LEAST_BINS
    for a, b in ((0.3, 2.5), (12.0, 5.0)):
        expected = exact(table.borders, a, b)
        found = table.masses(shapes((a, b)))[0].double()
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-7)


def test_published_masses_of_a_policy_that_has_learned_nothing() -> None:
    found = BetaTable(1000, Uniform(), rounded=True).masses(shapes((0.9740869842, 0.9740869842)))[0]
    published = {
        0: 5.93915e-4,
        1: 1.13784e-3,
        100: 1.01137e-3,
        250: 9.92322e-4,
        500: 9.84969e-4,
        999: 5.93915e-4,
    }
    for timestep, mass in published.items():
        assert float(found[timestep]) == pytest.approx(mass, rel=1e-5)
    flat = BetaTable(1000, Uniform(), rounded=True).masses(shapes((1.0, 1.0)))[0]
    assert flat[[0, 500, 999]].tolist() == pytest.approx([5.00501e-4, 1.001001e-3, 5.00501e-4], rel=1e-5)


@pytest.mark.parametrize("timesteps", [1, 2, 9, 1000])
def test_rounding_is_that_of_the_static_samplers(timesteps: int) -> None:
    density = beta(stepwell.process("flow"), 0.6, 1.7).current
    expected = rounded(density, timesteps).shares
    table = BetaTable(timesteps, Uniform(), rounded=True)
    found = table.masses(shapes((0.6, 1.7)))[0].view(timesteps, -1).sum(1)
    assert torch.allclose(found.double(), expected, rtol=2e-3)


@pytest.mark.parametrize("rounding", [False, True])
@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_draws_follow_the_masses_of_their_rows(floor: float, rounding: bool) -> None:
    # Fails once in a million for each of six checks.
    table = BetaTable(500, Uniform(), floor, rounded=rounding)
    pairs = [(0.4, 0.9), (1.0, 1.0), (6.0, 20.0)]
    rows, each = shapes(*pairs), 20_000
    placed = table.from_uniform(rows.repeat_interleave(each, 0), Tick(step=4).uniform("draws", 3 * each))
    masses = table.masses(rows).view(3, 50, -1).sum(2)
    for row, u in enumerate(placed.u.split(each)):
        assert_follows_masses((u * 50).long(), masses[row])
        density = table.mean(rows[row : row + 1])
        assert_uniform(density.cdf(u.double()))


def test_a_draw_has_the_density_of_its_own_row() -> None:
    rows = 0.3 + 5 * Tick().uniform("shapes", 600).view(300, 2)
    for table in (TABLE, BetaTable(70, Uniform(), 0.2), BetaTable(1000, Uniform(), 0.1, rounded=True)):
        placed = table.from_uniform(rows, Tick(step=1).uniform("draws", 300))
        for row in range(0, 300, 37):
            height = table.mean(rows[row : row + 1]).pdf(placed.u[row : row + 1])
            assert float(placed.log_prob[row].exp()) == pytest.approx(float(height), rel=1e-4)
        assert torch.allclose(table.log_prob(rows, placed.inner), placed.log_prob, atol=1e-4)


def test_the_density_of_a_batch_is_the_mean_of_its_rows() -> None:
    rows, u = shapes((0.5, 2.0), (3.0, 1.0), (8.0, 8.0)), torch.linspace(0.01, 0.99, 50)
    each = torch.stack([TABLE.mean(row[None]).pdf(u) for row in rows])
    assert torch.allclose(TABLE.mean(rows).pdf(u), each.mean(0), rtol=1e-4)


def test_draws_of_a_rounding_table_are_the_timesteps_that_the_variable_rounds_to() -> None:
    table = BetaTable(1000, Uniform(), rounded=True)
    placed = table.from_uniform(shapes((0.5, 0.7)).expand(5000, 2), Tick().uniform("draws", 5000))
    timestep = (placed.u.double() * 1000).long()
    assert torch.equal(timestep, (placed.inner.double() * 999).round().long())
    assert {0, 999} <= set(timestep.tolist())


def test_the_largest_and_the_smallest_uniform_stay_in_unit_time() -> None:
    v = torch.tensor([2.0**-24, 1 - 2.0**-24])
    for pair in ((1e-5, 1e-5), (1e-5, 50.0), (1000.0, 1.0), (0.3, 0.3), (400.0, 400.0)):
        placed = TABLE.from_uniform(shapes(pair, pair), v)
        assert ((placed.u >= 0) & (placed.u < 1)).all()
        assert placed.log_prob.isfinite().all()


def test_a_floor_is_a_share_of_the_reference() -> None:
    reference = stepwell.process("edm").reference
    table = BetaTable(1000, reference, floor=0.25)
    plain = BetaTable(1000, reference).masses(shapes((2.0, 5.0)))[0].double()
    mixed = 0.75 * plain + 0.25 * reference.masses(edges(1000))
    assert torch.allclose(table.masses(shapes((2.0, 5.0)))[0].double(), mixed, rtol=1e-4, atol=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    table, inner = (
        BetaTable(1000, Uniform(), 0.1),
        torch.tensor([2e-4, 0.3, 0.9996, 0.5], dtype=torch.float64),
    )
    rows = shapes((0.4, 2.0), (3.0, 0.6), (0.9, 0.9), (20.0, 4.0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda of: table.log_prob(of, inner), rows)
    picks = torch.tensor([0, 1, 499, 500, 999])
    assert torch.autograd.gradcheck(lambda of: table.log_masses(of)[:, picks], rows)


def test_gradients_are_finite_at_the_ends_of_float32() -> None:
    rows = shapes((1e-5, 1e-5), (60.0, 0.3), (1e-5, 64.0)).requires_grad_()
    TABLE.masses(rows)[:, ::7].sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_shares_of_strata_add_up() -> None:
    borders = torch.tensor([0.0, 0.2004, 0.5, 1.0], dtype=torch.float64)
    shares = TABLE.shares(borders)
    assert torch.allclose(shares.sum(1), torch.ones(1000, dtype=torch.float64))
    assert shares[200].tolist() == pytest.approx([0.4, 0.6, 0])
    masses = TABLE.masses(shapes((1.0, 1.0))).double() @ shares
    assert masses[0].tolist() == pytest.approx([0.2004, 0.2996, 0.5], abs=1e-5)


def test_nothing_looks_at_a_value() -> None:
    table = BetaTable(100, Uniform(), 0.1)
    with accelerator():
        rows = torch.ones(5, 2, device=DEVICE)
        placed = table.from_uniform(rows, torch.zeros(5, device=DEVICE))
        assert placed.u.shape == placed.log_prob.shape == (5,)
        assert table.log_prob(rows, placed.inner).device == DEVICE
