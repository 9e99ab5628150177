"""The policy of Kim et al. (2025): its networks, the bounds of what they say, and their own optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core.sampler import State
from stepwell.samplers.policy_network import FIRST_OUTPUT, SMALLEST_SHAPE, PolicyNetwork, SamePolicy


@dataclass(frozen=True)
class Bounds:
    """How far the shapes of a Beta may go: as they are halfway to a bound, then more slowly towards it."""

    least: float = 0.0
    """Of a and of b; 0: none."""
    most: float = math.inf
    """Of a + b."""

    def __call__(self, shapes: Tensor) -> Tensor:
        """Shapes [B, 2] within the bounds."""
        if self.least:
            low = self.least * (1 + torch.exp(shapes.clamp(max=2 * self.least) / self.least - 2))
            shapes = torch.where(shapes < 2 * self.least, low, shapes)
        if self.most < math.inf:
            total, half = shapes.sum(1, keepdim=True), self.most / 2
            # Not a tanh: whose slope would be lost to rounding, and the policy with it.
            beyond = (total - half).clamp(min=0) / half
            bounded = total.clamp(max=half) + half * beyond / (1 + beyond)
            shapes = shapes * (bounded / total)
        return shapes


class Adam:
    """Adam (Kingma and Ba 2015) for one network, its gradient clipped by norm.

    torch's own counts steps in a tensor and reads it back, and its state is not named.
    """

    def __init__(self, network: nn.Module, learning_rate: float, clip: float) -> None:
        self.network, self.learning_rate, self.clip = network, learning_rate, clip
        self.first = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
        self.second = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
        self.steps = 0

    def descend(self, loss: Tensor) -> None:
        """One step down the gradient of a loss; none where that is not finite."""
        parameters = dict(self.network.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        factor = (self.clip / (norm + 1e-6)).clamp(max=1)
        self.steps += 1
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            self._move(name, parameter, torch.where(norm.isfinite(), gradient * factor, 0.0))

    @torch.no_grad()
    def _move(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        first = self.first[name].lerp_(gradient, 0.1)
        second = self.second[name].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = second.sqrt().div_(math.sqrt(1 - 0.999**self.steps)).add_(1e-8)
        parameter.addcdiv_(first, root, value=-self.learning_rate / (1 - 0.9**self.steps))

    def to(self, device: torch.device) -> None:
        """Go on with everything on another device."""
        self.network.to(device)
        for moments in (self.first, self.second):
            moments.update({name: moment.to(device) for name, moment in moments.items()})

    def state_dict(self) -> State:
        weights = {name: parameter.detach().clone() for name, parameter in self.network.named_parameters()}
        first, second = ({name: m.clone() for name, m in of.items()} for of in (self.first, self.second))
        return {"weights": weights, "first": first, "second": second, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        for name, parameter in self.network.named_parameters():
            parameter.copy_(state["weights"][name])
            self.first[name].copy_(state["first"][name])
            self.second[name].copy_(state["second"][name])
        self.steps = state["steps"]


class Policy:
    """One network per kind of example (channels, sides), made when the first of it comes."""

    def __init__(
        self, hidden: int, conditional: bool, bounds: Bounds, learning_rate: float, clip: float
    ) -> None:
        self._hidden, self._conditional, self._bounds = hidden, conditional, bounds
        self._learning_rate, self._clip = learning_rate, clip
        self._trained: dict[str, Adam] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """The shapes (a, b) [B, 2] for prepared examples x; differentiable."""
        trained = self._of(x)
        # A mixed-precision loop around the draw would run the convolutions in bfloat16.
        with _full_precision(x.device):
            return self._bounds(F.softplus(trained.network(x)) + SMALLEST_SHAPE)

    def improve(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """One step on a loss of the shapes of x; returns what they were."""
        with torch.enable_grad():
            shapes = self(x)
            self._of(x).descend(loss(shapes))
        return shapes.detach()

    def _of(self, x: Tensor) -> Adam:
        kind = f"{x.shape[1]}/{x.dim() - 2}" if self._conditional else "any"
        if kind not in self._trained:
            self._trained[kind] = self._new(kind, x.device)
        trained = self._trained[kind]
        if next(trained.network.parameters()).device != x.device:
            trained.to(x.device)
        return trained

    def _new(self, kind: str, device: torch.device) -> Adam:
        network: nn.Module
        if self._conditional:
            channels, sides = map(int, kind.split("/"))
            network = PolicyNetwork(channels, sides, self._hidden, device)
        else:
            network = SamePolicy(device)
        return Adam(network, self._learning_rate, self._clip)

    def state_dict(self) -> State:
        return {kind: trained.state_dict() for kind, trained in self._trained.items()}

    def load_state_dict(self, state: State) -> None:
        self._trained = {}
        for kind, of in state.items():
            self._trained[kind] = self._new(kind, torch.device("cpu"))
            self._trained[kind].load_state_dict(of)


def first_shapes() -> Tensor:
    """The shapes [1, 2] of a policy that has learned nothing."""
    return F.softplus(torch.full((1, 2), FIRST_OUTPUT)) + SMALLEST_SHAPE


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
