"""The policy of Kim et al. (2025): a network from x0 to the shapes of a Beta density, and its optimizer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core import saved_state
from stepwell.core.errors import StateMismatch
from stepwell.core.sampler import State
from stepwell.core.tensors import PerExample
from stepwell.core.tick import stream_key, uniforms

LARGEST = 32
"""The side of an image that the published network is made for."""
_SIDE, _CHANNELS, _DEPTH = 4, (32, 64, 128), 2
FIRST_OUTPUT, SMALLEST_SHAPE = 0.5, 1e-5
"""As in the official code: a = b = softplus(0.5) + 1e-5 = 0.974087 at first."""

_OWNER = "beta-policy's network"
_KIND = re.compile(r"any|[1-9]\d{0,5}/[0-3]")
"""One density for all examples, or the channels and the sides of an example."""

_Operation = Callable[..., Tensor]
_CONVOLUTION: tuple[_Operation, ...] = (F.conv1d, F.conv2d, F.conv3d)
_MAXIMUM: tuple[_Operation, ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE: tuple[_Operation, ...] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)


def prepared(x0: Tensor, largest: int = LARGEST) -> Tensor:
    """Examples as input of a policy: [B, D], or [B, C, ...] with 1 to 3 sides, averaged to `largest`."""
    x = x0.detach().to(torch.float32)
    if x.dim() <= 2:
        return x.reshape(len(x), -1)
    x = x.flatten(4) if x.dim() > 5 else x
    sides = [min(side, largest) for side in x.shape[2:]]
    return x if sides == list(x.shape[2:]) else _AVERAGE[len(sides) - 1](x, sides)


class _Layer(nn.Module):
    """A weight and a bias, uniform within 1 / sqrt(fan in), as torch's layers start.

    Not torch's layers: these would draw from the global generator.
    """

    def __init__(
        self, operation: _Operation, shape: tuple[int, ...], name: str, seed: int, device: torch.device
    ) -> None:
        super().__init__()
        self._operation = operation
        bound = 1 / math.sqrt(math.prod(shape[1:]))

        def start(part: str, shape: tuple[int, ...]) -> nn.Parameter:
            chance = uniforms(stream_key("policy", seed, name, part), math.prod(shape), device)
            return nn.Parameter(((2 * chance - 1) * bound).view(shape))

        self.weight, self.bias = start("weight", shape), start("bias", shape[:1])

    def forward(self, x: Tensor) -> Tensor:
        """[B, out, ...] for [B, in, ...]."""
        return self._operation(x, self.weight, self.bias)


class PolicyNetwork(nn.Module):
    """Three convolutions with pooling and an MLP (the official code's network), for any kind of example.

    Vectors have no convolutions. What these leave is filled up to 4 per side, as 32 pixels give it, so that
    all sizes of images share one network. Weights are a function of the seed, alike on all ranks and devices.
    """

    def __init__(self, channels: int, sides: int, hidden: int, seed: int, device: torch.device) -> None:
        super().__init__()
        self._sides = sides
        widths = [channels, *_CHANNELS] if sides else [channels]
        self.convolutions = nn.ModuleList(
            _Layer(_convolution(sides), (out, width, *[3] * sides), f"convolution {number}", seed, device)
            for number, (width, out) in enumerate(pairwise(widths))
        )
        widths = [widths[-1] * _SIDE**sides, *[hidden] * _DEPTH, 2]
        self.linear = nn.ModuleList(
            _Layer(F.linear, (out, width), f"linear {number}", seed, device)
            for number, (width, out) in enumerate(pairwise(widths))
        )
        with torch.no_grad():
            self.linear[-1].get_parameter("weight").zero_()
            self.linear[-1].get_parameter("bias").fill_(FIRST_OUTPUT)

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs [B, 2] for prepared examples."""
        for layer in self.convolutions:
            x = torch.relu(layer(x))
            x = _MAXIMUM[self._sides - 1](x, [min(2, side) for side in x.shape[2:]])
        # Sides of less than 32 leave less than 4. F.pad begins with the last of them.
        missing = [(0, _SIDE - side) for side in reversed(x.shape[2:])]
        x = F.pad(x, [count for side in missing for count in side]).flatten(1)
        for number, layer in enumerate(self.linear):
            x = layer(torch.relu(x) if number else x)
        return x


def _convolution(sides: int) -> _Operation:
    return partial(_CONVOLUTION[sides - 1], padding=1)


class SamePolicy(nn.Module):
    """Two numbers: one density for all examples (conditional=False)."""

    gain = 16.0
    """A step of Adam moves a network's outputs by many times its rate, since all weights move at once."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(2, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs [B, 2] for prepared examples."""
        return (FIRST_OUTPUT + self.gain * self.numbers).expand(len(x), 2)


@dataclass(frozen=True)
class Bounds:
    """Maps the network's outputs to shapes a and b, and limits these."""

    least: float = 0.0
    most: float = math.inf

    def __call__(self, outputs: Tensor) -> Tensor:
        """softplus(outputs) + 1e-5 [B, 2], each within the bounds."""
        return F.softplus(self._kept(outputs)) + SMALLEST_SHAPE

    def penalty(self, outputs: Tensor) -> Tensor:
        """A loss [B] that brings outputs [B, 2] back inside the bounds, beyond which they change nothing.

        A smooth limit instead would leave gradients far below those that Adam remembers: outputs would stay.
        """
        return 0.1 * (outputs - self._kept(outputs)).square().mean(1)

    def _kept(self, outputs: Tensor) -> Tensor:
        lowest = math.log(math.expm1(self.least)) if self.least else -math.inf
        return outputs.clamp(lowest, self.most)


@dataclass(frozen=True)
class AdamSettings:
    """How the policy is trained: Adam with a clipped gradient."""

    learning_rate: float
    clip: float = 1.0
    """Largest norm of the gradient."""
    beta2: float = 0.999


class Adam:
    """Adam (Kingma and Ba 2015) for one network, its gradient clipped by norm.

    torch's own counts steps in a tensor and reads it back, and its state is not named.
    """

    def __init__(self, network: nn.Module, settings: AdamSettings) -> None:
        self.network, self.settings = network, settings
        self.first = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
        self.second = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
        self.steps = 0

    def step(self, loss: Tensor) -> None:
        """One step on a loss; none if its gradient is not finite."""
        parameters = dict(self.network.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        factor = (self.settings.clip / (norm + 1e-6)).clamp(max=1)
        self.steps += 1
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            self._move(name, parameter, gradient * factor, norm.isfinite())

    @torch.no_grad()
    def _move(self, name: str, parameter: Tensor, gradient: Tensor, finite: Tensor) -> None:
        beta2 = self.settings.beta2
        # Whether anything moves is decided on the device: reading it back would wait.
        gradient = torch.where(finite, gradient, 0.0)
        first = self.first[name].lerp_(gradient, torch.where(finite, 0.1, 0.0))
        second = self.second[name].mul_(torch.where(finite, beta2, 1.0))
        second.addcmul_(gradient, gradient, value=1 - beta2)
        root = second.sqrt().div_(math.sqrt(1 - beta2**self.steps)).add_(1e-8)
        step = torch.where(finite, first, 0.0)
        parameter.addcdiv_(step, root, value=-self.settings.learning_rate / (1 - 0.9**self.steps))

    def to(self, device: torch.device) -> None:
        """Move the network and the moments to another device."""
        self.network.to(device)
        for moments in (self.first, self.second):
            moments.update({name: moment.to(device) for name, moment in moments.items()})

    def state_dict(self) -> State:
        weights = {name: parameter.detach().clone() for name, parameter in self.network.named_parameters()}
        first = {name: moment.clone() for name, moment in self.first.items()}
        second = {name: moment.clone() for name, moment in self.second.items()}
        return {"weights": weights, "first": first, "second": second, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        for name, parameter in self.network.named_parameters():
            kept = {"weights": parameter, "first": self.first[name], "second": self.second[name]}
            for kind, own in kept.items():
                saved = saved_state.part(state, kind, _OWNER)
                own.copy_(saved_state.tensor(saved, name, _OWNER, tuple(own.shape)))
        self.steps = saved_state.count(state, "steps", _OWNER)


class Policy:
    """One network per kind of example (channels, number of sides), made for its first step.

    Until then every example has the initial shapes: whatever the weights are, the last ones start at 0.
    """

    def __init__(self, hidden: int, conditional: bool, bounds: Bounds, settings: AdamSettings) -> None:
        self._hidden, self._conditional, self._bounds, self.settings = hidden, conditional, bounds, settings
        self._trained: dict[str, Adam] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """The shapes (a, b) [B, 2] for prepared examples x; differentiable."""
        trained = self._trained.get(self._kind(x))
        if trained is None:
            return self._bounds(x.new_full((len(x), 2), FIRST_OUTPUT))
        return self._bounds(_outputs(trained, x))

    def improve(
        self, x: Tensor, loss: Callable[[Tensor], PerExample], seed: int, own: Tensor | None = None
    ) -> Tensor:
        """One step on the mean loss of examples x, from their shapes; returns the shapes before it.

        A new network starts from the run's `seed`. Only `own` examples [B] (bool) count; of none, no step.
        """
        kind = self._kind(x)
        if kind not in self._trained:
            self._trained[kind] = self._new(kind, seed, x.device)
        with torch.enable_grad():
            outputs = _outputs(self._trained[kind], x)
            shapes = self._bounds(outputs)
            each = loss(shapes) + self._bounds.penalty(outputs)
            # Without own examples 0 / 0, which is not finite and moves nothing.
            mean = each.mean() if own is None else torch.where(own, each, 0.0).sum() / own.sum()
            self._trained[kind].step(mean)
        return shapes.detach()

    def _kind(self, x: Tensor) -> str:
        return f"{x.shape[1]}/{x.dim() - 2}" if self._conditional else "any"

    def _new(self, kind: str, seed: int, device: torch.device) -> Adam:
        network: nn.Module
        if self._conditional:
            channels, sides = map(int, kind.split("/"))
            network = PolicyNetwork(channels, sides, self._hidden, seed, device)
        else:
            network = SamePolicy(device)
        return Adam(network, self.settings)

    def state_dict(self) -> State:
        return {kind: trained.state_dict() for kind, trained in self._trained.items()}

    def load_state_dict(self, state: State) -> None:
        trained: dict[str, Adam] = {}
        for kind in state:
            if not _KIND.fullmatch(str(kind)):
                raise StateMismatch(f"the state that was given to {_OWNER} has a network for {kind!r}.")
            # The weights come with the state, whatever they started from.
            trained[kind] = self._new(kind, 0, torch.device("cpu"))
            trained[kind].load_state_dict(saved_state.part(state, kind, _OWNER))
        self._trained = trained


def _outputs(trained: Adam, x: Tensor) -> Tensor:
    if next(trained.network.parameters()).device != x.device:
        trained.to(x.device)
    # A mixed-precision loop around the draw would run the convolutions in bfloat16.
    with _full_precision(x.device):
        outputs: Tensor = trained.network(x)
    # An example that is not finite has the first density: its timestep is a number, and its loss tells.
    return torch.where(outputs.isfinite().all(1, keepdim=True), outputs, FIRST_OUTPUT)


def initial_shapes() -> Tensor:
    """The shapes [1, 2] of a new policy."""
    return Bounds()(torch.full((1, 2), FIRST_OUTPUT))


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
