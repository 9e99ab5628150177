"""What settings of flow-matching trainers draw, from their formulas, against the names on our pages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from odds import assert_follows_masses
from torch import Tensor

import stepwell
from stepwell.core.density import edges

DRAWS, BINS = 40_000, 50


def uniforms(stream: int = 0) -> Tensor:
    return torch.rand(DRAWS, generator=torch.Generator().manual_seed(stream))


def normals() -> Tensor:
    return torch.randn(DRAWS, generator=torch.Generator().manual_seed(0))


def shifted(t: Tensor, shift: float) -> Tensor:
    return shift * t / (1 + (shift - 1) * t)


def follows(sigma: Tensor, sampler: str, process: str = "flow", **parameters: Any) -> None:
    """Shares of noise that a trainer draws against ours, bin by bin of unit time: fails once in a million."""
    own = stepwell.process(process)
    masses = stepwell.sampler(sampler, own, **parameters).masses(edges(BINS))
    u = own.at_log_snr(2 * torch.log((1 - sigma.double()) / sigma.double()))
    assert_follows_masses((u * BINS).long().clamp(0, BINS - 1), masses)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_uniform_before_a_shift(shift: float) -> None:
    # NeMo Automodel writes it as shift / (shift + 1 / u - 1), SimpleTuner as we do.
    follows(shift / (shift + 1 / uniforms() - 1), "reference", f"flow:shift={shift}")
    follows(shifted(uniforms(1), shift), "reference", f"flow:shift={shift}")


def test_logit_normal_before_a_shift() -> None:
    sigma = shifted(torch.sigmoid(normals()), 3.0)
    follows(sigma, "reference", "flow:shift=3,reference=logit-normal")
    scaled = shifted(torch.sigmoid(0.7 * normals()), 3.0)
    follows(scaled, "logit-normal", std=0.7, shift=3.0)
    # NeMo Automodel: the mean comes before the shift.
    moved = shifted(torch.sigmoid(0.4 + 0.7 * normals()), 3.0)
    follows(moved, "logit-normal", "flow:shift=3", mean=0.4, std=0.7)


def test_nemo_mode_beta_and_mix() -> None:
    v = uniforms()
    mode = (1 - v - 1.29 * (torch.cos(math.pi * v / 2) ** 2 - 1 + v)).clamp(1e-6, 1 - 1e-6)
    follows(shifted(mode, 3.0), "mode", "flow:shift=3", scale=1.29)
    torch.manual_seed(0)
    beta = torch.distributions.Beta(2.5, 1.5).sample((DRAWS,))
    follows(beta, "beta", alpha=2.5, beta=1.5)
    mixed = torch.where(uniforms(2) < 0.1, uniforms(1), torch.sigmoid(normals()))
    follows(shifted(mixed, 3.0), "logit-normal", "flow:shift=3", floor=0.1)


def test_simpletuner_beta_before_a_shift() -> None:
    torch.manual_seed(0)
    beta = torch.distributions.Beta(2.0, 2.5).sample((DRAWS,))
    follows(shifted(beta, 3.0), "beta", alpha=2.0, beta=2.5, shift=3.0)


def test_musubi_logsnr() -> None:
    sigma = torch.sigmoid(-(-6 + 2 * normals()) / 2)
    follows(sigma, "logit-normal", mean=3.0, std=1.0)


def test_musubi_range() -> None:
    # Without --preserve_distribution_shape the density is squeezed into the range.
    follows(0.2 + 0.5 * torch.sigmoid(normals()), "logit-normal", within=(0.2, 0.7))
