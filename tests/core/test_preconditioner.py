"""Adam's preconditioner is read from the optimizer's own state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from stepwell.probes.context import adam_scale

KINDS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.0),
    "fused": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3, amsgrad=True),
}


def _gradients(steps: int) -> list[Tensor]:
    return list(torch.randn(steps, 3, generator=torch.Generator().manual_seed(0)))


def _stepped(optimizer: Any, parameter: Parameter, gradients: list[Tensor]) -> None:
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()


@pytest.mark.parametrize("steps", [1, 2, 30])
@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_is_adams_with_its_bias_corrected(kind: str, steps: int) -> None:
    parameter = Parameter(torch.zeros(3))
    optimizer, gradients = KINDS[kind]([parameter]), _gradients(steps)
    _stepped(optimizer, parameter, gradients)
    moments = [torch.zeros(3)]
    for gradient in gradients:
        moments.append(0.95 * moments[-1] + 0.05 * gradient.square())
    moment = torch.stack(moments).amax(0) if kind == "amsgrad" else moments[-1]
    wanted = 1 / ((moment / (1 - 0.95**steps)).sqrt() + 1e-3)
    torch.testing.assert_close(adam_scale(optimizer, parameter), wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["adam", "adamw", "fused", "foreach", "amsgrad"])
def test_the_scale_is_the_one_that_adam_steps_with(kind: str) -> None:
    parameter = Parameter(torch.zeros(3))
    optimizer, gradients = KINDS[kind]([parameter]), _gradients(7)
    _stepped(optimizer, parameter, gradients[:-1])
    before = parameter.detach().clone()
    _stepped(optimizer, parameter, gradients[-1:])
    mean = optimizer.state[parameter]["exp_avg"] / (1 - 0.8**7)
    moved = -0.1 * adam_scale(optimizer, parameter) * mean
    torch.testing.assert_close(parameter.detach() - before, moved, rtol=1e-4, atol=1e-7)


def test_every_group_has_its_own_numbers() -> None:
    one, two = Parameter(torch.zeros(3)), Parameter(torch.zeros(3))
    groups = [{"params": [one], "eps": 1.0}, {"params": [two], "betas": (0.9, 0.5), "eps": 0.0}]
    optimizer = torch.optim.Adam(groups)
    one.grad = two.grad = torch.full((3,), 2.0)
    optimizer.step()
    torch.testing.assert_close(adam_scale(optimizer, one), torch.full((3,), 1 / 3))
    torch.testing.assert_close(adam_scale(optimizer, two), torch.full((3,), 1 / 2))


def _two_groups(one: float, two: float, **options: Any) -> tuple[Any, list[Parameter]]:
    """Adam after two steps on two parameters whose groups differ in the learning rate."""
    parameters = [Parameter(torch.zeros(3)), Parameter(torch.zeros(3))]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, (one, two), strict=True)]
    optimizer = torch.optim.Adam(groups, betas=(0.8, 0.95), eps=1e-3, **options)
    for step in range(2):
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.tensor([1.0, -2.0, 0.5]) * (1 + number) * (1 + step)
        optimizer.step()
    return optimizer, parameters


def _moment_scale(number: int) -> Tensor:
    """1 / (sqrt(v) + eps) of `_two_groups`: v is 0.05 (0.95 + 4) g^2 / (1 - 0.95^2)."""
    gradient = torch.tensor([1.0, 2.0, 0.5]) * (1 + number)
    return 1 / ((0.05 * (0.95 + 4) / (1 - 0.95**2)) ** 0.5 * gradient + 1e-3)


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ((0.1, 0.1), (1.0, 1.0)),
        ((0.3, 0.1), (1.0, 1 / 3)),
        ((1e-5, 4e-5), (0.25, 1.0)),
        ((0.2, 0.0), (1.0, 0.0)),
        ((0.0, 0.0), (1.0, 1.0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
def test_a_group_counts_by_its_learning_rate(
    rates: tuple[float, float], wanted: tuple[float, float], as_tensor: bool
) -> None:
    optimizer, parameters = _two_groups(*rates)
    for group in optimizer.param_groups if as_tensor else []:
        group["lr"] = torch.tensor(group["lr"])
    for number, parameter in enumerate(parameters):
        found = adam_scale(optimizer, parameter)
        torch.testing.assert_close(found, wanted[number] * _moment_scale(number), rtol=1e-5, atol=0)


def test_equal_learning_rates_change_no_bit() -> None:
    optimizer, parameters = _two_groups(3e-4, 3e-4)
    for parameter in parameters:
        alone = torch.optim.Adam([parameter], betas=(0.8, 0.95), eps=1e-3)
        alone.state[parameter] = optimizer.state[parameter]
        assert torch.equal(adam_scale(optimizer, parameter), adam_scale(alone, parameter))


def test_two_groups_move_in_proportion_to_scale_and_first_moment() -> None:
    optimizer, parameters = _two_groups(0.05, 0.2)
    before = [parameter.detach().clone() for parameter in parameters]
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.tensor([0.3, 1.0, -1.0]) * (3 - number)
    optimizer.step()
    for parameter, start in zip(parameters, before, strict=True):
        mean = optimizer.state[parameter]["exp_avg"] / (1 - 0.8**3)
        # One factor for all groups: the largest learning rate.
        moved = -0.2 * adam_scale(optimizer, parameter) * mean
        torch.testing.assert_close(parameter.detach() - start, moved, rtol=1e-4, atol=1e-7)


class Factored(torch.optim.Optimizer):
    """Keeps a second moment for some parameters, but has no betas, as Adafactor."""

    def __init__(self, parameters: list[Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        for parameter in parameters:
            self.state[parameter] = {"step": 3, "exp_avg_sq": torch.ones(3)}


@pytest.mark.parametrize(
    "made",
    [lambda p: torch.optim.SGD(p, momentum=0.9), torch.optim.Adagrad, torch.optim.RMSprop, Factored],
    ids=["sgd", "adagrad", "rmsprop", "factored"],
)
def test_other_optimizers_have_none(made: Any) -> None:
    parameter = Parameter(torch.zeros(3))
    optimizer = made([parameter])
    _stepped(optimizer, parameter, _gradients(2) if made is not Factored else [])
    assert adam_scale(optimizer, parameter) is None


def test_before_its_first_step_adam_has_none() -> None:
    parameter = Parameter(torch.zeros(3))
    assert adam_scale(torch.optim.Adam([parameter]), parameter) is None
