"""FLOPs, parameters and activations of a network, counted on the meta device.

There tensors have shapes and no values: a laptop can count a network that only a cluster can train.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from stepwell.core.errors import Unsupported
from stepwell.models.denoiser import Condition, Denoiser
from stepwell.models.lora import inject
from stepwell.models.registry import MODELS
from stepwell.recipes.experiment import Shape, untrained_network
from stepwell.recipes.schema import Recipe

META = torch.device("meta")


class Uncountable(Unsupported):
    """A count that needs the data, or a run of the network."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations, a multiplication and an addition being two."""

    convolution: float
    """Convolutions, which torch runs in TF32 by default."""
    other: float
    """Matrix products, which it does not."""

    @property
    def total(self) -> float:
        """Both."""
        return self.convolution + self.other

    def __mul__(self, times: float) -> Flops:
        return Flops(self.convolution * times, self.other * times)

    def __add__(self, more: Flops) -> Flops:
        return Flops(self.convolution + more.convolution, self.other + more.other)


@dataclass(frozen=True)
class NetworkCount:
    """One network, one example."""

    parameters: int
    learning: int
    """Parameters that are trained: all of them, or adapters."""
    forward: Flops
    """Forward pass of one example."""
    training: Flops
    """Forward and backward pass of one example."""
    activations: float
    """Bytes an example that the backward pass needs, in float32."""


def shape_of(recipe: Recipe) -> Shape:
    """What the network sees, from the recipe alone."""
    if recipe.size is not None:
        return recipe.channels or 3, recipe.size, recipe.size
    if recipe.model in MODELS and (made_for := MODELS[recipe.model].made_for) is not None:
        return made_for
    raise Uncountable(
        f"data={recipe.data} are not here, and model={recipe.model} is for any shape: give size=N channels=C "
        "(for latents theirs, to plan with), or data= that exist."
    )


def meta_network(recipe: Recipe, shape: Shape, classes: int) -> Denoiser:
    """The recipe's network on the meta device."""
    with META:
        network = untrained_network(recipe, shape, classes)
        if recipe.lora:
            inject(network.network, recipe.lora)
    # Tables that came from numpy were made on the host.
    return network.to(META)


def count(network: nn.Module, shape: Shape, classes: int = 0, extra_channels: int = 0) -> NetworkCount:
    """FLOPs and activations of a network on the meta device; it is left with its gradients."""
    known = [*network.parameters(), *network.buffers()]
    try:
        with FlopCounterMode(display=False) as flops, LiveBytes(known) as live, _FusedAttention():
            loss = _loss(network, 1, shape, classes, extra_channels)
            forward, of_one = _flops(flops), live.now
            loss.backward()
        with LiveBytes(known) as live, _FusedAttention():
            loss = _loss(network, 3, shape, classes, extra_channels)
            of_three = live.now
    except (NotImplementedError, RuntimeError) as error:
        raise Uncountable(
            f"the network looks at values or has operations that the meta device lacks, and can only be "
            f"measured where the data are: {str(error).splitlines()[0]}"
        ) from error
    parameters, learning = (
        sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad or everything)
        for everything in (True, False)
    )
    # What lives between forward and backward; what does not grow with the batch drops out.
    return NetworkCount(parameters, learning, forward, _flops(flops), (of_three - of_one) / 2)


def _loss(network: nn.Module, examples: int, shape: Shape, classes: int, extra_channels: int) -> Tensor:
    x = torch.empty((examples, *shape), device=META)
    time = torch.zeros(examples, dtype=torch.int64, device=META)
    shown = torch.empty((examples, extra_channels, *shape[1:]), device=META) if extra_channels else None
    output: Tensor = network(x, time, Condition(time if classes else None, shown))
    return output.square().mean()


def _flops(counter: FlopCounterMode) -> Flops:
    counts = counter.get_flop_counts().get("Global", {})
    convolution = sum(value for kind, value in counts.items() if "convolution" in str(kind))
    return Flops(float(convolution), float(counter.get_total_flops() - convolution))


class LiveBytes(TorchDispatchMode):
    """The bytes of tensors that were made inside and are still referred to; on any device."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, Any] = {}
        for tensor in known:
            self._add(tensor, counted=False)

    def _add(self, tensor: Tensor, counted: bool = True) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes() if counted else 0
        if key in self._seen:
            return

        def gone(_: object) -> None:
            self.now -= size
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result


class _FusedAttention(TorchFunctionMode):
    """Attention as GPUs run it, without its matrix of scores; the meta device would write that out."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        plain = not kwargs.get("is_causal") and kwargs.get("attn_mask") is None and len(args) == 3
        if function is F.scaled_dot_product_attention and plain:
            dropout = float(kwargs.get("dropout_p", 0.0))
            fused = torch.ops.aten._scaled_dot_product_efficient_attention
            return fused(*args, None, True, dropout, scale=kwargs.get("scale"))[0]
        return function(*args, **kwargs)
