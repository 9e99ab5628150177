"""Samplers find what is left to learn: at least half of all draws, where uniform draws give a fifth."""

from __future__ import annotations

import pytest
from planted import Planted, share_of_draws

NEIGHBOURS = ((2, 3), (5, 6), (8, 9))


@pytest.mark.parametrize(
    ("method", "parameters", "bands"),
    [
        ("alignment", {}, (5, 6)),
        pytest.param("alignment", {"target": "simple"}, (2, 7), marks=pytest.mark.full),
        pytest.param("beta-policy", {"credit": "alignment"}, (5, 6), marks=pytest.mark.full),
    ],
    ids=["alignment", "alignment-apart", "beta-policy"],
)
def test_half_of_the_draws_go_where_something_is_left_to_learn(
    method: str, parameters: dict[str, str], bands: tuple[int, int]
) -> None:
    assert share_of_draws(Planted(bands), method, **parameters) >= 0.5


def test_uniform_draws_give_a_fifth() -> None:
    assert abs(share_of_draws(Planted((5, 6)), "uniform", steps=200) - 0.2) < 0.02


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bands", [*NEIGHBOURS, (2, 7)])
@pytest.mark.parametrize("method", ["alignment", "beta-policy"])
def test_in_every_one_of_ten_seeds(method: str, bands: tuple[int, int]) -> None:
    if method == "beta-policy" and bands == (2, 7):
        pytest.skip("one Beta has one peak")
    parameters = {"credit": "alignment"} if method == "beta-policy" else {}
    shares = [share_of_draws(Planted(bands, seed), method, **parameters) for seed in range(10)]
    assert min(shares) >= 0.5, shares
