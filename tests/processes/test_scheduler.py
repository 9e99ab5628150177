"""Processes read from real diffusers schedulers add the noise that these schedulers add."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
)

import stepwell
from stepwell.core.errors import UnknownName, Unsupported

DDPM_FAMILY = {
    "ddpm-linear": (DDPMScheduler, {"beta_schedule": "linear"}),
    "ddpm-scaled-linear": (DDPMScheduler, {"beta_schedule": "scaled_linear"}),
    "ddpm-cosine": (DDPMScheduler, {"beta_schedule": "squaredcos_cap_v2"}),
    "ddpm-v": (DDPMScheduler, {"prediction_type": "v_prediction"}),
    "ddpm-sample": (DDPMScheduler, {"prediction_type": "sample"}),
    "ddpm-zero-snr": (DDPMScheduler, {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}),
    "ddpm-of-100": (DDPMScheduler, {"num_train_timesteps": 100}),
    "ddim": (DDIMScheduler, {"beta_schedule": "scaled_linear"}),
}
FLOWS = {
    "shift-1": {"shift": 1.0},
    "shift-3": {"shift": 3.0},
    "dynamic": {"use_dynamic_shifting": True},
    "dynamic-and-shift": {"use_dynamic_shifting": True, "shift": 3.0},
    "of-100": {"num_train_timesteps": 100, "shift": 2.0},
}


def examples(count):
    return torch.randn(2, count, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("key", DDPM_FAMILY)
def test_ddpm_schedulers_add_the_same_noise_and_tell_the_same_time(key):
    kind, settings = DDPM_FAMILY[key]
    scheduler = kind(**settings)
    process = stepwell.process_from(scheduler)
    u = process.grid()
    x0, noise = examples(len(u))
    problem = process.corrupt(x0, noise, u)
    # Their sqrt(1 - abar) comes from a float32 abar: off by up to 5e-6 at t = 0, where it is 0.0064.
    theirs = scheduler.add_noise(x0, noise, torch.arange(len(u)))
    torch.testing.assert_close(problem.xt, theirs, rtol=0, atol=2e-5)
    assert torch.equal(problem.time, scheduler.timesteps.flip(0))


@pytest.mark.parametrize(
    ("said", "prediction"), [("epsilon", "eps"), ("v_prediction", "v"), ("sample", "x0")]
)
def test_schedulers_say_what_the_network_predicts(said, prediction):
    assert stepwell.process_from(DDPMScheduler(prediction_type=said)).prediction == prediction


def test_v_targets_are_diffusers_velocity():
    scheduler = DDPMScheduler(prediction_type="v_prediction")
    process = stepwell.process_from(scheduler)
    x0, noise = examples(1000)
    velocity = scheduler.get_velocity(x0, noise, torch.arange(1000))
    target = process.corrupt(x0, noise, process.grid()).target
    torch.testing.assert_close(target, velocity, rtol=0, atol=5e-6)


def test_a_given_prediction_overrides_the_schedulers():
    assert stepwell.process_from(DDPMScheduler(), prediction="v_prediction").prediction == "v"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("linear", "linear"), ("scaled_linear", "scaled-linear"), ("squaredcos_cap_v2", "cosine")],
)
def test_schedules_are_the_ones_of_our_names(theirs, ours):
    settings = {"beta_start": 0.00085, "beta_end": 0.012} if theirs == "scaled_linear" else {}
    found, named = (
        process.log_snr(process.grid())
        for process in (
            stepwell.process_from(DDPMScheduler(beta_schedule=theirs, **settings)),
            stepwell.process(ours),
        )
    )
    # Their betas are float32; that is all that is lost, also at t = 0, where their abar has three digits.
    torch.testing.assert_close(found[:-1], named[:-1], rtol=0, atol=2e-5)
    torch.testing.assert_close(found[-1], named[-1], rtol=0, atol=2e-4)


def test_zero_terminal_snr_survives_the_reading():
    process = stepwell.process_from(DDPMScheduler(rescale_betas_zero_snr=True))
    assert process.scales(process.grid())[0][-1] == 0


def test_euler_adds_the_same_noise_before_its_input_is_scaled():
    scheduler = EulerDiscreteScheduler()
    process = stepwell.process_from(scheduler)
    u = process.grid()
    x0, noise = examples(len(u))
    problem = process.corrupt(x0, noise, u)
    exploding = scheduler.add_noise(x0, noise, scheduler.timesteps.flip(0))
    sigma = scheduler.sigmas[:-1].flip(0)[:, None]
    torch.testing.assert_close(problem.input, exploding / torch.sqrt(sigma**2 + 1), rtol=0, atol=5e-6)
    assert torch.equal(problem.time.float(), scheduler.timesteps.flip(0))


@pytest.mark.parametrize("key", FLOWS)
def test_flow_schedulers_add_the_same_noise_and_tell_the_same_time(key):
    scheduler = FlowMatchEulerDiscreteScheduler(**FLOWS[key])
    process = stepwell.process_from(scheduler)
    u = process.grid()
    x0, noise = examples(len(u))
    problem = process.corrupt(x0, noise, u)
    # Their index 0 is pure noise, unit time 0 is data.
    theirs = scheduler.scale_noise(x0, scheduler.timesteps.flip(0), noise)
    torch.testing.assert_close(problem.xt, theirs, rtol=0, atol=2e-6)
    torch.testing.assert_close(problem.time.float(), scheduler.timesteps.flip(0), rtol=0, atol=2e-4)
    torch.testing.assert_close(problem.target, noise - x0)


def test_dynamic_shifting_leaves_the_process_unshifted():
    # There the shift depends on the image size and is applied per batch; `shift` in the config is unused.
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    assert stepwell.process_from(scheduler).shift == 1


def test_the_shift_inside_a_scheduler_is_known():
    process = stepwell.process_from(FlowMatchEulerDiscreteScheduler(shift=3.0))
    assert process.shift == 3
    with pytest.raises(Unsupported, match="already shifts"):
        stepwell.sampler("logit-normal", process, shift=3.0)


def test_a_scheduler_is_enough_to_build_a_sampler():
    sampler = stepwell.sampler("logit-normal", FlowMatchEulerDiscreteScheduler(shift=3.0))
    assert sampler.draw(torch.zeros(4, 3), stepwell.Tick()).u.shape == (4,)


@pytest.mark.parametrize(("steps", "said"), [(28, "set_timesteps was never called"), (999, "sigmas")])
def test_a_flow_scheduler_that_is_set_to_inference_steps_is_an_error(steps, said):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(steps)
    with pytest.raises(Unsupported, match=said):
        stepwell.process_from(scheduler)


def test_sigmas_that_were_shifted_twice_are_an_error():
    # set_timesteps shifts again what the constructor has shifted.
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(1000)
    with pytest.raises(Unsupported, match="not those of shift 3"):
        stepwell.process_from(scheduler)


def test_a_flow_on_ddpm_betas_is_an_error():
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    with pytest.raises(Unsupported, match="flow_shift"):
        stepwell.process_from(scheduler)


@pytest.mark.parametrize("foreign", [object(), None, 3, SimpleNamespace(sigmas=[1.0]), EDMEulerScheduler()])
def test_an_object_that_is_no_known_scheduler_is_an_error(foreign):
    with pytest.raises(Unsupported, match=type(foreign).__name__):
        stepwell.process_from(foreign)


def test_a_process_passes_through():
    process = stepwell.process("edm")
    assert stepwell.process_from(process) is process


def test_an_unknown_prediction_is_an_error():
    with pytest.raises(UnknownName, match="Known: eps, v, x0"):
        stepwell.process_from(DDPMScheduler(), prediction="score")


@pytest.mark.full
def test_reading_a_scheduler_imports_no_diffusers():
    script = """
import sys
from types import SimpleNamespace
import torch, stepwell
ddpm = SimpleNamespace(alphas_cumprod=torch.linspace(0.99, 0.01, 50), config=SimpleNamespace())
assert stepwell.process_from(ddpm).timesteps == 50
flow = SimpleNamespace(
    sigmas=torch.arange(50, 0, -1) / 50, config=SimpleNamespace(shift=1.0, num_train_timesteps=50)
)
assert stepwell.process_from(flow).timesteps == 50
assert "diffusers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
