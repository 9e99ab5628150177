"""The metric in which an optimizer takes its steps."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Parameter


def adam_scale(optimizer: Any, parameter: Parameter) -> Tensor | None:
    """1 / (sqrt(v) + eps) of Adam and its relatives, like the parameter; None if there is no such state."""
    state = optimizer.state.get(parameter, {})
    moment, step = state.get("max_exp_avg_sq", state.get("exp_avg_sq")), state.get("step")
    if moment is None or step is None:
        return None
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    if "betas" not in group or "eps" not in group:
        return None
    bias = 1 - group["betas"][1] ** step
    # A bias read on the device costs nothing; `step` may be a tensor there.
    scale: Tensor = 1 / ((moment / bias).sqrt() + group["eps"])
    return scale
