"""Where random numbers come from: uniforms as a function of seed, step, micro-batch and rank.

torch's generators are not enough for timesteps: their bits differ from device to device, the CPU one
keeps 32 bits of its seed, and drawing on the host means a copy to the device in every step. Hashing a
counter needs neither state nor copies and gives the same bits everywhere. The hash is SplitMix64 (Steele et
al. 2014), as in java.util.SplittableRandom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import few

_BITS = 23
"""(k + 1/2) / 2^23 is exact in float32 and never 0 or 1, so every inverse CDF stays finite."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_STEP = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def stream_key(*parts: int | str) -> int:
    """A 64-bit key (signed, as torch's int64) from any parts; stable over processes and versions."""
    digest = blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


_WORD = (1 << 64) - 1


def uniforms_one_by_one(key: int, count: int) -> list[float]:
    """The numbers of `uniforms`, bit for bit, by Python's integers."""
    found = []
    for place in range(1, count + 1):
        x = (place * _STEP + key) & _WORD
        x = ((x ^ (x >> 30)) * _MIX_1) & _WORD
        x = ((x ^ (x >> 27)) * _MIX_2) & _WORD
        found.append(((x >> (64 - _BITS)) + 0.5) * 2.0**-_BITS)
    return found


def uniforms(key: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` independent float32 uniforms in (0, 1), both ends excluded."""
    if few(count, torch.device(device)):
        return torch.tensor(uniforms_one_by_one(key, count), dtype=torch.float32)
    x = torch.arange(1, count + 1, device=device).mul_(_STEP).add_(key)
    # torch shifts int64 arithmetically; the masks make the shifts logical. Products wrap, as they must.
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(_MIX_1)
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(_MIX_2)
    # The hash ends in x ^ (x >> 31), which leaves the upper 31 bits as they are: the ones that are used.
    top = (x >> (64 - _BITS)).bitwise_and_((1 << _BITS) - 1)
    return top.to(torch.float32).add_(0.5).mul_(2.0**-_BITS)


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

    def shared_key(self, stream: str) -> int:
        """The key of a stream that all ranks and micro-batches of this step have in common."""
        return stream_key(self.seed, self.step, 0, 0, stream)

    def shared(self) -> Tick:
        """The tick that all ranks and micro-batches of this step have in common."""
        return replace(self, micro=0, rank=0, world=1)
