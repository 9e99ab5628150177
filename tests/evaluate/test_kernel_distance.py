"""The kernel distance is its double sum, and its standard error the spread over fresh sets."""

from __future__ import annotations

import math

import pytest
import torch
from cases import case

from stepwell.core.errors import InvalidParameter
from stepwell.evaluate.kernel_distance import kernel_distance


def sets(seed, count=400, dimensions=12):
    """Correlated features with an offset."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
    offset = 3 + torch.randn(dimensions, generator=generator, dtype=torch.float64)
    return torch.randn(count, dimensions, generator=generator, dtype=torch.float64) @ mix + offset


def by_double_sum(a, b):
    def kernel(x, y):
        return float((x @ y / len(x) + 1) ** 3)

    size = len(a)
    within = [
        sum(kernel(x[i], x[j]) for i in range(size) for j in range(size) if i != j) / (size * (size - 1))
        for x in (a, b)
    ]
    return sum(within) - 2 * sum(kernel(x, y) for x in a for y in b) / size**2


def test_the_kernel_distance_is_the_double_sum():
    # Subsets that leave out one of eight: the mean over many is the mean over all 64 of them.
    a, b = sets(12, 8, 3) / 3, sets(13, 8, 3) / 3
    rows = [[i for i in range(8) if i != left] for left in range(8)]
    direct = torch.tensor([[by_double_sum(a[one], b[two]) for two in rows] for one in rows])
    found = kernel_distance(a, b, size=7, subsets=4000)
    spread = float(direct.std()) / math.sqrt(4000)
    assert abs(found.mean - float(direct.mean())) < 5 * spread, "fails by chance once in 10^6"


def test_two_halves_of_one_set_are_near_and_other_sets_are_not():
    features = sets(14, 2000) / 4
    near = kernel_distance(features[:1000], features[1000:])
    far = kernel_distance(features[:1000], features[1000:] + 0.2)
    assert abs(near.mean) < 4 * near.standard_error
    assert far.mean > 10 * near.standard_error
    assert far.mean > 4 * far.standard_error


# Sizes of both sets, of a subset (None: the default), and how many subsets.
SIZES = {
    "equal": (60, 60, None, 12),
    "unequal": (40, 160, None, 12),
    "small subsets": (80, 80, 10, 20),
    "nearly all": (24, 24, 20, 6),
}
REPEATS = 600
CASES = [
    case(sizes, offset, quick=sizes == "nearly all" and offset != 0.15, id=f"{sizes}-{offset}")
    for sizes in SIZES
    for offset in (0.0, 0.15, 1.0)
]


@pytest.mark.parametrize(("sizes", "offset"), CASES)
def test_the_standard_error_is_the_spread_over_fresh_sets(sizes, offset):
    """At 0 only pairs make the spread, far from it single examples do, in between both.

    A distance's kurtosis is at most 5 here, so the spread of 600 is known to 4 %, and 15 % off is chance in
    one case of 4,000.
    """
    count_a, count_b, size, subsets = SIZES[sizes]
    generator = torch.Generator().manual_seed(15)
    found = []
    for _ in range(REPEATS):
        a, b = (torch.randn(count, 6, generator=generator) for count in (count_a, count_b))
        found.append(kernel_distance(a, b + offset, subsets=subsets, size=size))
    means, errors = (torch.tensor(values, dtype=torch.float64) for values in zip(*found, strict=True))
    told = float(errors.square().mean().sqrt())
    assert told == pytest.approx(float(means.std()), rel=0.15)
    assert offset or abs(float(means.mean())) < 5 * float(means.std()) / math.sqrt(REPEATS)


def test_the_kernel_distance_is_a_function_of_its_seed():
    a, b = sets(16), sets(17)
    assert kernel_distance(a, b, subsets=3) == kernel_distance(a, b, subsets=3)
    assert kernel_distance(a, b, subsets=3) != kernel_distance(a, b, subsets=3, seed=1)


def test_features_that_cannot_be_compared():
    good = sets(18)
    with pytest.raises(InvalidParameter, match="leaves some out"):
        kernel_distance(good, good, size=len(good))
    with pytest.raises(InvalidParameter, match="at least 4 examples"):
        kernel_distance(good[:3], good[:3], size=2)
    with pytest.raises(InvalidParameter, match="dimensions"):
        kernel_distance(good, good[:, :5])
