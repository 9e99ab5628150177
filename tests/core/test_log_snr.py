"""Wide distributions over log-SNR on a flow, whose log-SNR has no ends but those of float32."""

from __future__ import annotations

import math

import pytest
import torch

import stepwell
from stepwell.core.density import centres
from stepwell.core.tick import Tick

WIDE = [(10.0, 10.0, 1.0), (-10.0, 10.0, 1.0), (0.0, 4.0, 3.0), (0.0, 20.0, 1.0), (0.0, 20.0, 3.0)]


def laplace(mean: float, scale: float, shift: float, **more: object) -> stepwell.TimestepSampler:
    return stepwell.sampler("laplace", stepwell.process("flow", shift=shift), mean=mean, scale=scale, **more)


@pytest.mark.parametrize(("mean", "scale", "shift"), WIDE)
def test_the_density_integrates_to_one(mean: float, scale: float, shift: float) -> None:
    # u = x^3 (10 - 15 x + 6 x^2) resolves both ends: a step of 1e-6 in x is one of 1e-17 in u there.
    x = centres(1_000_000)
    u, rate = x**3 * (10 - 15 * x + 6 * x**2), 30 * x**2 * (1 - x) ** 2
    density = laplace(mean, scale, shift).density(u)
    assert float((density * rate).mean()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("mean", "scale", "shift"), WIDE)
def test_the_density_is_the_transformed_laplace(mean: float, scale: float, shift: float) -> None:
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    sigma = shift * t / (1 + (shift - 1) * t)
    log_snr = 2 * torch.log((1 - sigma) / sigma)
    # d log-SNR / dt; the range of log-SNR is that of t from 2^-24 to 1 - 2^-24.
    rate = 2 / (sigma * (1 - sigma)) * shift / (1 + (shift - 1) * t) ** 2
    top, bottom = (2 * math.log(part / shift) for part in (2**24 - 1, 1 / (2**24 - 1)))

    def below(at: float) -> float:
        z = (at - mean) / scale
        return math.exp(z) / 2 if z < 0 else 1 - math.exp(-z) / 2

    expected = torch.exp(-(log_snr - mean).abs() / scale) / (2 * scale) * rate / (below(top) - below(bottom))
    torch.testing.assert_close(laplace(mean, scale, shift).density(t), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("mean", "scale", "shift"), WIDE)
def test_corrections_are_finite_and_average_to_one(mean: float, scale: float, shift: float) -> None:
    sampler = laplace(mean, scale, shift, unbiased=True)
    # From the first uniform that is drawn to the last; the mean over all is that of the reference, 1.
    v = torch.cat([torch.tensor([2.0**-24]), centres(2**17).float(), torch.tensor([1 - 2.0**-24])])
    draw = sampler.from_uniform(v, torch.zeros(len(v), 0), Tick(step=0))
    assert draw.log_prob.isfinite().all()
    assert draw.correction.isfinite().all()
    assert float(draw.correction[1:-1].double().mean()) == pytest.approx(1, abs=2e-3)
