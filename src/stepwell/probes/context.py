"""The interface of a probe, and what it may use of the training it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from stepwell.catalogue import build
from stepwell.core.condition import select
from stepwell.core.density import Density
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Signal
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import WorkerGroup
from stepwell.core.tensors import PerExample, State
from stepwell.core.tick import Tick
from stepwell.weightings import Weighting


class Probe:
    """Measures around updates, on every rank, at the steps that its spec names; this one measures nothing.

    The spec comes with every call: a sampler may ask for other times as it learns.
    """

    def add_batch(self, x0: Tensor, condition: Any, spec: Any, world: int) -> None:
        """Called with every micro-batch, so that small ones can be pooled."""

    def before(self, context: ProbeContext, spec: Any) -> None:
        """Called when gradients are ready and the parameters have not moved yet."""

    def after(self, context: ProbeContext, spec: Any) -> Signal | None:
        """Called after the parameters moved: the measurement, equal on every rank."""
        return None

    def state_dict(self) -> State:
        """What the next measurement depends on, except the training."""
        return {"kind": "no probe"}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""


LossAt = Callable[[Tensor, Tensor, PerExample, Any], PerExample]
"""(x0, noise, u, condition) -> the plain loss of each example, differentiable."""


@dataclass(frozen=True)
class ProbeSetup:
    """What stays the same over a run."""

    process: NoiseProcess
    weighting: Weighting
    loss_at: LossAt
    optimizer: Any
    network: nn.Module | None

    def weight(self, target: str | None) -> Weighting:
        """The trained weighting, or the one that a target names (NAME or NAME:key=value,...)."""
        return self.weighting if target is None else _target(target, self.process)


@lru_cache(maxsize=16)
def _target(name: str, process: NoiseProcess) -> Weighting:
    try:
        weighting = build.fixed_weighting(name)
        weighting(process, torch.full((1,), 0.5))
    except Unsupported as error:
        raise Unsupported(f"{error} It is the sampler's target: give it target=simple.") from error
    return weighting


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """One update: the micro-batch drawn last, and how to compute losses at other times."""

    tick: Tick
    """Tick of the micro-batch drawn last."""
    x0: Tensor
    """[B, ...]: its examples."""
    condition: Any
    group: WorkerGroup
    setup: ProbeSetup

    @property
    def reference(self) -> Density:
        """The density that the objective is stated against."""
        return self.setup.process.reference

    def loss_at(
        self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any, target: str | None = None
    ) -> PerExample:
        """The losses [n] of examples at times u [n], weighted as in training or as `target` names."""
        plain = self.setup.loss_at(x0, noise, u, condition)
        if not torch.is_grad_enabled():
            self._reshard()
        if plain.shape != u.shape:
            raise InvalidParameter(
                f"loss_at must return one loss per example, {tuple(u.shape)}, not {tuple(plain.shape)}: "
                "take the mean over each example only."
            )
        return plain * self.setup.weight(target)(self.setup.process, u)

    def of_examples(self, rows: Tensor, tick: Tick) -> ProbeContext:
        """The same update with some of its examples, and the random numbers of another tick."""
        return replace(self, tick=tick, x0=self.x0[rows], condition=select(self.condition, rows))

    def _reshard(self) -> None:
        """FSDP keeps its root whole for a backward pass: without one, the next update would be missed."""
        for module in [] if self.setup.network is None else self.setup.network.modules():
            # FSDPModule by what it does: its home moves between versions of torch.
            reshard = getattr(module, "reshard", None)
            if callable(reshard):
                reshard()

    def parameters(self) -> Sequence[Parameter]:
        """What the optimizer moves."""
        groups = self.setup.optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]

    def scale(self, parameter: Parameter) -> Tensor | None:
        """The diagonal of the optimizer's preconditioner; None: the identity."""
        return adam_scale(self.setup.optimizer, parameter)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The network in eval mode, as it was afterwards."""
        network = self.setup.network
        training = [] if network is None else [module for module in network.modules() if module.training]
        try:
            if network is not None:
                network.eval()
            yield
        finally:
            for module in training:
                module.training = True


def adam_scale(optimizer: Any, parameter: Parameter) -> Tensor | None:
    """rate / (sqrt(v) + eps) of Adam and its relatives, like the parameter; None if there is no such state.

    `rate` is the learning rate of the parameter's group over the largest of all: only ratios matter.
    """
    state = optimizer.state.get(parameter, {})
    moment, step = state.get("max_exp_avg_sq", state.get("exp_avg_sq")), state.get("step")
    if moment is None or step is None:
        return None
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    if "betas" not in group or "eps" not in group:
        return None
    # `step` may be a tensor on the device: nothing here reads it back.
    bias = 1 - group["betas"][1] ** step
    scale: Tensor = 1 / ((moment / bias).sqrt() + group["eps"])
    rates = [other.get("lr") for other in optimizer.param_groups]
    if len(rates) == 1 or any(rate is None for rate in rates):
        return scale
    return scale * _over_largest(group["lr"], rates)


def _over_largest(rate: float | Tensor, rates: Sequence[float | Tensor]) -> float | Tensor:
    """A learning rate over the largest of all groups'; 1 while all are 0, at the start of a warm-up."""
    if not any(isinstance(other, Tensor) for other in rates):
        largest = max(rates)
        return rate / largest if largest else 1.0
    # A compiled or capturable optimizer may keep rates on the device: nothing reads them back.
    kept = next(other for other in rates if isinstance(other, Tensor))
    most = torch.stack([torch.as_tensor(other).to(kept) for other in rates]).max()
    return torch.where(most > 0, rate / most, 1.0)
