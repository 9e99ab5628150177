"""Classifier-free guidance in closed form: Gaussians of equal width, guided to a Gaussian beyond them."""

from __future__ import annotations

import pytest
import torch
from gaussian_network import GaussianNetwork, along_the_ode, sigma_at, unit_noise
from torch import Tensor, nn

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.generate.diffusers_solvers import DiffusersSolver
from stepwell.generate.images import Request, generate, guided
from stepwell.models.denoiser import Condition
from stepwell.models.registry import build_model
from stepwell.processes.discrete import DiscreteProcess

MEANS = (0.3, -0.2, 0.1)
"""Of class 0, class 1 and no class."""
STD, SHAPE = 0.4, (1, 4, 4)


@pytest.mark.parametrize("prediction", ["eps", "v", "x0"])
@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_guided_images_are_those_of_the_guided_mean(prediction: str, guidance: float) -> None:
    """E[x0 | x] is linear in the mean, so the guided network is optimal for m + g (m_c - m)."""
    process = stepwell.process("linear", prediction=prediction)
    assert isinstance(process, DiscreteProcess)
    network = GaussianNetwork(process, STD, MEANS)
    request = Request(4, SHAPE, "heun", 60, labels=(0, 1), guidance=guidance, clip=None)
    found = torch.cat(list(generate(network, process, request, decode=lambda x: x)))
    first = float(sigma_at(process, DiffusersSolver(process, "heun", 60).times[0]))
    for index, image in enumerate(found):
        mean = MEANS[2] + guidance * (MEANS[index % 2] - MEANS[2])
        exact = along_the_ode(unit_noise(4, SHAPE)[index] * first, first, 0.0, STD, mean)
        # Heun's own error at 60 steps is 0.003.
        assert (image - exact).abs().max() < 0.01
    assert set(network.calls) == {4 if guidance == 1 else 8}, "both halves are one call"


class Constant(nn.Module):
    """Two output channels, a mean and a variance, of which each class has its own."""

    classes = 2

    def forward(self, x: Tensor, time: Tensor, condition: Condition) -> Tensor:
        assert condition.labels is not None
        mean = condition.labels.double().reshape(-1, 1, 1, 1).expand_as(x)
        return torch.cat([mean, 10 + mean], dim=1)


def test_a_learned_variance_is_not_guided() -> None:
    x, time = torch.zeros(2, 1, 2, 2, dtype=torch.float64), torch.zeros(2)
    output = guided(Constant(), x, time, torch.tensor([0, 1]), 3.0)
    # Without a class the mean is 2: 2 + 3 (0 - 2) and 2 + 3 (1 - 2).
    assert output[:, 0].unique().tolist() == [-4.0, -1.0]
    assert output[:, 1].unique().tolist() == [10.0, 11.0]


def test_guidance_that_means_nothing_is_refused() -> None:
    process = stepwell.process("linear", timesteps=20)

    def asked(network: nn.Module, **changes: object) -> None:
        next(generate(network, process, Request(1, (1, 8, 8), steps=2, **changes)))  # type: ignore[arg-type]

    plain = build_model("micro", channels=1, image_size=8)
    with pytest.raises(InvalidParameter, match="trained without labels"):
        asked(plain, labels=(0,))
    with pytest.raises(InvalidParameter, match="leave guidance at 1"):
        asked(plain, guidance=2.0)
    with pytest.raises(InvalidParameter, match="label_dropout=0"):
        asked(build_model("micro", channels=1, image_size=8, classes=3), guidance=2.0, labels=(0,))
    conditional = build_model("micro", channels=1, image_size=8, classes=3, label_dropout=0.1)
    with pytest.raises(InvalidParameter, match="name some"):
        asked(conditional, guidance=2.0)
    with pytest.raises(InvalidParameter, match="labels run from 0 to 2, not 3"):
        asked(conditional, labels=(3,))
    with pytest.raises(InvalidParameter, match="guidance must be 0 or more"):
        asked(conditional, labels=(0,), guidance=-1.0)
