"""Tables over time: a few draws are looked up by Python's numbers, many by torch, and both are the same."""

from __future__ import annotations

import pytest
import torch

from stepwell.core.density import _LISTED, Table, not_below
from stepwell.core.tensors import FEW
from stepwell.core.tick import uniforms


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [1, 7, 64, _LISTED])
def test_few_draws_are_those_of_many(bins: int, dtype: torch.dtype) -> None:
    # Uneven borders and masses over six orders of magnitude; one bin is never drawn.
    borders = torch.cat([torch.zeros(1), uniforms(5, bins - 1).sort().values, torch.ones(1)]).double()
    masses = (14 * uniforms(6, bins).double()).exp()
    masses[bins // 2] *= bins == 1
    table = Table(not_below(borders, torch.float32), masses)
    v = uniforms(7, 4096).to(dtype)
    many = table.drawn(v)
    few = [table.drawn(part) for part in v.split(FEW)]
    for number, values in enumerate(many):
        together = torch.cat([pair[number] for pair in few])
        assert together.dtype == dtype
        torch.testing.assert_close(together, values, rtol=0 if number else 4 * torch.finfo(dtype).eps, atol=0)
    u = torch.cat([pair[0] for pair in few])
    assert torch.equal(table.bin_of(u), table.bin_of(many[0])), "a draw stays in its bin"


def test_no_draws_at_all() -> None:
    u, heights = Table(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 3.0])).drawn(torch.zeros(0))
    assert u.shape == heights.shape == (0,)
    assert u.dtype == heights.dtype == torch.float32
