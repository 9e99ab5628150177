"""On an accelerator no sampler reads a value back, and after its first steps none copies anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from accelerator import DEVICE, Copies, accelerator
from conformance import Case, every_case
from synthetic import lesson, steps_of
from torch import Tensor

from stepwell.core.feedback import Feedback
from stepwell.core.probe import GradientSpec
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler
from stepwell.core.tick import Tick


@cache
def _on_device(case: Case) -> tuple[list[Draw], list[Metrics], list[str]]:
    """Draws, metrics and, after the first step, copies of three steps on a stand-in accelerator."""
    sampler, draws, metrics = case.build(), [], []
    # The spec belongs to the host: it is asked for where tensors are real.
    spec, steps = sampler.probe, list(steps_of(sampler, 3))[:3]
    spec = spec if isinstance(spec, GradientSpec) else None
    with accelerator():
        x0, losses = torch.zeros(16, 3, 1, device=DEVICE), torch.ones(16, device=DEVICE)
        for step in steps:
            with Copies() as copies:
                draws.append(sampler.draw(x0, Tick(step=step, rank=1, world=2)))
            told = lesson(spec, draws[-1], losses, Tick(step=step))
            with copies:
                metrics.append(sampler.learn(told))
    return draws, metrics, copies.found


@every_case
def test_drawing_and_learning_never_look_at_a_value(case: Case) -> None:
    draws, metrics, _ = _on_device(case)
    for drawn in draws:
        for values in (drawn.u, drawn.log_prob, drawn.correction):
            assert values.device == DEVICE
            assert values.shape == (16,)
    assert all(value.device == DEVICE for step in metrics for value in step.values())


@every_case
def test_after_the_first_steps_nothing_is_copied_between_host_and_device(case: Case) -> None:
    assert _on_device(case)[2] == []


class _Careless(TimestepSampler):
    """Does to its values whatever a test hands it: the checks above must notice."""

    def __init__(self, look: Callable[[Tensor], Any]) -> None:
        self._look = look

    def from_uniform(self, v: Tensor, x0: Tensor, tick: Tick) -> Draw:
        self._look(v)
        return Draw(v, torch.zeros_like(v), torch.ones_like(v))

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.ones_like(u)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return u

    def learn(self, feedback: Feedback) -> Metrics:
        return {}

    def state_dict(self) -> State:
        return {"kind": "careless"}

    def load_state_dict(self, state: State) -> None:
        pass


@pytest.mark.parametrize(
    "look",
    [
        lambda v: v.max().item(),
        lambda v: v.tolist(),
        lambda v: bool((v > 0.5).any()),
        lambda v: v[v > 0.5],
        lambda v: v + torch.ones(len(v)),
    ],
    ids=["item", "tolist", "bool", "mask", "devices"],
)
def test_a_sampler_that_looks_at_a_value_is_caught(look: Callable[[Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        test_drawing_and_learning_never_look_at_a_value(Case("careless", lambda: _Careless(look)))


@pytest.mark.parametrize(
    "look",
    [
        lambda v: v.cpu(),
        lambda v: torch.ones(3).to(v.device),
        lambda v: torch.ones(()).to(v),
        lambda v: torch.as_tensor(0.5, device=v.device),
    ],
    ids=["to-host", "to-device", "scalar", "constant"],
)
def test_a_sampler_that_copies_in_every_step_is_caught(look: Callable[[Tensor], Any]) -> None:
    case = Case("careless", lambda: _Careless(look))
    with pytest.raises(AssertionError):
        test_after_the_first_steps_nothing_is_copied_between_host_and_device(case)
