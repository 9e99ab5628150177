"""The algebra that all processes share: noise in, x0 out, and one loss seen as another."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import OF_FLOWS

import stepwell
from stepwell.catalogue.find import WEIGHTINGS
from stepwell.core.errors import UnknownName
from stepwell.core.prediction import MIXES, SPELLINGS, convert

DISCRETE = ("linear", "cosine", "quadratic", "scaled-linear")
EVERY_PROCESS = {
    **{f"{n}-{p}": (n, {"prediction": p}) for n, p in itertools.product(DISCRETE, ("eps", "v", "x0"))},
    **{f"flow-{p}": ("flow", {"prediction": p}) for p in ("velocity", "eps", "x0")},
    "flow-shifted": ("flow", {"shift": 3.0}),
    "flow-discrete": ("flow", {"timesteps": 1000}),
    "edm": ("edm", {}),
    **{f"vp-{p}": ("vp", {"prediction": p}) for p in ("eps", "v", "x0")},
    **{f"ve-{p}": ("ve", {"prediction": p}) for p in ("eps", "x0")},
}
TIMES = (0.001, 0.37, 0.97)
SHAPES = ((3,), (3, 8), (3, 3, 4, 4), (3, 2, 3, 4, 4))

every_process = pytest.mark.parametrize("key", EVERY_PROCESS)


def build(key):
    name, parameters = EVERY_PROCESS[key]
    return stepwell.process(name, **parameters)


def normal(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def examples(shape):
    return normal(shape, 0), normal(shape, 1), torch.tensor(TIMES, dtype=torch.float64)


@every_process
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_recover_undoes_corrupt(key, shape):
    process = build(key)
    x0, noise, u = examples(shape)
    problem = process.corrupt(x0, noise, u)
    torch.testing.assert_close(process.recover(problem.target, problem.xt, u), x0, rtol=0, atol=1e-11)


@every_process
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_corrupt_mixes_each_example_by_its_own_time(key, shape):
    process = build(key)
    x0, noise, u = examples(shape)
    problem = process.corrupt(x0, noise, u)
    for i in range(len(u)):
        a, s = (float(scale) for scale in process.scales(u[i]))
        p, q = (float(part) for part in process.target_mix(u[i]))
        torch.testing.assert_close(problem.xt[i], a * x0[i] + s * noise[i])
        torch.testing.assert_close(problem.target[i], p * x0[i] + q * noise[i])
        torch.testing.assert_close(problem.input[i], float(process.input_scale(u[i])) * problem.xt[i])
        assert problem.time[i] == process.time(u[i])


@every_process
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_corrupt_and_recover_keep_the_dtype_of_the_examples(key, dtype):
    process = build(key)
    x0, noise, u = examples((3, 2, 4))
    exact = process.corrupt(x0.to(dtype).double(), noise.to(dtype).double(), u.float())
    problem = process.corrupt(x0.to(dtype), noise.to(dtype), u.float())
    back = process.recover(problem.target, problem.xt, u.float())
    assert problem.input.dtype == problem.target.dtype == problem.xt.dtype == back.dtype == dtype
    # Computed in float32 and rounded once, so one rounding is all that may be lost (input: two).
    unit = torch.finfo(dtype).eps
    for name, roundings in (("xt", 1), ("target", 1), ("input", 2)):
        found, wanted = getattr(problem, name).double(), getattr(exact, name)
        torch.testing.assert_close(found, wanted, rtol=roundings * unit, atol=1e-5)


@every_process
def test_eps_factor_is_the_ratio_of_the_errors(key):
    process = build(key)
    x0, noise, u = examples((3, 16))
    problem = process.corrupt(x0, noise, u)
    mistake = 1e-3 * normal((3, 16), 2)
    guess = process.recover(problem.target + mistake, problem.xt, u)
    a, s = (scale[:, None] for scale in process.scales(u))
    eps_error = (((problem.xt - a * guess) / s - noise) ** 2).mean(1)
    ratio = eps_error / (mistake**2).mean(1)
    torch.testing.assert_close(process.eps_factor(u), ratio, rtol=1e-6, atol=0)


@every_process
def test_eps_factor_is_what_each_prediction_says(key):
    process = build(key)
    u = torch.linspace(0.01, 0.98, 50, dtype=torch.float64)
    snr = process.log_snr(u).exp()
    a, s = process.scales(u)
    said = {
        "eps": torch.ones_like(u),
        "x0": snr,
        "v": snr / (1 + snr),
        "velocity": (a / (a + s)) ** 2,
        # EDM's F: c_out^2 / sigma^2 with sigma_data 1/2.
        "F": 0.25 / (s**2 + 0.25),
    }
    torch.testing.assert_close(process.eps_factor(u), said[process.prediction])


@pytest.mark.parametrize("name", ["linear", "cosine", "flow"])
@pytest.mark.parametrize(("source", "target"), list(itertools.product(MIXES, MIXES)))
def test_convert_between_predictions_and_back(name, source, target):
    x0, noise, u = examples((3, 2, 3))
    a, s = (scale[:, None, None] for scale in stepwell.process(name).scales(u))
    xt = a * x0 + s * noise

    def said(prediction):
        p, q = MIXES[prediction](a, s)
        return p * x0 + q * noise

    scales = stepwell.process(name).scales(u)
    there = convert(said(source), xt, scales, source, target)
    torch.testing.assert_close(there, said(target), rtol=0, atol=1e-11)
    back = convert(there, xt, scales, target, source)
    torch.testing.assert_close(back, said(source), rtol=0, atol=1e-9)


def test_convert_takes_other_tools_spellings():
    x0, noise, u = examples((3, 2))
    scales = stepwell.process("linear").scales(u)
    for theirs, ours in SPELLINGS.items():
        one = convert(noise, x0, scales, theirs, "x0")
        assert torch.equal(one, convert(noise, x0, scales, ours, "x0"))


def test_convert_keeps_the_dtype():
    x0, noise, u = examples((3, 2))
    scales = stepwell.process("linear").scales(u.float())
    assert convert(noise.bfloat16(), x0.bfloat16(), scales, "eps", "v").dtype == torch.bfloat16


def test_convert_of_v_is_defined_where_no_signal_is_left():
    v, xt, none = torch.ones(2, 3), torch.randn(2, 3), torch.zeros(2)
    assert torch.equal(convert(v, xt, (none, 1 - none), "v", "x0"), -v)


@pytest.mark.parametrize(("name", "prediction"), [("linear", "velocity"), ("flow", "v"), ("cosine", "noise")])
def test_a_prediction_that_a_process_does_not_have_is_an_error(name, prediction):
    with pytest.raises(UnknownName, match="Known: "):
        stepwell.process(name, prediction=prediction)


STATED_ON_EPS = [e.name for e in WEIGHTINGS if not e.learns and e.name not in ("none", *OF_FLOWS)]


@pytest.mark.parametrize("prediction", ["v", "x0"])
@pytest.mark.parametrize("name", STATED_ON_EPS)
def test_a_weighting_is_stated_on_eps_and_converted_to_what_is_predicted(name, prediction):
    over = "vp" if name == "likelihood" else "linear"
    eps, other = stepwell.process(over), stepwell.process(over, prediction=prediction)
    u, weighting = eps.grid(), stepwell.weighting(name)
    torch.testing.assert_close(weighting(other, u), weighting(eps, u) * other.eps_factor(u))
