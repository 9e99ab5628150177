"""Where a draw happens: every random stream is a pure function of its tick."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.random import stream_key, uniforms


@dataclass(frozen=True, slots=True)
class Tick:
    """One micro-batch of one rank at one optimizer step.

    Resuming needs the step and no generator state; ranks and micro-batches never share a stream.
    """

    seed: int = 0
    step: int = 0
    micro: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        require.count("step", self.step, least=0)
        require.count("micro", self.micro, least=0)
        require.count("rank", self.rank, least=0)
        require.count("world", self.world)
        if self.rank >= self.world:
            raise InvalidParameter(
                f"rank {self.rank} does not exist in a world of {self.world}: "
                f"ranks run from 0 to {self.world - 1}."
            )

    def key(self, stream: str) -> int:
        """The 64-bit key of a named stream at this tick."""
        return stream_key(self.seed, self.step, self.micro, self.rank, stream)

    def uniform(self, stream: str, count: int, device: torch.device | str = "cpu") -> Tensor:
        """`count` uniforms of a named stream, on any device without a copy."""
        return uniforms(self.key(stream), count, device)

    def generator(self, stream: str, device: torch.device | str = "cpu") -> torch.Generator:
        """A torch generator for bulk noise; its bits depend on the device, as torch's always do."""
        return torch.Generator(device).manual_seed(self.key(stream))

    def shared(self) -> Tick:
        """The tick that all ranks and micro-batches of this step have in common."""
        return replace(self, micro=0, rank=0, world=1)
