"""Classifier-free guidance (Ho and Salimans 2022): away from what the network says without a class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepwell.core.errors import InvalidParameter
from stepwell.core.shapes import PerExample
from stepwell.models.denoiser import Condition


def guided(
    denoiser: nn.Module,
    x: Tensor,
    time: PerExample,
    labels: PerExample | None,
    guidance: float,
    channels: Tensor | None = None,
) -> Tensor:
    """The network's output [B, C or 2 C, H, W], its prediction guided and a learned variance as it is.

    Both halves are one call. eps, v and x0 are each linear in the others at a given x, so that guiding
    one guides all. Extra input channels [B, E, H, W] are shown to both.
    """
    if guidance == 1 or labels is None:
        plain: Tensor = denoiser(x, time, Condition(labels, channels))
        return plain
    no_class = torch.full_like(labels, int(getattr(denoiser, "classes", 0)))
    shown = None if channels is None else torch.cat([channels, channels])
    told = Condition(torch.cat([labels, no_class]), shown)
    both = denoiser(torch.cat([x, x]), torch.cat([time, time]), told)
    with_class, without = both.chunk(2)
    said = x.shape[1]
    mean = torch.lerp(without[:, :said], with_class[:, :said], guidance)
    return torch.cat([mean, with_class[:, said:]], dim=1)


def check_classes(denoiser: nn.Module, labels: tuple[int, ...], guidance: float) -> None:
    """Labels that the network knows, and guidance that it was trained for."""
    classes = int(getattr(denoiser, "classes", 0))
    wrong = [label for label in labels if not 0 <= label < max(classes, 1)]
    if labels and classes == 0:
        raise InvalidParameter("the network was trained without labels: leave labels out.")
    if wrong:
        raise InvalidParameter(f"labels run from 0 to {classes - 1}, not {wrong[0]}.")
    if guidance == 1:
        return
    if not labels:
        raise InvalidParameter(
            f"guidance={guidance:g} needs labels to guide to: "
            + ("name some." if classes else "the network was trained without, so leave guidance at 1.")
        )
    if getattr(denoiser, "label_dropout", 1.0) == 0:
        raise InvalidParameter(
            f"guidance={guidance:g} needs a network that was also trained without labels, and this one had "
            "label_dropout=0: leave guidance at 1, or train with label_dropout=0.1."
        )
