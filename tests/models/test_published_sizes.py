"""Parameters at full size equal the published ones; the meta device holds no numbers."""

from __future__ import annotations

import pytest
import torch

from stepwell.models.denoiser import Denoiser
from stepwell.models.registry import build_model

LATENTS = {"channels": 4, "image_size": 32, "classes": 1000}


def parameters(network: Denoiser) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def on_paper(name: str, **task: int | float | bool) -> Denoiser:
    with torch.device("meta"):
        return build_model(name, **task)


def test_ddpm_to_the_last_parameter() -> None:
    # Ho et al. 2020 print 35.7 million.
    assert parameters(on_paper("ddpm-cifar10", channels=3, image_size=32, dropout=0.1)) == 35_746_307


def test_ldm() -> None:
    # Rombach et al. 2022 print 274 M for CelebA-HQ.
    count = parameters(on_paper("ldm-celebahq", channels=3, image_size=64))
    assert round(count / 1e6) == 274


@pytest.mark.parametrize(
    ("name", "size", "label", "published"),
    [("adm-imagenet64", 64, 768, 296), ("adm-imagenet256", 256, 1024, 554)],
)
def test_adm_without_our_label_of_no_class(name: str, size: int, label: int, published: int) -> None:
    # Dhariwal and Nichol 2021: ADM has 1,000 labels and learns the variance.
    count = (
        parameters(on_paper(name, channels=3, image_size=size, classes=1000, learned_variance=True)) - label
    )
    assert round(count / 1e6) == published


@pytest.mark.parametrize(
    ("name", "published", "task"),
    [
        ("uvit-s", 44, {"channels": 3, "image_size": 32}),
        ("uvit-s", 44, {"channels": 3, "image_size": 32, "classes": 10}),
        ("uvit-s-deep", 58, {"channels": 3, "image_size": 64}),
        ("uvit-m", 131, {"channels": 3, "image_size": 64, "classes": 1000}),
        ("uvit-l", 287, LATENTS),
        ("uvit-h", 501, LATENTS),
    ],
)
def test_uvit(name: str, published: int, task: dict[str, int]) -> None:
    # Bao et al. 2023, their table of configurations.
    assert round(parameters(on_paper(name, **task)) / 1e6) == published


def test_uvit_h_to_the_last_parameter() -> None:
    # Counted by others on the published weights, with 1,000 classes and the label of no class.
    assert parameters(on_paper("uvit-h", **LATENTS)) == 500_832_016


@pytest.mark.parametrize(
    ("name", "published"), [("dit-s-2", 33), ("dit-b-2", 130), ("dit-l-2", 458), ("dit-xl-2", 675)]
)
def test_dit(name: str, published: int) -> None:
    # Peebles and Xie 2023: with 1,000 classes, the label of no class and a learned variance.
    assert round(parameters(on_paper(name, **LATENTS, learned_variance=True)) / 1e6) == published


def test_dit_xl_to_the_last_parameter() -> None:
    # Their code prints 675,129,632: it also counts the fixed positions, 256 tokens of 1,152.
    network = on_paper("dit-xl-2", **LATENTS, learned_variance=True)
    assert parameters(network) + 256 * 1152 == 675_129_632


def test_the_papers_uvit_has_one_middle_block_and_six_skips() -> None:
    # Kim et al. 2025, Table 9, by hand: 13 blocks, 6 joins, 1,001 labels, 258 positions, patches in and out.
    d = 1152
    block = 3 * d * d + (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d) + 4 * d
    joins, tokens = 6 * (2 * d * d + d), (1001 + 258) * d
    ends = (16 * d + d) + 2 * d + (16 * d + 16)
    assert parameters(on_paper("uvit-imagenet", **LATENTS)) == 13 * block + joins + tokens + ends


@pytest.mark.full
def test_the_35_million_learn() -> None:
    """One real forward and backward at full size: every parameter that can move gets a gradient."""
    torch.manual_seed(0)
    network = build_model("ddpm-cifar10", channels=3, image_size=32, dropout=0.1)
    # Blocks start as the identity: only with another last layer do gradients reach them.
    torch.nn.init.normal_(network.network.conv_out.weight, std=0.1)
    output = network(torch.randn(1, 3, 32, 32), torch.tensor([500]))
    assert output.shape == (1, 3, 32, 32)
    output.square().mean().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())
    moved = [block.conv2.weight.grad.abs().max() > 0 for block in network.network.mid_block.resnets]
    assert moved == [True, True]
    assert network.network.conv_in.weight.grad.abs().max() > 0
