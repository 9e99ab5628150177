"""Runs the sampler's probe around updates, with losses computed as the host's own loop computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from stepwell.core import saved_state
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Signal
from stepwell.core.probe import GradientSpec, ProbeSpec
from stepwell.core.process import NoiseProcess, agree
from stepwell.core.ranks import WorkerGroup
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tensors import PerExample, State
from stepwell.core.tick import Tick
from stepwell.pacer.attach import JoinedOptimizers, unwrap_optimizer
from stepwell.pacer.input_check import LoopCheck, ProbeCheck
from stepwell.pacer.window import CallOrderError
from stepwell.probes import Probe, probe_for
from stepwell.probes.context import LossAt, ProbeContext, ProbeSetup
from stepwell.weightings import Weighting


class ProbeLoop:
    """Takes every micro-batch and runs the probe when it is due; a no-op without a probe.

    Whatever cannot work is refused when it is made, not at the first measurement.
    """

    def __init__(
        self,
        sampler: TimestepSampler,
        process: NoiseProcess,
        weighting: Weighting,
        loss_at: LossAt | None,
        optimizer: Any,
        network: nn.Module | None,
        updates: int | None,
    ) -> None:
        network = getattr(loss_at, "network", None) if network is None else network
        self.sampler, self._optimizer = sampler, optimizer
        self.probe: Probe = probe_for(sampler.probe)
        self.loop_check = LoopCheck(process, network)
        self._loss: ProbeLoss | None = None
        self._setup: ProbeSetup | None = None
        self._context: ProbeContext | None = None
        self._due: ProbeSpec | None = None
        self._batch: int | None = None
        """Examples in the first micro-batch of all ranks: how much is measured depends on it."""
        self._updates = updates
        if loss_at is None and sampler.probe is None:
            return
        if loss_at is None:
            raise InvalidParameter(
                f"{sampler} measures losses itself: give the Pacer loss_at=, a function (x0, noise, u, "
                "condition) -> losses [B] without weighting, such as stepwell.loss_at.diffusers(network, "
                "noise_scheduler)."
            )
        self._loss = ProbeLoss(loss_at, network, process)
        self._setup = ProbeSetup(process, weighting, self._loss, optimizer, network)
        if sampler.probe is not None:
            # Refuses a target that this process does not have.
            self._setup.weight(sampler.probe.target)

    def use_optimizers(self, attached: Sequence[Any]) -> None:
        """Measure the parameters of the attached optimizers; of none, those of the Pacer's `optimizer=`."""
        self.loop_check.attached = bool(attached)
        if self._setup is None:
            return
        own = self._optimizer
        if attached and own is not None and not any(unwrap_optimizer(own) is one for one in attached):
            raise InvalidParameter(
                f"the Pacer was made with another optimizer, a {type(own).__name__}: leave optimizer= out "
                "and attach the one that steps."
            )
        optimizer = JoinedOptimizers(attached) if len(attached) > 1 else attached[0] if attached else own
        self._setup = replace(self._setup, optimizer=optimizer)

    def add_batch(self, x0: Tensor, tick: Tick, condition: Any, group: WorkerGroup) -> None:
        """A micro-batch x0 [B, ...] is about to be drawn for."""
        if self.sampler.probe is None:
            return
        self._context = self.context(x0, tick, condition, group)
        self.remember_autocast(x0)
        if self._batch is None:
            self._batch = _over_ranks(x0, group)
        self.probe.add_batch(x0, condition, self._spec(), group.world)

    def context(self, x0: Tensor, tick: Tick, condition: Any, group: WorkerGroup) -> ProbeContext:
        """What a measurement on examples x0 [B, ...] needs."""
        if self._setup is None:
            raise CallOrderError(
                "gradients are measured through the loss of your loop: give the Pacer loss_at=, such as "
                "stepwell.loss_at.diffusers(network, noise_scheduler)."
            )
        if self._setup.optimizer is None:
            raise CallOrderError(
                "measuring needs the optimizer, whose parameters it is about: call pacer.attach(optimizer) "
                "before the first draw, or give the Pacer optimizer= and call before_update and after_update."
            )
        if x0.is_inference():
            raise Unsupported(
                "x0 was made in inference_mode, so no gradient can pass: make it under torch.no_grad instead."
            )
        return ProbeContext(tick, x0, condition, group, self._setup)

    def _spec(self) -> ProbeSpec | None:
        """What the sampler asks for, at this run's batch and length."""
        spec = self.sampler.probe
        return spec if spec is None or self._batch is None else spec.for_run(self._batch, self._updates)

    @property
    def first_round(self) -> int | None:
        """Steps until a gradient probe has measured all of time; None for other probes."""
        spec = self._spec()
        return spec.fast_steps if isinstance(spec, GradientSpec) else None

    def remember_autocast(self, tensor: Tensor) -> None:
        """Called where the host's autocast may be on: optimizers are often stepped outside of it."""
        if self._loss is not None:
            self._loss.remember_autocast(tensor.device)

    def before(self, tick: Tick) -> None:
        """The optimizer is about to step."""
        self.loop_check.cancel()
        spec = self._spec()
        self._due = spec if spec is not None and spec.due(tick.step) else None
        if self._due is not None and self._context is not None:
            self.probe.before(self._context, self._due)

    def after(self) -> Signal | None:
        """The optimizer has stepped; returns what was measured if the probe was due."""
        if self._due is None or self._context is None:
            return None
        return self.probe.after(self._context, self._due)

    def release_batch(self) -> None:
        """Free the micro-batch."""
        self._context = None

    def state_dict(self) -> State:
        """The probe's, and the batch and the number of updates that it is made for."""
        run = {"batch": self._batch, "updates": self._updates}
        return {**self.probe.state_dict(), **{name: size for name, size in run.items() if size is not None}}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken; states without a batch take that of the next draw.

        A run that is continued with more updates measures as it was planned when it began.
        """
        self.probe.load_state_dict(state)
        self._batch = saved_state.count(state, "batch", "the probe") if "batch" in state else None
        self._updates = saved_state.count(state, "updates", "the probe") if "updates" in state else None


def _over_ranks(x0: Tensor, group: WorkerGroup) -> int:
    """The examples of all ranks, the same number on each: their batches may differ."""
    if group.world == 1:
        return len(x0)
    # Reading it waits for the device, once in a run.
    return round(float(group.mean(torch.tensor(float(len(x0)), device=x0.device))) * group.world)


class ProbeLoss:
    """The host's `loss_at` as probes call it: under the host's autocast, without side effects, checked."""

    def __init__(self, loss_at: LossAt, network: nn.Module | None, process: NoiseProcess) -> None:
        _require_same_process(process, loss_at)
        self._loss_at = loss_at
        self._network = network
        self._check = ProbeCheck(process, network)
        self._autocast: torch.dtype | None = None

    def remember_autocast(self, device: torch.device) -> None:
        """Keep the autocast that is on now, if any."""
        if torch.is_autocast_enabled(device.type):
            self._autocast = torch.get_autocast_dtype(device.type)

    def __call__(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        """The plain losses [B] of examples x0 [B, ...] at times u [B]."""
        if torch.is_inference_mode_enabled():
            raise Unsupported(
                "inference_mode is on, where no gradient can be taken: step the optimizer outside of it."
            )
        self.remember_autocast(x0.device)
        check = self._check.during(x0, noise, u)
        with self._host_autocast(x0.device), batch_statistics_kept(self._network), check:
            losses = self._loss_at(x0, noise, u, condition)
        if not isinstance(losses, Tensor) or losses.shape != u.shape:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidParameter(
                f"loss_at must return one loss per example, {tuple(u.shape)}, not {shape}: take the mean "
                "over each example only, as in (output - target).square().flatten(1).mean(1)."
            )
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise Unsupported(
                "what loss_at returns carries no gradient: let it call the network that is trained, without "
                "no_grad, detach or item."
            )
        return losses

    def _host_autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        # Without its cache: inside the host's own autocast that has the weights from before the update.
        return torch.autocast(device.type, self._autocast, cache_enabled=False)


@contextmanager
def batch_statistics_kept(network: nn.Module | None) -> Iterator[None]:
    """Batch normalisation's running statistics count what training shows it, not what a probe does."""
    norms = [] if network is None else [m for m in network.modules() if isinstance(m, _NormBase)]
    kept = [(norm, dict(norm._buffers)) for norm in norms if norm.training]
    for norm, buffers in kept:
        # The probe writes to copies: writing old values back would break a pending backward pass.
        norm._buffers.update({name: None if b is None else b.clone() for name, b in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in kept:
            norm._buffers.update(buffers)


def _require_same_process(process: NoiseProcess, loss_at: Any) -> None:
    """A ready-made `loss_at` has a process: with another one it would measure at other noise."""
    other = getattr(loss_at, "process", None)
    if isinstance(other, NoiseProcess) and other is not process and not agree(process, other):
        raise InvalidParameter(
            f"loss_at was made for {other}, the Pacer for {process}: give both the same scheduler (its "
            "number of timesteps, its prediction), or the Pacer loss_at.process."
        )
