"""DiT: a transformer over patches, conditioned by adaptive normalisation (Peebles and Xie 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import DiTTransformer2DModel
from diffusers.models.embeddings import CombinedTimestepLabelEmbeddings
from torch import Tensor, nn

from stepwell.core.tensors import PerExample
from stepwell.models.denoiser import NetworkOutput, NetworkSpec, patches_across


@dataclass(frozen=True)
class Size:
    """A shape of DiT."""

    width: int
    depth: int
    heads: int
    patch: int = 2


SIZES = {
    "dit-s-2": Size(384, 12, 6),
    "dit-b-2": Size(768, 12, 12),
    "dit-l-2": Size(1024, 24, 16),
    "dit-xl-2": Size(1152, 28, 16),
}
"""The configurations of Peebles and Xie 2023."""


class _Embedded(nn.Module):
    """Replaces a block's embedder: its timestep is the embedding already."""

    def forward(self, timestep: Tensor, class_labels: None, hidden_dtype: torch.dtype) -> Tensor:
        return timestep.to(hidden_dtype)


class DiT(nn.Module):
    """diffusers' DiT blocks behind one embedder; without classes, all images share one label."""

    def __init__(self, size: Size, spec: NetworkSpec, name: str = "dit") -> None:
        super().__init__()
        self.name, self.spec = name, spec
        patches_across(name, spec.image_size, size.patch)
        self.embed = CombinedTimestepLabelEmbeddings(spec.classes, size.width)
        # The table keeps its row for no class. The denoiser drops labels: two dropouts would add up.
        self.embed.class_embedder.dropout_prob = 0.0
        self.blocks = DiTTransformer2DModel(
            num_attention_heads=size.heads,
            attention_head_dim=size.width // size.heads,
            in_channels=spec.channels_in,
            out_channels=spec.channels_out,
            num_layers=size.depth,
            dropout=spec.dropout,
            sample_size=spec.image_size,
            patch_size=size.patch,
            num_embeds_ada_norm=0,
        )
        for block in self.blocks.transformer_blocks:
            block.norm1.emb = _Embedded()
        self._initialise()

    def enable_gradient_checkpointing(self) -> None:
        """Compute the blocks again in the backward pass instead of keeping their activations."""
        self.blocks.enable_gradient_checkpointing()

    def _initialise(self) -> None:
        """adaLN-Zero: every block starts as the identity and the output at 0, which diffusers leaves out."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embed.class_embedder.embedding_table.weight, std=0.02)
        nn.init.normal_(self.embed.timestep_embedder.linear_1.weight, std=0.02)
        nn.init.normal_(self.embed.timestep_embedder.linear_2.weight, std=0.02)
        zero = [block.norm1.linear for block in self.blocks.transformer_blocks]
        for layer in [*zero, self.blocks.proj_out_1, self.blocks.proj_out_2]:
            nn.init.zeros_(layer.weight)

    def forward(
        self, sample: Tensor, timestep: PerExample, class_labels: PerExample | None = None
    ) -> NetworkOutput:
        """Images [B, C, H, W], times [B] of any real value, labels [B] -> .sample [B, C', H, W]."""
        self.spec.check(self.name, sample)
        count = len(sample)
        if class_labels is None:
            class_labels = torch.zeros(count, dtype=torch.long, device=sample.device)
        embedding = self.embed(timestep.expand(count), class_labels, hidden_dtype=sample.dtype)
        return NetworkOutput(self.blocks(sample, timestep=embedding).sample)


def network(name: str, spec: NetworkSpec) -> DiT:
    """The DiT of this name."""
    return DiT(SIZES[name], spec, name)
