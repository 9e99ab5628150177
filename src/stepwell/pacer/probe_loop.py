"""The host's `loss_at`, called as the host would call it, and looked at when it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Signal
from stepwell.core.probe import ProbeSpec
from stepwell.core.process import NoiseProcess, agree
from stepwell.core.ranks import WorkerGroup
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick
from stepwell.pacer.attach import Together, inner
from stepwell.pacer.input_check import LoopCheck, NoiseCheck
from stepwell.pacer.window import OutOfTurn
from stepwell.probes import Probe, probe_for
from stepwell.probes.context import LossAt, ProbeContext, ProbeSetup
from stepwell.weightings import Weighting

_EXAMPLE = "as in (output - target).square().flatten(1).mean(1)"


class WatchedLoss:
    """Losses for probes: under the autocast of the host's forward pass, with nothing of it changed."""

    def __init__(self, loss_at: LossAt, network: nn.Module | None, process: NoiseProcess) -> None:
        self._loss_at = loss_at
        self._network = network
        self._check = None if network is None else NoiseCheck(process, network)
        self._autocast: torch.dtype | None = None

    def notice(self, device: torch.device) -> None:
        """Keep the autocast that is on: the optimizer is often stepped outside of it."""
        kind = device.type
        if torch.is_autocast_enabled(kind):
            self._autocast = torch.get_autocast_dtype(kind)

    def __call__(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        """The plain losses [B] of examples x0 [B, ...] at times u [B]."""
        if torch.is_inference_mode_enabled():
            raise Unsupported(
                "inference_mode is on, where no gradient can be taken: step the optimizer outside of it."
            )
        self.notice(x0.device)
        watching = nullcontext() if self._check is None else self._check.watching(x0, noise, u)
        with self._casting(x0.device), statistics_kept(self._network), watching:
            losses = self._loss_at(x0, noise, u, condition)
        if not isinstance(losses, Tensor) or losses.shape != u.shape:
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidParameter(
                f"loss_at must return one loss per example, {tuple(u.shape)}, not {found}: take the mean "
                f"over each example only, {_EXAMPLE}."
            )
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise Unsupported(
                "what loss_at returns carries no gradient: let it call the network that is trained, without "
                "no_grad, detach or item."
            )
        return losses

    def _casting(self, device: torch.device) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        # Without its cache: inside the host's own autocast that has the weights from before the update.
        return torch.autocast(device.type, self._autocast, cache_enabled=False)


@contextmanager
def statistics_kept(network: nn.Module | None) -> Iterator[None]:
    """Batch normalisation counts what training shows it, and nothing that a probe does."""
    norms = [] if network is None else [m for m in network.modules() if isinstance(m, _NormBase)]
    kept = [(norm, dict(norm._buffers)) for norm in norms if norm.training]
    for norm, buffers in kept:
        # Copies take the part of the buffers: writing the old values back would spoil a backward pass.
        norm._buffers.update({name: None if b is None else b.clone() for name, b in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in kept:
            norm._buffers.update(buffers)


def require_agreement(process: NoiseProcess, loss_at: Any) -> None:
    """A ready-made `loss_at` knows its process: another one would measure at other noise."""
    other = getattr(loss_at, "process", None)
    if isinstance(other, NoiseProcess) and other is not process and not agree(process, other):
        raise InvalidParameter(
            f"loss_at was made for {other!r}, the Pacer for {process!r}: give both the same scheduler (its "
            "number of timesteps, its prediction), or the Pacer loss_at.process."
        )


class Measuring:
    """Runs the probe of a sampler around updates; of one that asks for nothing, nothing."""

    def __init__(self, sampler: TimestepSampler) -> None:
        self.sampler = sampler
        self.probe: Probe = probe_for(sampler.probe)
        self._setup: ProbeSetup | None = None
        self._loss: WatchedLoss | None = None
        self._given: Any = None
        self._spec: ProbeSpec | None = None
        self._context: ProbeContext | None = None
        self._loop: LoopCheck | None = None

    def watch(
        self,
        process: NoiseProcess,
        weighting: Weighting,
        loss_at: LossAt | None,
        optimizer: Any,
        network: nn.Module | None,
    ) -> None:
        """Take what stays the same over a run; whatever cannot work is refused now."""
        known = network if network is not None else getattr(loss_at, "network", None)
        self._loop = None if known is None else LoopCheck(process, known)
        if self.sampler.probe is None:
            return
        if loss_at is None:
            raise InvalidParameter(
                f"{self.sampler!r} measures losses itself: give the Pacer loss_at=, a function (x0, noise, "
                "u, condition) -> losses [B] without weighting, such as stepwell.loss_at.diffusers(network, "
                "noise_scheduler)."
            )
        require_agreement(process, loss_at)
        self._loss, self._given = WatchedLoss(loss_at, known, process), optimizer
        self._setup = ProbeSetup(process, weighting, self._loss, optimizer, known, build.weighting)
        # A target that this process does not have is refused now, not at the first measurement.
        self._setup.weight(self.sampler.probe.target)

    def watch_optimizers(self, found: Sequence[Any]) -> None:
        """Measure what these optimizers move; none: what the one given at first does."""
        if self._setup is None:
            return
        given = self._given
        if found and given is not None and not any(inner(given) is one for one in found):
            raise InvalidParameter(
                f"the Pacer was made with another optimizer, a {type(given).__name__}: leave optimizer= out "
                "and attach the one that steps."
            )
        optimizer = Together(found) if len(found) > 1 else found[0] if found else given
        self._setup = replace(self._setup, optimizer=optimizer)

    def see(self, x0: Tensor, tick: Tick, condition: Any, group: WorkerGroup) -> None:
        """A micro-batch was drawn."""
        if self._setup is None:
            return
        if self._setup.optimizer is None:
            raise OutOfTurn(
                f"{self.sampler!r} measures around updates: call pacer.attach(optimizer) before the first "
                "draw, or give the Pacer optimizer= and call before_update and after_update."
            )
        if x0.is_inference():
            raise Unsupported(
                "x0 was made in inference_mode, so no gradient can pass: make it under torch.no_grad instead."
            )
        self.notice(x0)
        self.probe.add_batch(x0, condition, self.sampler.probe, group.world)
        self._context = ProbeContext(tick, x0, condition, group, self._setup)

    def drew(self, x0: Tensor, u: PerExample) -> None:
        """These are the times of the micro-batch: what the network is shown next should fit them."""
        if self._loop is not None:
            self._loop.drew(x0, u)

    def notice(self, tensor: Tensor) -> None:
        """The host is at a place of its loop where its autocast may be on."""
        if self._loss is not None:
            self._loss.notice(tensor.device)

    def before(self, tick: Tick) -> None:
        """The optimizer is about to step."""
        if self._loop is not None:
            self._loop.forget()
        spec = self.sampler.probe
        self._spec = spec if spec is not None and spec.due(tick.step) else None
        if self._spec is not None and self._context is not None:
            self.probe.before(self._context, self._spec)

    def after(self) -> Signal | None:
        """The optimizer has stepped: what was measured, if it was due."""
        if self._spec is None or self._context is None:
            return None
        return self.probe.after(self._context, self._spec)

    def forget(self) -> None:
        """Let go of the micro-batch."""
        self._context = None
