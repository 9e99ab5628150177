"""What trainers' knobs draw and weight, transcribed from their formulas, against the names on our pages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from odds import assert_follows_masses
from torch import Tensor

import stepwell
from stepwell.core.density import edges
from stepwell.core.sampler import pmf

DRAWS = 40_000
T = 1000
BINS = 50
SD = stepwell.process("scaled-linear")
FLOW = stepwell.process("flow")


def uniforms(stream: int = 0) -> Tensor:
    return torch.rand(DRAWS, generator=torch.Generator().manual_seed(stream))


def normals() -> Tensor:
    return torch.randn(DRAWS, generator=torch.Generator().manual_seed(0))


def follows(noise: Tensor, name: str, process: Any = FLOW, **parameters: Any) -> None:
    """Draws on the scale of noise, 0 is data, against our sampler's masses: fails once in a million."""
    sampler = stepwell.sampler(name, process, **parameters)
    masses = sampler.masses(edges(BINS))
    assert_follows_masses((noise.double() * BINS).long().clamp(0, BINS - 1), masses)


def shifted(t: Tensor, shift: float) -> Tensor:
    return shift * t / (1 + (shift - 1) * t)


# kohya sd-scripts, library/flux_train_utils.py: sigma is the share of noise.


def test_kohya_uniform_and_sigmoid() -> None:
    follows(uniforms(), "uniform")
    follows(torch.sigmoid(0.7 * normals()), "logit-normal", sigmoid_scale=0.7)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 3.0), (0.5, 1.8)])
def test_kohya_shift(scale: float, shift: float) -> None:
    sigma = shifted(torch.sigmoid(scale * normals()), shift)
    follows(sigma, "logit-normal", sigmoid_scale=scale, discrete_flow_shift=shift)
    # A shift moves the logit by ln(shift), so that it is a mean as well.
    follows(sigma, "logit-normal", std=scale, mean=math.log(shift))


def test_kohya_flux_shift() -> None:
    mu = 0.5 + (1.15 - 0.5) * (64 * 64 - 256) / (4096 - 256)
    t = torch.sigmoid(normals())
    sigma = math.exp(mu) / (math.exp(mu) + (1 / t - 1))
    follows(sigma, "logit-normal", mean=mu)


def test_kohya_sigma_counts_from_the_noise() -> None:
    sigma = 1 - torch.sigmoid(0.5 + 0.8 * normals())
    follows(sigma, "logit-normal", mean=-0.5, std=0.8)
    v = uniforms()
    mode = 1 - v - 1.29 * (torch.cos(math.pi * v / 2) ** 2 - 1 + v)
    follows(1 - mode, "mode", mode_scale=1.29)


def test_kohya_min_and_max_timestep() -> None:
    drawn = torch.randint(200, 700, (DRAWS,), generator=torch.Generator().manual_seed(0))
    follows((drawn + 0.5) / T, "uniform", SD, min_timestep=200, max_timestep=700)


def test_a_logit_normal_objective_stays_what_it_was() -> None:
    # What the diffusers page gives a pacer that should keep weighting_scheme=logit_normal.
    process = stepwell.process("flow", shift=3.0, timesteps=T, reference="logit-normal")
    follows(torch.sigmoid(normals()), "reference", process)
    shift = stepwell.process_from(FlowMatchEulerDiscreteScheduler(shift=3.0))
    torch.testing.assert_close(process.sigma(process.grid()), shift.scales(process.grid())[1])


# OneTrainer, modules/modelSetup/mixin/ModelSetupNoiseMixin.py: timesteps, 0 is data.


def onetrainer(timestep: Tensor) -> Tensor:
    return (timestep.int() + 0.5) / T


def onetrainer_shifted(timestep: Tensor, shift: float) -> Tensor:
    return T * shift * timestep / ((shift - 1) * timestep + T)


def test_onetrainer_logit_normal() -> None:
    weight, bias = 0.4, -0.3
    drawn = torch.sigmoid(bias + (weight + 1) * normals())
    follows(onetrainer(drawn * T), "logit-normal", SD, mean=bias, std=weight + 1)
    follows(onetrainer(onetrainer_shifted(drawn * T, 2.5)), "logit-normal", SD, mean=bias, std=1.4, shift=2.5)


def test_onetrainer_heavy_tail_and_uniform() -> None:
    v = uniforms()
    follows(onetrainer(T * (1 - v - 0.8 * (torch.cos(math.pi / 2 * v) ** 2 - 1 + v))), "mode", SD, scale=0.8)
    follows(onetrainer(onetrainer_shifted(v * T, 3.0)), "uniform", SD, shift=3.0)


def test_onetrainer_noising_strengths() -> None:
    # Without a shift: theirs moves the limits of the range as well, ours does not.
    drawn = 200 + 600 * torch.sigmoid(normals())
    follows(onetrainer(drawn), "logit-normal", SD, min_timestep=200, max_timestep=800)


def discretised(weights: Tensor) -> Tensor:
    drawn = torch.multinomial(weights, DRAWS, True, generator=torch.Generator().manual_seed(0))
    return (drawn + 0.5) / T


def test_onetrainer_cos_map() -> None:
    x = torch.linspace(0, 1, T)
    follows(discretised(2 / (math.pi - 2 * math.pi * x + 2 * math.pi * x**2)), "cosmap", SD)


def test_onetrainer_sigmoid_and_inverted_parabola_are_tables() -> None:
    x, weight, bias = torch.linspace(0, 1, T), 6.0, 0.2
    sigmoid = 1 / (1 + torch.exp(-weight * (x - (bias + 0.5))))
    follows(discretised(sigmoid), "table", SD, masses=sigmoid.tolist())
    parabola = (-weight * (x - (bias + 0.5)) ** 2 + 2).clamp(min=0)
    follows(discretised(parabola), "table", SD, masses=parabola.tolist())


# ai-toolkit, jobs/process/BaseSDTrainProcess.py: places in a falling list, 0 is noise.


def test_ai_toolkit_content_and_style_are_betas() -> None:
    # v^3 has the density (1/3) x^(-2/3): Beta(1/3, 1), of places counted from the noise.
    place = uniforms() ** 3
    follows(1 - place, "beta", alpha=1.0, beta=1 / 3)
    follows(place, "beta", alpha=1 / 3, beta=1.0)


def test_ai_toolkit_sigmoid() -> None:
    follows(1 - torch.sigmoid(normals()), "logit-normal")


def test_ai_toolkit_shift_is_the_schedule() -> None:
    # Even places of a list of shifted sigmas: uniform draws on a flow with that shift.
    place = torch.linspace(1.0, 1 / T, T)[
        torch.randint(T, (DRAWS,), generator=torch.Generator().manual_seed(0))
    ]
    follows(shifted(place, 3.0), "uniform", shift=3.0)


# Weights on the loss that a network is trained with.


def weights(name: str, prediction: str, **parameters: Any) -> tuple[Tensor, Tensor]:
    process = stepwell.process("scaled-linear", prediction=prediction)
    u = process.grid()
    return stepwell.weighting(name, **parameters)(process, u), torch.exp(process.log_snr(u))


@pytest.mark.parametrize("prediction", ["eps", "v"])
def test_min_snr_gamma_of_all_three(prediction: str) -> None:
    ours, snr = weights("min-snr", prediction, gamma=5.0)
    theirs = snr.clamp(max=5.0) / (snr + (prediction == "v"))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


def test_ai_toolkits_two_gammas() -> None:
    ours, snr = weights("min-snr", "eps", gamma=5.0)
    torch.testing.assert_close(ours, (5.0 / snr).clamp(max=1), rtol=1e-5, atol=0)
    # Its snr_gamma has no minimum, and neither of the two is converted for v.
    assert float((5.0 / snr).max()) > 1000
    on_v, snr = weights("min-snr", "v", gamma=5.0)
    assert not torch.allclose(on_v, (5.0 / snr).clamp(max=1), rtol=0.1)


def test_debiased_estimation_on_eps_is_cut_at_snr_1000() -> None:
    ours, snr = weights("debiased", "eps")
    theirs = snr.clamp(max=1000).rsqrt()
    low = snr <= 1000
    torch.testing.assert_close(ours[low], theirs[low], rtol=1e-5, atol=0)
    assert (~low).sum() == 1
    assert float(theirs[0] / ours[0]) == pytest.approx(1.08, abs=0.01)


def test_debiased_estimation_on_v_is_not_ours() -> None:
    # OneTrainer: 1 / sqrt(SNR + 1) on v, kohya: 1 / (SNR + 1). Ours is 1 / sqrt(SNR) on eps, converted.
    ours, snr = weights("debiased", "v")
    torch.testing.assert_close(ours, snr.sqrt() / (snr + 1), rtol=1e-4, atol=0)
    assert not torch.allclose(ours, (snr.clamp(max=1000) + 1).rsqrt(), rtol=0.1)
    assert not torch.allclose(ours, 1 / (snr.clamp(max=1000) + 1), rtol=0.1)


def test_p2_of_onetrainer() -> None:
    ours, snr = weights("p2", "eps", gamma=0.7)
    torch.testing.assert_close(ours, (1 + snr) ** -0.7, rtol=1e-4, atol=0)
    on_v, snr = weights("p2", "v", gamma=1.0)
    # There, v adds 1 to the SNR: 1 / (2 + SNR). Ours converts: SNR / (1 + SNR)^2.
    torch.testing.assert_close(on_v, snr / (1 + snr) ** 2, rtol=1e-4, atol=0)


def test_kohyas_scaled_v_loss_is_the_loss_on_eps() -> None:
    _, snr = weights("none", "v")
    process = stepwell.process("scaled-linear", prediction="v")
    scale = snr.clamp(max=1000) / (snr.clamp(max=1000) + 1)
    torch.testing.assert_close(process.eps_factor(process.grid()), scale, rtol=1e-3, atol=0)


def test_masses_are_those_of_timesteps() -> None:
    # The pages print pmf as what to hand to torch.multinomial (diffusers' timestep_bias_strategy).
    sampler = stepwell.sampler("logit-normal", SD, mean=0.5)
    drawn = torch.multinomial(
        pmf(sampler, SD).float(), DRAWS, True, generator=torch.Generator().manual_seed(0)
    )
    follows((drawn + 0.5) / T, "logit-normal", SD, mean=0.5)
