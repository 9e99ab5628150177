"""What images cost before they are made: evaluations of the network, and seconds on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.generate.guidance import guided
from stepwell.generate.solvers import CATALOGUE
from stepwell.generate.to_disk import Task


@dataclass(frozen=True)
class Cost:
    """Of a whole task."""

    evaluations: int
    """Of the network, for each image."""
    batch_seconds: float
    """Of one evaluation of one batch, with both halves of guidance."""
    seconds: float
    """In all, decoding included, writing not."""


@torch.no_grad()
def cost_of(task: Task, processes: int) -> Cost:
    """Measured on one evaluation and one decoding of one batch."""
    request, solver = task.request, CATALOGUE[task.request.solver]
    like = next(task.denoiser.parameters())
    batch = request.batches()[0]
    x, time_told = like.new_zeros((len(batch), *request.shape)), like.new_zeros(len(batch))
    found = request.labels_of(batch)
    labels = None if found is None else torch.tensor(found, device=like.device)
    shown = request.channels_of(batch, like)
    network = _seconds(lambda: guided(task.denoiser, x, time_told, labels, request.guidance, shown))
    decoding = _seconds(lambda: task.decode(x))
    rounds = -(-len(request.batches()) // processes)
    return Cost(
        solver.evaluations(request.steps, guided=request.guidance != 1),
        network,
        rounds * (solver.evaluations(request.steps) * network + decoding),
    )


def _seconds(call: Callable[[], Tensor]) -> float:
    """Of the second call, up to a result on the host: the first one warms up."""
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        call().cpu()
        seconds = time.perf_counter() - begun
    return seconds
