"""Rows of decreases: how much each update of a training lowered the loss at every timestep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.core import require
from stepwell.core.errors import NonFiniteLoss, Unsupported
from stepwell.core.probe import DecreaseSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import Alone
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick, stream_key
from stepwell.data.batches import Batches
from stepwell.data.source import ExampleSource
from stepwell.probes.decrease import Decrease
from stepwell.probes.view import Surroundings, Watched
from stepwell.samplers.beta_policy.rewards import spaced
from stepwell.train.step import Training, train_step

Progress = Callable[[int, int], None]
"""(updates measured, of how many)."""


def _unseen(done: int, total: int) -> None:
    return


@dataclass(frozen=True)
class Measured:
    """What to measure at an update."""

    target: str = "vlb"
    """The weighting of the losses: the bound, with c_t capped as the samplers cap it, by default."""
    times: int | None = None
    """How many evenly spaced timesteps; None: all of them."""
    batch: int = 64
    """How many of them a call of the network takes."""

    def grid(self, process: NoiseProcess) -> Tensor:
        """The unit times [G]."""
        every = process.grid()
        if self.times is None:
            return every
        return every[spaced(min(require.count("grid", self.times, least=2), len(every)), len(every))]


def require_target(process: NoiseProcess, target: str) -> None:
    """An error if a process does not have the losses of a target."""
    try:
        build.weighting_of(target)(process, process.grid()[:1])
    except Unsupported as error:
        raise Unsupported(f"{error} Measure another target: --target simple, say.") from None


def decreases(
    training: Training,
    source: ExampleSource,
    steps: range,
    measured: Measured,
    progress: Progress = _unseen,
) -> Tensor:
    """Before minus after of one example's losses at all times [N, G], over every update of `steps`.

    The example is another one in each update, and its noise is the same before and after, with dropout off
    (Kim et al. 2025, Algorithm 2). It trains: `training` moves on by as many steps.
    """
    process = training.objective.process
    require_target(process, measured.target)
    grid = tuple(measured.grid(process).tolist())
    spec = DecreaseSpec(1, measured.target, subset=grid[:1], grid=grid)
    probe = Decrease()
    rows: list[Tensor] = []
    # A network that was loaded to be looked at may have its dropout off.
    training.network.train()
    views = _views(training, source, measured.batch)

    def after(step: int) -> None:
        signal = probe.after(views(step), spec)
        assert signal is not None, "`before` was called for the same update"
        rows.append(signal.row.double().cpu())

    # torch's own hooks: they fire once per real update, and the step itself stays as it is.
    optimizer = getattr(training.optimizer, "optimizer", training.optimizer)
    for done, step in enumerate(steps):
        hooks = (
            optimizer.register_step_pre_hook(lambda *_, at=step: probe.before(views(at), spec)),
            optimizer.register_step_post_hook(lambda *_, at=step: after(at)),
        )
        try:
            train_step(training, step)
        finally:
            for hook in hooks:
                hook.remove()
        progress(done + 1, len(steps))
    return _finite(rows, steps)


def _views(training: Training, source: ExampleSource, batch: int) -> Callable[[int], Surroundings]:
    """What the probe sees at a step: fresh examples, whatever is trained on."""
    network, seed = training.network, stream_key(training.seed, "approximation")
    batches = Batches(source, batch, seed)

    def loss_at(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        return training.objective(network, x0, noise, u, condition).plain

    watched = Watched(
        training.objective.process,
        training.objective.weighting,
        loss_at,
        training.optimizer,
        network,
        build.weighting_of,
    )

    @lru_cache(maxsize=1)
    def view(step: int) -> Surroundings:
        tick = Tick(seed, step)
        return Surroundings(tick, *training.encode(batches.at(tick)), Alone(), watched)

    return view


def _finite(rows: list[Tensor], steps: range) -> Tensor:
    """The rows [N, G] of all updates that there were (a skipped one of fp16 has none)."""
    for step, row in zip(steps, rows, strict=False):
        if not bool(row.isfinite().all()):
            raise NonFiniteLoss(f"the losses around step {step} are not finite: there is nothing to compare.")
    return torch.stack(rows)
