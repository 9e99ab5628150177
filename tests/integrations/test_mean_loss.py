"""A weight per example where the trainer has only the batch's loss."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import huber_loss, mse_loss

from stepwell.integrations.mean_loss import observe_and_weigh, weigh_gradient
from stepwell.pacer import Pacer


@pytest.mark.parametrize("loss", [mse_loss, huber_loss])
def test_the_gradient_is_that_of_weighted_losses(loss: object) -> None:
    assert callable(loss)
    prediction = torch.randn(4, 2, 3, requires_grad=True)
    target, weight = torch.randn(4, 2, 3), torch.tensor([0.0, 0.5, 1.0, 3.0])
    value = loss(weigh_gradient(prediction, weight), target)
    assert value == loss(prediction, target)
    (found,) = torch.autograd.grad(value, prediction)
    each = loss(prediction, target, reduction="none").flatten(1).mean(1)
    (expected,) = torch.autograd.grad((each * weight).mean(), prediction)
    assert torch.allclose(found, expected)


def test_a_weight_of_one_changes_no_bit_and_other_losses_keep_theirs() -> None:
    prediction, target = torch.randn(8, 5, requires_grad=True), torch.randn(8, 5)
    (plain,) = torch.autograd.grad(mse_loss(prediction, target), prediction)
    (paced,) = torch.autograd.grad(mse_loss(weigh_gradient(prediction, torch.ones(8)), target), prediction)
    assert torch.equal(plain, paced)
    weigh_gradient(prediction, torch.zeros(8))
    (after,) = torch.autograd.grad(mse_loss(prediction, target), prediction)
    assert torch.equal(plain, after)


def test_the_gradient_keeps_its_dtype() -> None:
    prediction = torch.randn(4, 3, dtype=torch.bfloat16, requires_grad=True)
    weigh_gradient(prediction, torch.full((4,), 0.3)).float().sum().backward()
    assert prediction.grad is not None
    assert torch.equal(prediction.grad, torch.full((4, 3), 0.3).bfloat16())


def test_squared_errors_are_observed() -> None:
    pacer, seen = Pacer("auto", "flow"), []
    pace = pacer.draw(torch.randn(4, 3))
    pacer.observe = seen.append  # type: ignore[method-assign]
    prediction, target = torch.randn(4, 3), torch.randn(4, 3)
    assert observe_and_weigh(pacer, pace, prediction, target) is prediction
    assert torch.allclose(seen[0], (prediction - target).square().mean(1))
