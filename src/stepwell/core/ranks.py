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
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from stepwell.core.errors import Unsupported
from stepwell.core.neighbours import neighbours_watched, store_of_launcher
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


def worker_group() -> WorkerGroup:
    """The default process group if there is one, else a group of one."""
    return Distributed() if dist.is_available() and dist.is_initialized() else Alone()


PATIENCE = timedelta(days=7)
"""Ranks may wait for hours: for an evaluation, or for the last to finish. Who is alive is known otherwise."""


def join_restarted(backend: str) -> None:
    """Join the group of a launch that torchrun has restarted, where its first attempt left addresses behind.

    torchrun keeps one store for all attempts, and torch would connect to the processes that died (2.13).
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        return
    rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    keeps_store = rank == 0 and not store_of_launcher()
    store = TCPStore(os.environ["MASTER_ADDR"], port, is_master=keeps_store, multi_tenant=True)
    own = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=PATIENCE)


@contextmanager
def ranks() -> Iterator[WorkerGroup]:
    """The group of torchrun's processes; with gloo, since they only wait for each other."""
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started:
        join_restarted("gloo")
    if started and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=PATIENCE)
    if started and torch.cuda.is_available():
        torch.cuda.set_device(own_device())
    try:
        with neighbours_watched():
            yield worker_group()
    finally:
        if started:
            dist.destroy_process_group()


def of_every_rank(value: Any) -> list[Any]:
    """A value of each rank of the default group, in rank order, on all of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


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
