"""Precision and recall on sets whose answer is known."""

from __future__ import annotations

import pytest
import torch

from stepwell.core.errors import InvalidParameter
from stepwell.evaluate import distances as module
from stepwell.evaluate.distances import precision_recall


def cloud(seed: int, count: int, dimensions: int = 3) -> torch.Tensor:
    return torch.randn(count, dimensions, generator=torch.Generator().manual_seed(seed))


def by_definition(generated: torch.Tensor, real: torch.Tensor, k: int) -> tuple[float, float]:
    def share(points: torch.Tensor, centres: torch.Tensor) -> float:
        radii = torch.cdist(centres, centres).sort(1).values[:, k]
        return float((torch.cdist(points, centres) <= radii).any(1).double().mean())

    a, b = generated.double(), real.double()
    return share(a, b), share(b, a)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_tiles_give_what_the_whole_matrix_gives(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TILE", 7)
    a, b = cloud(0, 60), cloud(1, 45) * 1.5 + 0.7
    assert precision_recall(a, b, k=k) == pytest.approx(by_definition(a, b, k))
    # Also far away from the origin, where squares alone would lose the differences.
    assert precision_recall(a + 1e4, b + 1e4, k=k) == pytest.approx(by_definition(a + 1e4, b + 1e4, k))


def test_a_set_covers_itself_and_sets_far_apart_share_nothing() -> None:
    a = cloud(2, 50)
    assert precision_recall(a, a.flip(0)) == (1.0, 1.0)
    assert precision_recall(a, a + 1000) == (0.0, 0.0)


def test_a_model_that_lost_a_mode_is_precise_and_recalls_the_other_mode_only() -> None:
    near, far = cloud(3, 40), cloud(4, 40) + 100
    precision, recall = precision_recall(near, torch.cat([near, far]))
    assert precision == 1.0
    assert recall == 0.5
    precision, recall = precision_recall(torch.cat([near, far]), near)
    assert (precision, recall) == (0.5, 1.0)


def test_on_a_line_the_balls_are_known() -> None:
    # Points 0, 1, ..., 9 with k = 1 have radius 1: the region is [-1, 10].
    real = torch.arange(10.0)[:, None]
    generated = torch.tensor([[-1.5], [-1.0], [4.3], [10.0], [10.5], [50.0]])
    assert precision_recall(generated, real, k=1).precision == 3 / 6


def test_too_few_features_and_other_dimensions_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="more than 3 rows"):
        precision_recall(cloud(5, 3), cloud(6, 10))
    with pytest.raises(InvalidParameter, match="dimensions"):
        precision_recall(cloud(5, 10, 3), cloud(6, 10, 4))
