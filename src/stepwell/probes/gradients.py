"""Measures the gradient of one stratum of time: two halves of different images, as sketches.

A sketch is a few thousand numbers whose inner products are those of the gradients: every coordinate gets a
random sign and is added to one of d buckets (Charikar et al. 2002; as a projection, Weinberger et al. 2009).
Inner products are kept in expectation, with an error of |x||y| sqrt(2 / d) at most, and exactly if there are
no more coordinates than buckets. Sketches are linear: the mean of the ranks' sketches is the sketch of the
mean gradient, and the sum over shards that of the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter

from stepwell.core import saved_state
from stepwell.core.condition import joined, select
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import GradientSignal
from stepwell.core.probe import GradientSpec
from stepwell.core.tensors import PerExample, State
from stepwell.core.tick import stream_key, uniforms
from stepwell.probes.context import Probe, ProbeContext
from stepwell.probes.examples import Pool, between, forked, noise, times

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Gradients(Probe):
    """Measures after the update, so that Adam's preconditioner exists from the first step on.

    At most one gradient is held at a time. Dropout stays on, as in training, with random numbers of its own.
    """

    def __init__(self) -> None:
        self._pool = Pool(0)
        self._sketch: Sketch | None = None
        self._signs = ""
        """The stream of the sketch's signs: that of the run's seed, from the first measurement on."""

    def add_batch(self, x0: Tensor, condition: Any, spec: GradientSpec, world: int) -> None:
        self._pool.size = 2 * -(-spec.images // world)
        self._pool.add(x0, condition)

    def after(self, context: ProbeContext, spec: GradientSpec) -> GradientSignal | None:
        """The gradients of the stratum whose turn it is; None until the pool has enough examples."""
        x0, each = self._pool.x0, self._pool.size // 2
        if x0 is None or len(x0) < 2 * each:
            return None
        tick, stratum = context.tick, spec.stratum(context.tick.step)
        ends = spec.borders[stratum], spec.borders[stratum + 1]
        halves = [self._half(context, x0, half, each, ends) for half in range(2)]
        with forked(tick, "probe dropout", x0.device), torch.enable_grad():
            if spec.difference_only:
                # Means of both halves in one pass, the second with a minus sign.
                x, e, u, conditions = zip(*halves, strict=True)
                losses = context.loss_at(torch.cat(x), torch.cat(e), torch.cat(u), joined(conditions))
                difference = self._gradient(context, losses[:each].mean() - losses[each:].mean(), spec)
                sketches = [difference, torch.zeros_like(difference)]
            else:
                sketches = [
                    self._gradient(context, context.loss_at(*half, target).mean(), spec)
                    for half, target in zip(halves, (None, spec.target), strict=True)
                ]
        return GradientSignal(stratum, _over_ranks(context, torch.stack(sketches)), each * tick.world)

    def _half(
        self, context: ProbeContext, x0: Tensor, half: int, each: int, ends: tuple[float, float]
    ) -> tuple[Tensor, Tensor, PerExample, Any]:
        """Examples, noise, times and condition of one half."""
        tick = context.tick
        # Neighbours in a batch may be alike (augmentations, buckets): they go to different halves.
        rows = torch.arange(half, 2 * each, 2, device=x0.device)
        u = between(context.reference, times(tick, f"probe time {half}", each, x0.device), *ends)
        examples = x0[rows]
        return examples, noise(tick, f"probe noise {half}", examples), u, select(self._pool.condition, rows)

    def _gradient(self, context: ProbeContext, loss: Tensor, spec: GradientSpec) -> Tensor:
        """The sketch of P^(1/2) g: inner products of such are those of gradients in the metric P."""
        parameters = context.parameters()
        self._signs = self._signs or f"{UNSEEDED}/{context.tick.seed}"
        if self._sketch is None or not self._sketch.fits(parameters):
            self._sketch = Sketch(parameters, signs=self._signs)
        gradients = gradients_of(loss, parameters)

        def scaled() -> Iterator[Tensor | None]:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                scale = context.scale(parameter) if spec.preconditioned and gradient is not None else None
                yield gradient if scale is None or gradient is None else gradient * scale.sqrt()

        return self._sketch(scaled())

    def state_dict(self) -> State:
        return {"kind": "gradients", "pool": self._pool.state_dict(), "signs": self._signs}

    def load_state_dict(self, state: State) -> None:
        self._pool.load_state_dict(saved_state.part(state, "pool", "a gradient probe"))
        # A sampler's running means of sketches hold for these signs only.
        self._signs, self._sketch = state.get("signs", UNSEEDED), None


def _over_ranks(context: ProbeContext, sketches: Tensor) -> Tensor:
    """Whole gradients are averaged; FSDP has averaged already, and its shards are added."""
    mean = context.group.mean(sketches)
    return mean * context.group.world if any(map(is_sharded, context.parameters())) else mean


def gradients_of(loss: Tensor, parameters: Sequence[Parameter]) -> list[Tensor | None]:
    """The gradient of a loss, without touching `.grad`, which the optimizer will use."""
    if not any(map(is_sharded, parameters)):
        # Not backward(): DDP's hooks on the parameters would take it for a training step.
        whole = torch.autograd.grad(loss, list(parameters), allow_unused=True) if loss.requires_grad else ()
        if all(gradient is None for gradient in whole):
            raise Unsupported(
                "what loss_at returns depends on no parameter that the optimizer moves: let it call the "
                "network that is trained, without no_grad; checkpoints need use_reentrant=False."
            )
        return list(whole)
    # FSDP reduces in its own hooks, and only into .grad.
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    gradients = [parameter.grad for parameter in parameters]
    for parameter, before in zip(parameters, kept, strict=True):
        parameter.grad = before
    return gradients


DIMENSIONS = 4093
"""Buckets of a sketch: more change nothing, since the noise of a few dozen examples is larger.

Coordinates take the buckets in turn. A prime number of them keeps the column of a matrix, where one input
stands out, from falling into a few: of 4096 and for 1024 inputs it would be 4, with an error of a half.
"""


UNSEEDED = "sketch"
"""The stream of signs of runs whose first steps were before signs depended on the seed."""


class Sketch:
    """The signs and buckets of one list of parameters, made once (a byte per coordinate)."""

    def __init__(
        self, parameters: Sequence[Parameter], dimensions: int = DIMENSIONS, signs: str = UNSEEDED
    ) -> None:
        self._dimensions = dimensions
        self._signs: list[Tensor] = []
        self._first: list[int] = []
        total = 0
        for number, parameter in enumerate(parameters):
            low, high = held(parameter)
            chance = uniforms(stream_key(signs, number), parameter.numel(), local(parameter).device)
            self._signs.append(torch.where(chance[low:high] < 0.5, -1, 1).to(torch.int8))
            self._first.append((total + low) % dimensions)
            total += parameter.numel()
        self.width = min(total, dimensions)
        """Buckets in use: all, unless there are fewer coordinates."""

    def fits(self, parameters: Sequence[Parameter]) -> bool:
        """Whether it was made for as many parameters: some may have been frozen or unfrozen since."""
        return len(parameters) == len(self._signs)

    def __call__(self, gradients: Iterable[Tensor | None]) -> Tensor:
        """The sketch [width] of gradients, one for each parameter in order; None is 0."""
        result: Tensor | None = None
        for gradient, signs, first in zip(gradients, self._signs, self._first, strict=True):
            folded = signs.new_zeros(self._dimensions, dtype=torch.float32)
            if gradient is not None and signs.numel():
                signed = local(gradient).detach().float().reshape(-1) * signs
                last = -(first + signed.numel()) % self._dimensions
                padded = torch.nn.functional.pad(signed, (first, last))
                folded = padded.view(-1, self._dimensions).sum(0)
            result = folded if result is None else result + folded
        if result is None:
            raise Unsupported("there is nothing to train: no parameter requires a gradient.")
        return result[: self.width]


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether FSDP keeps it in parts (a DTensor), without importing that module, which takes a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def held(parameter: Tensor) -> tuple[int, int]:
    """The range of flat coordinates that this rank holds: rows, as FSDP shards them."""
    if not is_sharded(parameter):
        return 0, parameter.numel()
    from torch.distributed.tensor import Shard

    (placement, *more) = parameter.placements
    if more or not isinstance(placement, Shard) or placement.dim != 0:
        raise Unsupported(
            f"a parameter is placed as {parameter.placements}: gradient probes know parameters that are "
            "whole or sharded along their first dimension over one mesh dimension (fully_shard's default)."
        )
    rows, world = parameter.shape[0], parameter.device_mesh.size()
    each = -(-rows // world)
    low = min(rows, each * parameter.device_mesh.get_local_rank())
    width = parameter.numel() // max(rows, 1)
    return low * width, min(rows, low + each) * width
