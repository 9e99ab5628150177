"""Distances between sets of features, against other ways to compute them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from assets import asset
from real_images import cifar
from scipy.linalg import sqrtm

from stepwell.core.errors import InvalidParameter
from stepwell.evaluate import distances as frechet
from stepwell.evaluate.distances import Moments, frechet_distance
from stepwell.evaluate.extractors import extractor


def sets(seed, count=400, dimensions=12):
    """Correlated features with an offset."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
    offset = 3 + torch.randn(dimensions, generator=generator, dtype=torch.float64)
    return torch.randn(count, dimensions, generator=generator, dtype=torch.float64) @ mix + offset


def moments_of(mean, covariance, count=1000):
    """Moments that are exactly these."""
    made = Moments()
    made.count, made.mean, made._scatter = count, mean.double(), covariance.double() * (count - 1)
    return made


def by_sqrtm(a, b):
    first, second = a.covariance.numpy(), b.covariance.numpy()
    gap = (a.mean - b.mean).numpy()
    return gap @ gap + np.trace(first) + np.trace(second) - 2 * np.trace(sqrtm(first @ second)).real


@pytest.mark.parametrize("dimensions", [1, 3, 12, 64])
def test_the_distance_is_that_of_a_matrix_root(dimensions):
    a, b = (Moments().add(sets(seed, 400, dimensions)) for seed in (1, 2))
    assert frechet_distance(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-6)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-10)


def test_the_distance_of_independent_dimensions_is_known():
    first, second = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([4.0, 1.0, 0.0])
    a = moments_of(torch.tensor([1.0, 2.0, 3.0]), first.diag())
    b = moments_of(torch.tensor([1.0, 0.0, 4.0]), second.diag())
    assert frechet_distance(a, b) == pytest.approx(0 + 4 + 1 + 1 + 1 + 9, rel=1e-12)


def test_the_distance_of_commuting_covariances_is_known_in_any_basis():
    turn, _ = torch.linalg.qr(sets(3, 6, 6))
    first, second = torch.arange(1.0, 7).double(), torch.tensor([2.0, 0, 1, 0, 5, 3]).double()
    a = moments_of(torch.zeros(6), turn * first @ turn.T)
    b = moments_of(torch.zeros(6), turn * second @ turn.T)
    expected = float((first.sqrt() - second.sqrt()).square().sum())
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)


def test_a_set_is_at_no_distance_from_itself_even_if_it_is_small():
    for count in (400, 5):
        features = sets(4, count, 30)
        a, b = Moments().add(features), Moments().add(features.flip(0))
        assert frechet_distance(a, b) <= 1e-12 * float(a.covariance.trace())


def test_singular_covariances_that_share_nothing_are_exact():
    # Each set varies where the other does not: the roots have no overlap at all.
    left, right = sets(5, 100, 8), sets(6, 100, 8)
    left[:, 4:], right[:, :4] = 0, 0
    turn, _ = torch.linalg.qr(sets(7, 8, 8))
    a, b = Moments().add(left @ turn), Moments().add(right @ turn)
    gap = float((a.mean - b.mean).square().sum())
    expected = gap + float(a.covariance.trace() + b.covariance.trace())
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-10)


def test_moments_do_not_depend_on_batches_or_their_order():
    # Far from the origin, where sums of squares would lose everything.
    features = sets(8, 997) + 1e4
    whole = Moments().add(features)
    torch.testing.assert_close(whole.mean, features.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(whole.covariance, torch.cov(features.T), rtol=1e-9, atol=1e-9)
    order = torch.randperm(997, generator=torch.Generator().manual_seed(0))
    for size in (1, 2, 100, 500):
        streamed, shuffled = Moments(), Moments()
        for start in range(0, 997, size):
            streamed.add(features[start : start + size])
            shuffled.add(features[order[start : start + size]])
        for other in (streamed, shuffled):
            assert other.count == 997
            torch.testing.assert_close(other.mean, whole.mean, rtol=1e-12, atol=0)
            torch.testing.assert_close(other.covariance, whole.covariance, rtol=1e-10, atol=1e-10)


def test_merged_moments_are_those_of_both():
    features = sets(9)
    left, right = Moments().add(features[:100]), Moments().add(features[100:])
    kept = right.mean.clone()
    both = Moments().merge(left).merge(right).merge(Moments())
    torch.testing.assert_close(both.covariance, torch.cov(features.T), rtol=1e-11, atol=1e-11)
    assert both.count == len(features)
    assert left.count == 100
    assert torch.equal(right.mean, kept)


def test_too_few_samples_are_told():
    assert Moments().add(sets(10, 12, 12)).too_few
    assert not Moments().add(sets(10, 13, 12)).too_few


def test_moments_take_any_float_and_keep_float64():
    features = sets(11, 50).bfloat16()
    a, b = Moments().add(features), Moments().add(features.double())
    assert a.covariance.dtype == torch.float64
    assert torch.equal(a.covariance, b.covariance)


def test_bad_features_say_what_is_wrong():
    good = sets(18)
    with pytest.raises(InvalidParameter, match="dimensions"):
        frechet_distance(Moments().add(good), Moments().add(good[:, :5]))
    with pytest.raises(InvalidParameter, match="at least 2 samples"):
        frechet_distance(Moments(), Moments().add(good))
    with pytest.raises(InvalidParameter, match="finite"):
        Moments().add(good / 0)
    with pytest.raises(InvalidParameter, match=r"\[B, D\]"):
        Moments().add(good[0])


def spread(seed, count, dimensions, decades):
    """Features whose covariance has eigenvalues over so many powers of ten, in a random basis."""
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64))
    scales = torch.logspace(0, -decades / 2, dimensions, dtype=torch.float64)
    return torch.randn(count, dimensions, generator=generator, dtype=torch.float64) * scales @ turn


def exact_overlap(a, b):
    """By the longer way: singular values of factors, which no root of rounding enters."""
    return float(torch.linalg.svdvals(frechet._factor(a).T @ frechet._factor(b)).sum())


@pytest.mark.parametrize("decades", [0, 4, 8, 12])
@pytest.mark.parametrize("dimensions", [40, 300])
def test_eigenvalues_and_singular_values_agree(decades, dimensions):
    a, b = (Moments().add(spread(seed, 1000, dimensions, decades)) for seed in (20, 21))
    exact = exact_overlap(a.covariance, b.covariance)
    total = float(a.covariance.trace() + b.covariance.trace())
    expected = float((a.mean - b.mean).square().sum()) + total - 2 * exact
    assert frechet._overlap_by_eigenvalues(a.covariance, b.covariance) is not None
    assert abs(frechet_distance(a, b) - expected) < 1e-11 * total
    assert frechet_distance(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-6, abs=1e-9 * total)


def test_fewer_samples_than_dimensions_take_the_exact_way():
    a, b = Moments().add(sets(22, 20, 50)), Moments().add(sets(23, 30, 50))
    assert a.too_few
    assert frechet._overlap_by_eigenvalues(a.covariance, b.covariance) is None
    overlap = exact_overlap(a.covariance, b.covariance)
    gap = float((a.mean - b.mean).square().sum())
    expected = gap + float(a.covariance.trace() + b.covariance.trace()) - 2 * overlap
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-12)


def test_nearly_singular_covariances_are_exact_too():
    # More samples than dimensions, but one dimension is a copy of another but for rounding.
    features = sets(26, 100, 10)
    features[:, 9] = features[:, 8] * (1 + 1e-15)
    a, b = Moments().add(features), Moments().add(sets(27, 100, 10))
    for one, two in ((a, b), (b, a)):
        assert frechet._overlap_by_eigenvalues(one.covariance, two.covariance) is None
        overlap = exact_overlap(one.covariance, two.covariance)
        gap = float((a.mean - b.mean).square().sum())
        expected = gap + float(a.covariance.trace() + b.covariance.trace()) - 2 * overlap
        assert frechet_distance(one, two) == pytest.approx(expected, rel=1e-12)


def test_the_lower_half_of_a_congruence_is_the_product(monkeypatch):
    monkeypatch.setattr(frechet, "_BLOCK", 7)
    lower = torch.linalg.cholesky(Moments().add(sets(24, 100, 30)).covariance)
    symmetric = Moments().add(sets(25, 100, 30)).covariance
    found = frechet._congruent(lower, symmetric)
    torch.testing.assert_close(found.tril(), (lower.T @ symmetric @ lower).tril())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_distance_is_torchmetrics_with_the_same_network():
    image = pytest.importorskip("torchmetrics.image.fid", reason="pip install --target DIR torchmetrics")
    network = extractor("resnet20-cifar10", asset("resnet20_cifar10.safetensors"))

    class Wrapped(torch.nn.Module):
        num_features = 64

        def forward(self, images):
            return network(images)

    pixels, _ = cifar(600)
    theirs = image.FrechetInceptionDistance(feature=Wrapped(), input_img_size=(3, 32, 32)).set_dtype(
        torch.float64
    )
    ours = Moments(), Moments()
    for part in range(2):
        for batch in pixels[part * 300 : part * 300 + 300].split(100):
            theirs.update(batch, real=part == 0)
            ours[part].add(network(batch))
    assert frechet_distance(*ours) == pytest.approx(float(theirs.compute()), rel=1e-5)
