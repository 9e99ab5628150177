"""The ends of a half-open range in any dtype, against torch's own rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.density import limits, not_below


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@given(ends=st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)).filter(lambda ends: ends[0] != ends[1]))
def test_limits_are_the_numbers_of_the_dtype_inside(dtype: torch.dtype, ends: tuple[float, float]) -> None:
    low, high = sorted(ends)
    rounded = not_below(torch.tensor([low, high], dtype=torch.float64), dtype)
    below = torch.nextafter(rounded[1], torch.zeros((), dtype=dtype))
    assert limits(low, high, dtype) == (float(rounded[0]), float(below))
    assert limits(0.0, high, dtype)[0] == 0.0
    assert limits(0.0, 1.0, dtype)[1] == 1 - torch.finfo(dtype).eps / 2


def test_the_first_call_may_come_from_a_device_or_a_trace() -> None:
    """The conformance suite found it by the order of its tests: a cache was filled with tensors' values."""
    limits.cache_clear()
    with torch.device("meta"):
        assert limits(0.25, 0.75, torch.float32)[0] == 0.25
