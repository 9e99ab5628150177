"""The workers that train together: one, or a torch.distributed group."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from stepwell.core.errors import Unsupported


class WorkerGroup(Protocol):
    """The two collectives that samplers need; both are called by every rank, in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    def mean(self, value: Tensor) -> Tensor:
        """The mean over ranks."""
        ...

    def gather(self, value: Tensor) -> Tensor:
        """[N, ...] of each rank as [world * N, ...], in rank order."""
        ...


class Alone:
    """A group of one: nothing to do."""

    rank = 0
    world = 1

    def mean(self, value: Tensor) -> Tensor:
        return value

    def gather(self, value: Tensor) -> Tensor:
        return value


class Distributed:
    """The ranks of an initialised torch.distributed process group."""

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise Unsupported(
                "torch.distributed has no process group yet: call init_process_group first "
                "(torchrun and accelerate do), or use one worker."
            )
        self._group = process_group
        self.rank = dist.get_rank(process_group)
        self.world = dist.get_world_size(process_group)

    def mean(self, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total, group=self._group)
        return total / self.world

    def gather(self, value: Tensor) -> Tensor:
        parts = [torch.empty_like(value) for _ in range(self.world)]
        dist.all_gather(parts, value.contiguous(), group=self._group)
        return torch.cat(parts)


def worker_group() -> WorkerGroup:
    """The default process group if there is one, else a group of one."""
    return Distributed() if dist.is_available() and dist.is_initialized() else Alone()
