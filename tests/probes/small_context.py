"""A small network with dropout and labels, seen as a probe sees a training run, every loss call noted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import stepwell
from stepwell.core.ranks import Alone, WorkerGroup
from stepwell.core.tick import Tick
from stepwell.models.denoiser import Condition
from stepwell.objective import Objective
from stepwell.probes.context import ProbeContext, ProbeSetup

SHAPE, CLASSES = (1, 4, 4), 64


class Network(nn.Module):
    """[B, 1, 4, 4] at timesteps [B] of 1000 with labels [B]."""

    def __init__(self, width: int = 24, dropout: float = 0.5) -> None:
        super().__init__()
        self.label = nn.Embedding(CLASSES, width)
        self.into = nn.Linear(17, width)
        self.body = nn.Sequential(nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 16))
        self.frozen = nn.Dropout(dropout).eval()

    def forward(self, input: Tensor, time: Tensor, condition: Condition | None = None) -> Tensor:
        flat = torch.cat([input.flatten(1), time[:, None].to(input) / 1000], dim=1)
        hidden = self.into(flat)
        if condition is not None:
            hidden = hidden + self.label(condition.labels)
        output: Tensor = self.body(self.frozen(hidden))
        # FSDP warns of views.
        return output.view_as(input).clone()


def network(seed: int = 0, **more: Any) -> Network:
    """Its weights are a function of the seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return Network(**more)


def examples(count: int, seed: int = 0) -> tuple[Tensor, Condition]:
    """Examples with a label of their own each."""
    x0 = torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return x0, Condition(torch.arange(count) % CLASSES)


class Call(NamedTuple):
    """What one network call was asked."""

    x0: Tensor
    noise: Tensor
    u: Tensor
    condition: Any
    training: bool


@dataclass
class Seen:
    """A network, its update, and the calls that a probe made."""

    network: nn.Module
    process: Any = field(default_factory=lambda: stepwell.process("linear"))
    weighting: str = "none"
    known: bool = True
    """Whether the view may switch the network's mode."""
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-2)
        self._objective = Objective(self.process)
        self._setup = ProbeSetup(
            self.process,
            stepwell.weighting(self.weighting),
            self._loss_at,
            self.optimizer,
            self.network if self.known else None,
        )

    def _loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        self.calls.append(Call(x0.clone(), noise.clone(), u, condition, self.network.training))
        return self._objective(self.network, x0, noise, u, condition).plain

    def view(
        self, x0: Tensor, condition: Any = None, tick: Tick | None = None, group: WorkerGroup | None = None
    ) -> ProbeContext:
        """What a probe sees of an update on these examples."""
        return ProbeContext(tick or Tick(seed=5, step=40), x0, condition, group or Alone(), self._setup)

    def update(self, scale: float = 1.0) -> None:
        """Move all parameters, each by up to `scale` x the learning rate, the same way every time."""
        for parameter in self.network.parameters():
            value = torch.linspace(-1, 1, parameter.numel()).view(parameter.shape)
            parameter.grad = value + 0.1
        self.optimizer.param_groups[0]["lr"] = 1e-2 * scale
        self.optimizer.step()
        self.optimizer.zero_grad()
