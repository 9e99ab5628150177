"""U-ViT's arithmetic, piece by piece."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stepwell.models.denoiser import NetworkSpec
from stepwell.models.uvit import Block, Size, UViT, patchify, sinusoids, unpatchify

SIZE = Size(width=32, depth=4, heads=4)


def network(spec: NetworkSpec | None = None, seed: int = 0) -> UViT:
    """In float64, with weights ten times as large as they start, so that every effect is seen."""
    torch.manual_seed(seed)
    made = UViT(SIZE, spec or NetworkSpec(3, 8, classes=5)).double().eval()
    with torch.no_grad():
        for matrix in (parameter for parameter in made.parameters() if parameter.dim() == 2):
            matrix.mul_(10)
    return made


def batch(count: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 8, 8, generator=draws, dtype=torch.float64)
    return images, torch.linspace(0.5, 900, count, dtype=torch.float64), torch.arange(count) % 5


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_patches_go_there_and_back(patch: int) -> None:
    images = torch.randn(2, 3, 8, 12)
    tokens = patchify(images, patch)
    assert tokens.shape == (2, 8 * 12 // patch**2, 3 * patch**2)
    assert torch.equal(unpatchify(tokens, patch, 8 // patch), images)


def test_a_token_is_one_patch_row_by_row() -> None:
    images = torch.randn(2, 3, 4, 6)
    assert torch.equal(patchify(images, 2)[:, 4], images[:, :, 2:4, 2:4].flatten(1))


def test_embedding_patches_is_a_convolution_with_stride() -> None:
    images, made = batch()[0], network()
    embed = made.embed_patches
    kernel = embed.weight.unflatten(1, (3, 2, 2))
    expected = F.conv2d(images, kernel, embed.bias, stride=2).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embed(patchify(images, 2)), expected)


def test_sinusoids_of_whole_and_other_times() -> None:
    found = sinusoids(torch.tensor([0.0, 2.5, 999.0]), 8)
    for row, time in zip(found.tolist(), [0.0, 2.5, 999.0], strict=True):
        angles = [time * 10_000 ** (-k / 4) for k in range(4)]
        assert row == pytest.approx([math.cos(a) for a in angles] + [math.sin(a) for a in angles], abs=1e-4)
    assert torch.equal(sinusoids(torch.tensor([7]), 8), sinusoids(torch.tensor([7.0]), 8))


@pytest.mark.parametrize("skipped", [False, True])
def test_a_block_by_hand(skipped: bool) -> None:
    torch.manual_seed(0)
    width, heads, each = 12, 3, 4
    block = Block(width, heads, skip=skipped).double()
    for norm in (block.norm_attention, block.norm_perceptron):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    tokens, skip = torch.randn(2, 2, 5, width, dtype=torch.float64)

    def normal(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias

    x = tokens
    if block.join is not None:
        x = x @ block.join.weight[:, :width].T + skip @ block.join.weight[:, width:].T + block.join.bias
    y = normal(x, block.norm_attention)
    query, key, value = (y @ part.T for part in block.attention.query_key_value.weight.chunk(3))
    mixed = torch.zeros_like(x)
    for head in range(heads):
        own = slice(head * each, (head + 1) * each)
        scores = query[..., own] @ key[..., own].transpose(1, 2) / math.sqrt(each)
        shares = scores.exp() / scores.exp().sum(-1, keepdim=True)
        mixed[..., own] = shares @ value[..., own]
    x = x + mixed @ block.attention.project.weight.T + block.attention.project.bias
    wide = normal(x, block.norm_perceptron) @ block.perceptron.widen.weight.T + block.perceptron.widen.bias
    wide = wide * (1 + torch.erf(wide / math.sqrt(2))) / 2
    x = x + wide @ block.perceptron.narrow.weight.T + block.perceptron.narrow.bias
    torch.testing.assert_close(block(tokens, skip if skipped else None), x)


def test_the_whole_is_its_pieces_in_order() -> None:
    made, (images, times, labels) = network(), batch()
    patches = made.embed_patches(patchify(images, 2))
    time = sinusoids(times, 32).double()[:, None]
    label = made.embed_label(labels)[:, None]
    start = torch.cat([time, label, patches], 1) + made.position
    one = made.first[0](start)
    two = made.first[1](one)
    back = made.second[1](made.second[0](made.middle(two), two), one)
    expected = made.smooth(unpatchify(made.predict(made.norm(back))[:, 2:], 2, 4))
    torch.testing.assert_close(made(images, times, labels).sample, expected)


@pytest.mark.parametrize("pair", [0, 1])
def test_a_skip_reaches_its_partner_and_no_other(pair: int) -> None:
    made, (images, times, labels) = network(), batch()
    before = made(images, times, labels).sample
    carried: list[Tensor] = []
    made.first[pair].register_forward_hook(lambda *call: carried.append(call[-1]))
    received: list[Tensor] = []
    made.second[1 - pair].register_forward_hook(lambda block, given, told: received.append(given[1]))
    made(images, times, labels)
    assert received[0] is carried[0]
    with torch.no_grad():
        made.second[1 - pair].join.weight[:, 32:] = 0
    assert (made(images, times, labels).sample - before).abs().max() > 1e-3


def test_gradients_pass_through_the_skips_alone() -> None:
    made, (images, times, labels) = network(), batch()
    # The middle is cut out of the graph, so whatever reaches the first half came by a skip.
    made.middle.register_forward_hook(lambda block, given, told: told.detach())
    made(images, times, labels).sample.square().mean().backward()
    for block in made.first:
        assert block.attention.query_key_value.weight.grad.abs().max() > 0
    assert made.middle.perceptron.widen.weight.grad is None


def test_time_label_and_place_are_seen() -> None:
    made, (images, times, labels) = network(), batch()
    before = made(images, times, labels).sample

    def change(after: Tensor) -> float:
        return (after - before).flatten(1).abs().amax(1).min().item()

    assert change(made(images, times + 0.25, labels).sample) > 1e-4
    assert change(made(images, times, (labels + 1) % 5).sample) > 1e-4
    with torch.no_grad():
        made.position.zero_()
    assert change(made(images, times, labels).sample) > 1e-4


def test_examples_do_not_see_each_other() -> None:
    made, (images, times, labels) = network(), batch()
    order = torch.tensor([2, 0, 3, 1])
    whole = made(images, times, labels).sample
    torch.testing.assert_close(made(images[order], times[order], labels[order]).sample, whole[order])
    torch.testing.assert_close(made(images[:1], times[:1], labels[:1]).sample, whole[:1])


def test_one_time_stands_for_the_batch() -> None:
    made, (images, _, labels) = network(), batch()
    expected = made(images, torch.full((4,), 300.0), labels).sample
    assert torch.equal(made(images, torch.tensor(300.0), labels).sample, expected)


def test_weights_start_small_and_truncated() -> None:
    torch.manual_seed(0)
    made = UViT(Size(128, 4, 4), NetworkSpec(3, 8, classes=5))
    for weights in (made.position, made.embed_label.weight, made.middle.perceptron.widen.weight):
        assert weights.std().item() == pytest.approx(0.02, rel=0.1)
    assert not made.middle.perceptron.widen.bias.any()


def test_dropout_is_off_in_evaluation() -> None:
    made, (images, times, labels) = network(NetworkSpec(3, 8, classes=5, dropout=0.5)), batch()
    assert torch.equal(made(images, times, labels).sample, made(images, times, labels).sample)
    made.train()
    assert not torch.equal(made(images, times, labels).sample, made(images, times, labels).sample)
