"""Noise of a micro-batch: what is paired, what each example's noise is by itself, what an average gains."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from stepwell.core.noise import normal, opposite_neighbours
from stepwell.core.tick import Tick


def paired(u: Tensor, step: int = 0, width: int = 3) -> Tensor:
    return opposite_neighbours(normal(torch.zeros(len(u), width), Tick(step=step)), u)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8])
def test_neighbours_in_time_have_opposite_noise_and_an_odd_one_its_own(count: int) -> None:
    u = Tick(step=7).uniform("times", count)
    found, independent = paired(u), normal(torch.zeros(count, 3), Tick())
    order = u.sort().indices.tolist()
    for first, second in zip(order[::2], order[1::2], strict=False):
        assert torch.equal(found[first], independent[first])
        assert torch.equal(found[second], -found[first])
    if count % 2:
        assert torch.equal(found[order[-1]], independent[order[-1]])


def test_equal_times_are_paired_the_same_way_every_time() -> None:
    u = torch.full((6,), 0.5)
    assert torch.equal(paired(u), paired(u))
    assert torch.equal(paired(u)[1::2], -paired(u)[::2])


def test_the_noise_of_every_example_is_normal() -> None:
    """Fails by chance once in 10,000 runs of other seeds; these are fixed."""
    rows = [paired(Tick(step=step).uniform("times", 5), step) for step in range(2000)]
    each = torch.stack(rows)  # [steps, examples, width]
    for example in range(5):
        values = each[:, example].flatten()
        assert stats.kstest(values.numpy(), "norm").pvalue > 2e-5
        assert abs(float(values.mean())) < 4.3 / len(values) ** 0.5
        assert abs(float(values.var()) - 1) < 4.3 * (2 / len(values)) ** 0.5


def test_gradients_stay_unbiased_with_the_variance_that_algebra_says() -> None:
    """E (w x - e)^2 with x = m + s e, m 0 or 2: its gradient has a part that is odd in e, which pairs cancel.

    Fails by chance once in 10,000 runs of other seeds; these are fixed.
    """
    weight, sigma, count, steps = 0.3, 0.3, 4, 20_000
    m = torch.where(Tick(step=1).uniform("m", steps * count).reshape(steps, count) < 0.5, 0.0, 2.0)
    independent = normal(torch.zeros(steps, count), Tick())
    opposite = opposite_neighbours(independent.T, torch.arange(count).float()).T
    odd, even = 2 * weight * sigma - 1, (weight * sigma - 1) * sigma
    spreads = []
    for e in (independent, opposite):
        x = m + sigma * e
        gradient = (2 * (weight * x - e) * x).mean(1)
        away = float(gradient.mean()) - (2 * weight * (2 + sigma**2) - 2 * sigma)
        assert abs(away) < 4.3 * float(gradient.std()) / steps**0.5
        spreads.append(float(gradient.var()))
    left = 1 + (2 * even**2 - odd**2) / (4 * weight**2 + 2 * odd**2 + 2 * even**2)
    assert left < 0.8
    assert spreads[1] / spreads[0] == pytest.approx(left, rel=4.3 * (4 / steps) ** 0.5)
