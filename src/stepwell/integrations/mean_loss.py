"""For trainers that compute one loss for the whole batch: a weight per example, through the gradient.

musubi-tuner, SimpleTuner and torchtitan take the mean (or sum) over the batch inside their loss, where a
weight per example has no place. The gradient with respect to the prediction is separate for each example.
"""

from __future__ import annotations

from torch import Tensor

from stepwell.core.tensors import PerExample, per_example
from stepwell.pacer import Pace, Pacer


def observe_and_weigh(pacer: Pacer, pace: Pace, prediction: Tensor, target: Tensor) -> Tensor:
    """The prediction [B, ...] for the trainer's own loss, after its squared errors were given to the pacer.

    The gradient of example i is multiplied by `pace.weight[i]`; the loss keeps its value.
    """
    pacer.observe(squared_errors(prediction, target))
    return weigh_gradient(prediction, pace.weight)


def squared_errors(prediction: Tensor, target: Tensor) -> PerExample:
    """[B]: the mean squared error of each example, in float32 and without a gradient."""
    difference = prediction.detach().float() - target.detach().float()
    return difference.square().flatten(1).mean(1)


def weigh_gradient(prediction: Tensor, weight: PerExample) -> Tensor:
    """The same values [B, ...]; what flows back is multiplied by the weight [B] of its example."""
    if not prediction.requires_grad:
        return prediction
    # A tensor of its own: losses that use the prediction elsewhere keep their gradient.
    weighed = prediction.view_as(prediction)
    weighed.register_hook(lambda gradient: (gradient * per_example(weight, gradient)).to(gradient.dtype))
    return weighed
