"""The processes that share a job: those that torchrun started, or one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed as dist

from stepwell.core.group import WorkerGroup, worker_group

_PATIENCE = timedelta(days=7)
"""The first process to finish waits for the last, which may have hours to go."""


@contextmanager
def ranks() -> Iterator[WorkerGroup]:
    """The group of torchrun's processes while inside; they only ever wait for each other, so gloo will do."""
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started:
        dist.init_process_group("gloo", timeout=_PATIENCE)
        if torch.cuda.is_available():
            torch.cuda.set_device(own_device())
    try:
        yield worker_group()
    finally:
        if started:
            dist.destroy_process_group()


def meet(group: WorkerGroup) -> None:
    """Wait until all processes are here."""
    group.gather(torch.zeros(1))


def share(items: list[range], group: WorkerGroup) -> list[range]:
    """This process's part: contiguous, disjoint, as even as can be."""
    first, last = (len(items) * place // group.world for place in (group.rank, group.rank + 1))
    return items[first:last]


def own_device() -> torch.device:
    """The accelerator of this process, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
