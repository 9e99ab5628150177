"""DiT is diffusers' network with one embedder, and starts as its paper says."""

from __future__ import annotations

import torch
from diffusers import DiTTransformer2DModel

from stepwell.models.denoiser import NetworkSpec
from stepwell.models.dit import DiT, Size

SIZE = Size(width=32, depth=3, heads=4)


def network(spec: NetworkSpec) -> DiT:
    """With weights that are not zero anywhere."""
    torch.manual_seed(0)
    made = DiT(SIZE, spec).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return made


def test_it_is_diffusers_network_when_all_embedders_are_alike() -> None:
    made = network(NetworkSpec(3, 8, classes=5, learned_variance=True))
    theirs = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=3,
        out_channels=6,
        num_layers=3,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=5,
    ).eval()
    theirs.load_state_dict(made.blocks.state_dict(), strict=False)
    for block in theirs.transformer_blocks:
        block.norm1.emb.load_state_dict(made.embed.state_dict())
    x, time, labels = torch.randn(3, 3, 8, 8), torch.tensor([0, 500, 999]), torch.tensor([0, 4, 5])
    torch.testing.assert_close(made(x, time, labels).sample, theirs(x, time, labels).sample)
    extra = sum(p.numel() for p in theirs.parameters()) - sum(p.numel() for p in made.parameters())
    assert extra == 2 * sum(p.numel() for p in made.embed.parameters())


def test_it_hides_no_labels_by_itself() -> None:
    made = network(NetworkSpec(3, 8, classes=5)).train()
    x, time, labels = torch.randn(200, 3, 8, 8), torch.zeros(200), torch.zeros(200, dtype=torch.long)
    # Hiding one in ten, diffusers' own habit, would show in 200 draws but for a chance of 7e-10.
    assert torch.equal(made(x, time, labels).sample, made(x, time, labels).sample)


def test_time_and_label_are_seen() -> None:
    made = network(NetworkSpec(3, 8, classes=5))
    x, time, labels = torch.randn(2, 3, 8, 8), torch.tensor([10.0, 20.0]), torch.tensor([0, 1])
    before = made(x, time, labels).sample
    assert (made(x, time + 0.5, labels).sample - before).abs().max() > 1e-4
    assert (made(x, time, labels + 1).sample - before).abs().max() > 1e-4


def test_without_classes_it_needs_no_labels() -> None:
    made = network(NetworkSpec(3, 8))
    x = torch.randn(2, 3, 8, 8)
    assert torch.isfinite(made(x, torch.tensor([0.5, 700.25])).sample).all()


def test_it_starts_as_nothing() -> None:
    made = DiT(SIZE, NetworkSpec(3, 8))
    tokens = torch.randn(2, 16, 32)
    block = made.blocks.transformer_blocks[0]
    assert torch.equal(block(tokens, timestep=torch.randn(2, 32)), tokens)
    assert made(torch.randn(2, 3, 8, 8), torch.zeros(2)).sample.abs().max() == 0
