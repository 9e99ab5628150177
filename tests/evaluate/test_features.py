"""The shipped features are what their documentation says, and see what a distance must see."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

import stepwell.evaluate
from stepwell.core.errors import Unsupported
from stepwell.evaluate.classifiers import DIMENSIONS, FASHION16_FILE, FashionFeatures, load_fashion16
from stepwell.evaluate.distances import Moments, frechet_distance
from stepwell.evaluate.kernel_distance import kernel_distance

LARGEST = 500_000


@pytest.fixture(scope="module")
def held_out():
    with np.load(files("stepwell.data") / "fashion16.npz") as stored:
        pixels = torch.from_numpy(stored["held_out_images"]).reshape(-1, 1, 16, 16)
        return pixels.float() / 127.5 - 1, torch.from_numpy(stored["held_out_labels"]).long()


def moments(x):
    return Moments().add(load_fashion16()(x))


def test_the_accuracy_is_the_documented_one(held_out):
    x, labels = held_out
    documented = float(re.search(r"([\d.]+) %", FashionFeatures.__doc__).group(1)) / 100
    found = float((load_fashion16().logits(x).argmax(1) == labels).double().mean())
    assert found >= documented - 0.005
    assert found == pytest.approx(documented, abs=0.005)


def test_the_file_is_small_and_the_network_is_float32():
    assert (files("stepwell.evaluate") / FASHION16_FILE).stat().st_size < LARGEST
    network = load_fashion16()
    assert 100_000 < sum(parameter.numel() for parameter in network.parameters()) < 120_000
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_features_are_a_function_of_the_image(held_out):
    x = held_out[0][:64]
    first = load_fashion16()(x)
    assert first.shape == (64, DIMENSIONS)
    assert torch.equal(first, load_fashion16()(x))
    one_by_one = torch.cat([load_fashion16()(image[None]) for image in x[:4]])
    torch.testing.assert_close(one_by_one, first[:4], rtol=1e-4, atol=1e-5)


def test_the_distance_grows_with_noise_and_sees_other_classes_and_mirror_images(held_out):
    x, labels = held_out
    one, two = moments(x[::2]), moments(x[1::2])
    floor = frechet_distance(one, two)
    noise = torch.randn(x[1::2].shape, generator=torch.Generator().manual_seed(0))
    worse = [
        frechet_distance(one, moments((x[1::2] + level * noise).clamp(-1, 1))) for level in (0.1, 0.2, 0.4)
    ]
    assert floor < worse[0] < worse[1] < worse[2]
    assert worse[0] > 2 * floor
    assert frechet_distance(one, moments(x[1::2].flip(3))) > 2 * floor
    assert frechet_distance(one, moments(x[labels < 5])) > 2 * floor


def test_the_kernel_distance_of_two_halves_is_near_zero(held_out):
    x = load_fashion16()(held_out[0])
    near = kernel_distance(x[::2], x[1::2], subsets=20)
    assert abs(near.mean) < 4 * near.standard_error
    boots = load_fashion16()(held_out[0][held_out[1] == 9])
    assert kernel_distance(x, boots, subsets=20).mean > 100 * near.standard_error


@pytest.mark.parametrize("shape", [(2, 3, 16, 16), (2, 1, 28, 28), (1, 16, 16), (2, 256)])
def test_other_images_are_refused(shape):
    with pytest.raises(Unsupported, match="16x16 grey"):
        load_fashion16()(torch.zeros(shape))


def test_nobody_calls_this_number_by_inceptions_name():
    for name in ("classifiers", "distances"):
        path = Path(stepwell.evaluate.__file__).parent / f"{name}.py"
        assert not re.search(r"\bFID\b|\bfid\b", path.read_text()), path
