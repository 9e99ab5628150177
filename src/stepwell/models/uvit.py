"""U-ViT: a vision transformer with a U-Net's long skips (Bao et al. 2023, "All are Worth Words").

Time, label and patches are all tokens of one sequence. Written from the paper; diffusers' UVit2DModel is
another network (aMUSEd's, of discrete codes).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepwell.core.tensors import PerExample
from stepwell.models.denoiser import Answer, Task, patches_across
from stepwell.models.dit import Block, patchify, sinusoids, unpatchify


@dataclass(frozen=True)
class Size:
    """A shape of U-ViT."""

    width: int
    depth: int
    """Blocks beside the one in the middle: the paper's layers less one."""
    heads: int
    patch: int = 2
    smooth: bool = True
    """A 3x3 convolution over the finished image, against seams between patches."""


SIZES = {
    "uvit-tiny": Size(128, 4, 4),
    "uvit-s": Size(512, 12, 8),
    "uvit-s-deep": Size(512, 16, 8),
    "uvit-m": Size(768, 16, 12, patch=4),
    "uvit-l": Size(1024, 20, 16),
    # The published configuration of H on latents has no convolution at the end (500,832,016 parameters).
    "uvit-h": Size(1152, 28, 16, smooth=False),
    # Kim et al. 2025, Table 9: H's width with depth 12. Section 6.2 says U-ViT and Table 5 says ADM; a
    # published U-ViT of this width has depth 28 (`uvit-h`). We build what Table 9 prints, otherwise as H.
    "uvit-imagenet": Size(1152, 12, 16, smooth=False),
}
"""The configurations of Bao et al. 2023, with the patch of the data set where its parameters are quoted."""


class UViT(nn.Module):
    """Tokens through blocks whose second half also sees what the first half saw."""

    def __init__(self, size: Size, task: Task, name: str = "uvit") -> None:
        super().__init__()
        self.name, self.size, self.task = name, size, task
        self.rows = patches_across(name, task.image_size, size.patch)
        width, pixels = size.width, size.patch**2
        self.tokens_before_patches = 2 if task.classes else 1
        count = self.rows**2 + self.tokens_before_patches
        self.embed_patches = nn.Linear(task.channels_in * pixels, width)
        self.embed_label = nn.Embedding(task.classes + 1, width) if task.classes else None
        self.position = nn.Parameter(torch.zeros(1, count, width))
        half = range(size.depth // 2)
        self.first = nn.ModuleList(Block(width, size.heads, task.dropout) for _ in half)
        self.middle = Block(width, size.heads, task.dropout)
        self.second = nn.ModuleList(Block(width, size.heads, task.dropout, skip=True) for _ in half)
        self.norm = nn.LayerNorm(width)
        self.predict = nn.Linear(width, task.channels_out * pixels)
        channels = task.channels_out
        self.smooth = nn.Conv2d(channels, channels, 3, padding=1) if size.smooth else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        """Truncated normal of deviation 0.02 for every matrix, zero for biases, as vision transformers do."""
        nn.init.trunc_normal_(self.position, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, sample: Tensor, timestep: PerExample, class_labels: PerExample | None = None) -> Answer:
        """Images [B, C, H, W], times [B] of any real value, labels [B] -> .sample [B, C', H, W]."""
        self.task.check(self.name, sample)
        tokens = self._tokens(sample, timestep, class_labels) + self.position
        seen: list[Tensor] = []
        for block in self.first:
            tokens = block(tokens)
            seen.append(tokens)
        tokens = self.middle(tokens)
        for block in self.second:
            # The last block of the first half is the partner of the first block of the second.
            tokens = block(tokens, seen.pop())
        patches = self.predict(self.norm(tokens))[:, self.tokens_before_patches :]
        return Answer(self.smooth(unpatchify(patches, self.size.patch, self.rows)))

    def _tokens(self, sample: Tensor, timestep: PerExample, labels: PerExample | None) -> Tensor:
        """[B, N, D]: time, then the label if there is one, then patches."""
        patches = self.embed_patches(patchify(sample, self.size.patch))
        # The token of time is the sinusoid itself, without a perceptron, as in all published U-ViTs.
        time = sinusoids(timestep.expand(len(sample)), self.size.width).to(patches.dtype)
        before = [time] if self.embed_label is None else [time, self.embed_label(labels)]
        return torch.cat([torch.stack(before, dim=1), patches], dim=1)


def network(name: str, task: Task) -> UViT:
    """The U-ViT of this name."""
    return UViT(SIZES[name], task, name)
