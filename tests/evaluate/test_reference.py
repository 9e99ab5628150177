"""Statistics of others are read, ours are kept in their format, another extractor's are refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from real_images import PatchMeans

from stepwell.data.source import BadData
from stepwell.evaluate.compare_sets import Reading, compare, side
from stepwell.evaluate.distances import Moments, frechet_distance
from stepwell.evaluate.extractors import Extractor, extractor
from stepwell.evaluate.feature_files import (
    BadStatistics,
    Statistics,
    has_statistics,
    read_statistics,
    write_statistics,
)
from stepwell.evaluate.image_sets import open_images


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Extractor:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return extractor(PatchMeans(), size=4)


def pixels(seed: int, count: int = 60) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)


def features(network: Extractor, images: np.ndarray) -> torch.Tensor:
    return network(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))


def quiet(name: str, done: int, total: int) -> None:
    pass


def of(network: Extractor, path: Path):
    return side(path, network, Reading(), quiet)


def test_statistics_of_the_field_give_the_distance_and_nothing_is_faked(
    network: Extractor, tmp_path: Path
) -> None:
    np.savez(tmp_path / "ours.npz", images=pixels(0))
    theirs = Moments().add(features(network, pixels(1)))
    np.savez_compressed(tmp_path / "theirs.npz", mu=theirs.mean.numpy(), sigma=theirs.covariance.numpy())
    assert has_statistics(tmp_path / "theirs.npz")
    assert not has_statistics(tmp_path / "ours.npz")
    found = compare(of(network, tmp_path / "ours.npz"), of(network, tmp_path / "theirs.npz"), network)
    expected = frechet_distance(Moments().add(features(network, pixels(0))), theirs)
    assert found.frechet == pytest.approx(expected, rel=1e-9)
    assert found.kernel is found.shares is None
    assert found.counts == (60, None)
    assert any("not available" in note and "theirs.npz has statistics only" in note for note in found.notes)
    assert any("does not name its extractor" in note for note in found.notes)


def test_a_reference_batch_with_both_uses_statistics_for_the_distance_and_images_for_the_rest(
    network: Extractor, tmp_path: Path
) -> None:
    # guided-diffusion's files: statistics of everything, some images, and spatial statistics beside.
    whole = Moments().add(features(network, pixels(2, 500)))
    np.savez(tmp_path / "batch.npz", arr_0=pixels(2, 500)[:50], mu=whole.mean.numpy(),
             sigma=whole.covariance.numpy(), mu_s=np.zeros(7), sigma_s=np.eye(7))  # fmt: skip
    np.savez(tmp_path / "ours.npz", images=pixels(0))
    found = compare(of(network, tmp_path / "ours.npz"), of(network, tmp_path / "batch.npz"), network)
    assert found.frechet == pytest.approx(
        frechet_distance(Moments().add(features(network, pixels(0))), whole), rel=1e-9
    )
    assert found.kernel is not None
    assert found.shares is not None


def test_our_files_are_the_fields_and_say_who_made_them(network: Extractor, tmp_path: Path) -> None:
    moments = Moments().add(features(network, pixels(3)))
    path = tmp_path / "kept.npz"
    write_statistics(path, Statistics(moments.mean, moments.covariance, 60, network.identity))
    with np.load(path, allow_pickle=False) as stored:
        assert np.array_equal(stored["mu"], moments.mean.numpy())
        assert np.array_equal(stored["sigma"], moments.covariance.numpy())
    read = read_statistics(path, network)
    assert (read.count, read.identity) == (60, network.identity)
    assert [file.name for file in tmp_path.glob(".*")] == []
    other = extractor(PatchMeans(), size=4, resize="legacy")
    with pytest.raises(BadStatistics, match=r"another extractor \(PatchMeans .* clean\).*legacy"):
        read_statistics(path, other)


def test_dimensions_of_another_extractor_are_refused(network: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "inception.npz"
    np.savez(path, mu=np.zeros(2048), sigma=np.zeros((2048, 2048)))
    with pytest.raises(BadStatistics, match=r"mu is \[2048\].*PatchMeans has 12 features"):
        read_statistics(path, network)
    np.savez(path, mu=np.full(12, np.nan), sigma=np.eye(12))
    with pytest.raises(BadStatistics, match="not finite"):
        read_statistics(path, network)


_EYE = np.eye(12)


@pytest.mark.parametrize(
    ("sigma", "said"),
    [
        (_EYE + np.eye(12, k=1), "not symmetric"),
        (-_EYE, "negative variances"),
        (_EYE - 2 * np.diag([1.0] + [0.0] * 11), "negative variances"),
        (np.ones((12, 12)) - _EYE, "negative variances"),
        (np.full((12, 12), np.inf), "not finite"),
    ],
)
def test_a_matrix_that_is_no_covariance_is_refused(
    network: Extractor, tmp_path: Path, sigma: np.ndarray, said: str
) -> None:
    np.savez(tmp_path / "made.npz", mu=np.zeros(12), sigma=sigma)
    with pytest.raises(BadStatistics, match=said):
        read_statistics(tmp_path / "made.npz", network)


@pytest.mark.parametrize("sigma", [np.zeros((12, 12)), np.ones((12, 12)), (1e-9 * _EYE).astype(np.float32)])
def test_singular_and_tiny_covariances_are_read(
    network: Extractor, tmp_path: Path, sigma: np.ndarray
) -> None:
    np.savez(tmp_path / "made.npz", mu=np.zeros(12), sigma=sigma)
    assert read_statistics(tmp_path / "made.npz", network).covariance.shape == (12, 12)


def test_a_set_with_itself_and_too_few_images(network: Extractor, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", images=pixels(4, 10))
    few = of(network, tmp_path / "few.npz")
    found = compare(few, few, network)
    assert found.frechet < 1e-6 * float(few.statistics.covariance.trace())
    assert found.shares == (1.0, 1.0)
    assert any("10 images are too few for 12 dimensions" in note for note in found.notes)


def test_cifar10s_batch_files_stand_for_its_training_images(network: Extractor, tmp_path: Path) -> None:
    drawn = np.random.default_rng(5)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {b"data": drawn.integers(0, 256, (8, 3072), dtype=np.uint8), b"labels": [0] * 8}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=2))
    assert open_images(tmp_path, 3).fetch([0, 39]).shape == (2, 3, 32, 32)
    assert len(open_images(tmp_path, 3)) == 40


def test_what_is_no_set_of_images_is_told(network: Extractor, tmp_path: Path) -> None:
    (tmp_path / "a.zip").touch()
    with pytest.raises(BadData, match=r"a file that is not [.]npz"):
        open_images(tmp_path / "a.zip", 3)
    with pytest.raises(BadData, match="not found"):
        open_images(tmp_path / "b", 3)
