"""The processes that work together: one, or the ranks of a torch.distributed group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from stepwell.core.errors import RankLost, Unsupported
from stepwell.core.tensors import State, to_device


class WorkerGroup(Protocol):
    """The collectives that samplers and checkpoints need; every rank calls them in the same order."""

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

    def gather_states(self, state: State) -> list[State]:
        """The states of all ranks on the CPU, in rank order, on rank 0; nothing on the others."""
        ...


class Alone:
    """A group of one process."""

    rank = 0
    world = 1

    def mean(self, value: Tensor) -> Tensor:
        return value

    def gather(self, value: Tensor) -> Tensor:
        return value

    def gather_states(self, state: State) -> list[State]:
        return [state]


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

    def gather_states(self, state: State) -> list[State]:
        states: list[Any] | None = [None] * self.world if self.rank == 0 else None
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        # On the CPU: another rank's accelerator may not be one of rank 0's.
        dist.gather_object(to_device(state, torch.device("cpu")), states, first, self._group)
        return states or []


_LOST = ("connection closed", "connection reset", "connection refused", "broken pipe", "socket", "timed out")
"""How gloo says that a rank is gone, in errors that are otherwise like all others."""


@contextmanager
def neighbours_watched() -> Iterator[None]:
    """Turn the backend's error about a rank that is gone into one sentence."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(words in str(error).lower() for words in _LOST)
        if world == 1 or not lost:
            raise
        said = " ".join(str(error).split())[:200]
        raise RankLost(
            f"another of the {world} processes ended or cannot be reached, so this one ends too ({said}): "
            "look for the message of the one that ended first, then run the same command again."
        ) from error


def worker_group() -> WorkerGroup:
    """The default process group if there is one, else a group of one."""
    return Distributed() if dist.is_available() and dist.is_initialized() else Alone()


_PATIENCE = timedelta(days=7)
"""The first process to finish waits for the last, which may take hours longer."""


@contextmanager
def ranks() -> Iterator[WorkerGroup]:
    """The group of torchrun's processes; with gloo, since they only wait for each other."""
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started:
        dist.init_process_group("gloo", timeout=_PATIENCE)
        if torch.cuda.is_available():
            torch.cuda.set_device(own_device())
    try:
        with neighbours_watched():
            yield worker_group()
    finally:
        if started:
            dist.destroy_process_group()


def meet(group: WorkerGroup) -> None:
    """Wait until all processes have called this."""
    group.gather(torch.zeros(1))


def share(items: list[range], group: WorkerGroup) -> list[range]:
    """This process's part of the items: contiguous, disjoint and of nearly equal length."""
    first, last = (len(items) * rank // group.world for rank in (group.rank, group.rank + 1))
    return items[first:last]


def own_device() -> torch.device:
    """The accelerator of this process, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
