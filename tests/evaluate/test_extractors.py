"""Extractors turn uint8 images into features, and know what they are called."""

from __future__ import annotations

import pytest
import torch
from assets import asset
from real_images import PatchMeans, cifar
from safetensors.torch import save_file
from torch import nn

from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.evaluate.classifiers import ResNet20, load_fashion16, load_resnet20, resnet20_shapes
from stepwell.evaluate.extractors import extractor


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_the_embedded_network_sees_what_it_always_saw() -> None:
    made = extractor("fashion16")
    images = noise(3, 1, 16, 16)
    assert torch.equal(made(images), load_fashion16()(images.float() / 127.5 - 1))
    assert made.title == "Fréchet distance on fashion16 features (not FID)"
    with pytest.raises(Unsupported, match="1 channel, and these have 3"):
        made(noise(2, 3, 16, 16))
    with pytest.raises(InvalidParameter, match="ships with its weights"):
        extractor("fashion16", "file.pth")


def test_resnet20_names_the_classes_as_its_authors_say() -> None:
    images, labels = cifar(300)
    made = extractor("resnet20-cifar10", asset("resnet20_cifar10.safetensors"))
    network = made.network
    assert isinstance(network, ResNet20)
    right = float((network.linear(made(images)).argmax(1) == labels).double().mean())
    # 91.73 % published; below 85 % of 300 by chance once in 10,000 times.
    assert right > 0.85
    assert made(images[:5]).shape == (5, made.dimensions) == (5, 64)


def test_a_shortcut_keeps_every_other_pixel_and_adds_channels_of_zeros() -> None:
    # With convolutions of 0 only the shortcuts are left: 16 channels in the middle of 64.
    stored = {name: torch.zeros(shape) for name, shape in resnet20_shapes().items()}
    stored |= {name: torch.ones(shape) for name, shape in resnet20_shapes().items() if "running_var" in name}
    stored["bn1.bias"] = torch.arange(16.0)
    features = load_resnet20(stored)(torch.zeros(1, 3, 32, 32))[0]
    assert torch.equal(features[24:40], torch.arange(16.0))
    assert int((features != 0).sum()) == 15


def test_a_module_of_ones_own_is_an_extractor() -> None:
    made = extractor(PatchMeans(), size=8)
    assert (made.dimensions, made.size, made.name) == (12, 8, "PatchMeans")
    images = noise(4, 3, 8, 8)
    expected = PatchMeans()(images.float() / 127.5 - 1)
    torch.testing.assert_close(made(images), expected)
    assert made(noise(2, 3, 20, 30)).shape == (2, 12)
    grey = noise(2, 1, 8, 8)
    assert torch.equal(made(grey), made(grey.expand(-1, 3, -1, -1)))
    assert "not FID" in made.title
    with pytest.raises(InvalidParameter, match="size="):
        extractor(PatchMeans())
    with pytest.raises(InvalidParameter, match=r"\[B, D\]"):
        extractor(nn.Identity(), size=8)


def test_the_identity_is_the_network_its_weights_and_the_resizing(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    stored = {name: torch.zeros(shape) for name, shape in resnet20_shapes().items()}
    save_file(stored, path)
    same = [extractor("resnet20-cifar10", path).identity for _ in range(2)]
    other = extractor("resnet20-cifar10", path, resize="legacy").identity
    save_file(stored | {"bn1.bias": torch.ones(16)}, path)
    changed = extractor("resnet20-cifar10", path).identity
    assert same[0] == same[1]
    assert len({same[0], other, changed}) == 3
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(12, 3)) for _ in range(2)]
    assert len({extractor(network, size=2).identity for network in networks}) == 2


def test_features_do_not_depend_on_who_else_is_in_the_batch(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    generator = torch.Generator().manual_seed(1)
    shapes = resnet20_shapes().items()
    save_file({name: torch.rand(shape, generator=generator) * 0.1 + 0.01 for name, shape in shapes}, path)
    made, images = extractor("resnet20-cifar10", path), noise(9, 3, 40, 40)
    whole = made(images)
    parts = torch.cat([made(part) for part in images.split(2)])
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_bad_words_and_bad_images_are_told() -> None:
    with pytest.raises(UnknownName, match=r"'incepton'.*Did you mean 'inception'"):
        extractor("incepton")
    with pytest.raises(UnknownName, match="resizing"):
        extractor("fashion16", resize="bicubic")
    with pytest.raises(InvalidParameter, match="uint8"):
        extractor("fashion16")(torch.zeros(1, 1, 16, 16))
