"""What the Beta policy asks for by default, as the paper has it and as the official code has it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from samplers.beta_policy.policy_updates import LINEAR, decrease, noise, told, update

import stepwell
from stepwell.catalogue.find import find
from stepwell.core.density import edges
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.core.feedback import DecreaseSignal, GradientSignal
from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.sampler import beta_policy


def test_the_default_follows_the_paper() -> None:
    spec = decrease(beta_policy(LINEAR))
    assert (spec.every_steps, spec.target, len(spec.grid)) == (40, "vlb", 50)
    assert not spec.fresh_noise
    assert not spec.train_mode
    assert [round(u * 1000 - 0.5) for u in spec.grid] == list(range(10, 1000, 20))
    assert set(spec.subset) <= set(spec.grid)
    assert spec.subset == pytest.approx([0.1705, 0.5105, 0.8305])


def test_as_published_follows_the_official_code() -> None:
    sampler = beta_policy(LINEAR, as_published=True)
    spec = decrease(sampler)
    assert spec.subset == (0.0005, 0.0015, 0.0025)
    assert spec.grid == pytest.approx((torch.arange(1000) + 0.5).div(1000).tolist())
    assert spec.fresh_noise
    assert spec.train_mode
    weight = stepwell.weighting(str(spec.target))(LINEAR, LINEAR.grid())
    plain = stepwell.weighting("vlb", cap=None)(LINEAR, LINEAR.grid())
    assert float(weight[0]) == pytest.approx(0.916987, rel=1e-5)
    assert torch.equal(weight[1:], plain[1:])
    bits = {0: 1.32293203, 1: 0.39341152, 100: 0.01442151, 500: 0.00794887, 999: 0.01472197}
    for timestep, published in bits.items():
        assert float(weight[timestep]) / math.log(2) == pytest.approx(published, rel=1e-6)
    masses = sampler.masses(edges(1000))
    assert masses[[0, 1, 500]].tolist() == pytest.approx([5.93915e-4, 1.13784e-3, 9.84969e-4], rel=1e-4)


LDM = {"beta_start": 0.0015, "beta_end": 0.0195}
"""LDM's schedule for CelebA-HQ (Rombach et al. 2022): its `linear` is a line in the roots."""
RATES: dict[str, tuple[str, dict[str, Any], float]] = {
    "Table 7, linear": ("linear", {}, 1e-2),
    "Table 7, quadratic": ("quadratic", {}, 1e-2),
    "Table 7, cosine": ("cosine", {}, 1e-3),
    "Table 8, CelebA-HQ": ("scaled-linear", LDM, 1e-3),
    "Table 9, ImageNet": ("cosine", {"prediction": "v"}, 1e-3),
    "linear of fewer timesteps": ("linear", {"timesteps": 250}, 1e-2),
    "not in the paper: another line": ("linear", {"beta_end": 0.01}, 1e-3),
    "not in the paper: Stable Diffusion": ("scaled-linear", {}, 1e-3),
    "not in the paper: vp": ("vp", {}, 1e-3),
    "not in the paper: flow": ("flow", {}, 1e-3),
    "not in the paper: edm": ("edm", {}, 1e-3),
}


@pytest.mark.parametrize(("name", "given", "rate"), RATES.values(), ids=list(RATES))
def test_the_learning_rate_is_the_papers_for_the_schedule(
    name: str, given: dict[str, Any], rate: float
) -> None:
    # Adam's first step has the length of the learning rate, whatever the gradient.
    sampler, x0 = beta_policy(stepwell.process(name, **given), conditional=False), torch.zeros(64, 1)
    before = sampler.state_dict()["shapes"][0, 0]
    metrics = update(sampler, 1, x0, lambda x, u: u)
    moved = sampler.state_dict()["policy"]["any"]["weights"]["numbers"]
    assert moved.abs().tolist() == pytest.approx([rate, rate], rel=1e-3)
    assert float(before) == pytest.approx(0.974087, rel=1e-5)
    assert f"learning_rate={rate:g}" in repr(sampler)
    assert float(metrics["policy_learning_rate"]) == pytest.approx(rate)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_credit_by_alignment_learns_at_its_own_rate_as_the_catalogue_says(name: str) -> None:
    sampler = stepwell.sampler("beta-policy", name, credit="alignment")
    assert "learning_rate=0.01" in repr(sampler)
    (said,) = (p.meaning for p in find("sampler", "beta-policy").parameters if p.name == "learning_rate")
    assert "1e-2 for alignment" in said
    assert "learning_rate=0.003" in repr(beta_policy(LINEAR, learning_rate=0.003, credit="alignment"))


def test_few_timesteps_and_continuous_time_have_a_grid() -> None:
    assert len(decrease(beta_policy(stepwell.process("linear", timesteps=10))).grid) == 10
    assert len(decrease(beta_policy(stepwell.process("flow"))).grid) == 50
    assert len(decrease(beta_policy(LINEAR, subset="all")).subset) == 1000
    assert decrease(beta_policy(LINEAR, subset="all")).grid == ()


def test_paper_follows_the_paper() -> None:
    sampler = beta_policy(LINEAR, paper=True)
    spec = decrease(sampler)
    assert (spec.every_steps, len(spec.grid), len(spec.subset)) == (40, 1000, 3)
    assert (spec.late, spec.earlier_example, spec.squared_norm) == (True, True, True)
    assert not spec.fresh_noise
    assert not spec.train_mode
    for name in ("linear", "cosine"):
        process = stepwell.process(name)
        beta, kept = process.betas(), process.alphas_cumprod()
        # Eq. 7 with sigma^2 = beta and no cap: beta^2 / (2 sigma^2 alpha (1 - abar)).
        wanted = beta**2 / (2 * beta * (1 - beta) * (1 - kept))
        weight = stepwell.weighting(str(spec.target))(process, process.grid())
        assert torch.allclose(weight, wanted, rtol=1e-6)
    # No share of uniform draws and no bounds of the shapes.
    x0 = noise(64, 6)
    for number in range(60):
        update(sampler, number, x0, lambda x, u: 100 * (u < 0.05).float())
    sampler.draw(x0, Tick())
    assert sampler.density(torch.tensor([0.9])) < 1e-3


@pytest.mark.parametrize(
    ("parameters", "error", "said"),
    [
        ({"credit": "luck"}, UnknownName, "alignment"),
        ({"credit": "alignment", "paper": True}, InvalidParameter, "leave out credit"),
        ({"as_published": True, "paper": True}, InvalidParameter, "one of them"),
        ({"credit": "alignment", "as_published": True}, InvalidParameter, "leave out credit"),
        ({"subset": "some"}, InvalidParameter, '"all"'),
        ({"subset": 60}, InvalidParameter, "grid of 50"),
        ({"subset": 0}, InvalidParameter, "subset"),
        ({"queue": 2}, InvalidParameter, "queue"),
        ({"selection": "best"}, UnknownName, "forward"),
        ({"grid": 0}, InvalidParameter, "grid"),
        ({"floor": 1.5}, InvalidParameter, "floor"),
        ({"entropy": -1}, InvalidParameter, "entropy"),
        ({"learning_rate": 0}, InvalidParameter, "learning_rate"),
        ({"clip": 0}, InvalidParameter, "clip"),
        ({"hidden": 0}, InvalidParameter, "hidden"),
        ({"every_steps": 0}, InvalidParameter, "every_steps"),
    ],
)
def test_parameters_that_cannot_work_are_refused(
    parameters: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        beta_policy(LINEAR, **parameters)


@pytest.mark.parametrize("rules", ["as_published", "paper"])
def test_counting_needs_timesteps(rules: str) -> None:
    with pytest.raises(Unsupported, match=f"{rules} counts discrete timesteps, and .* is continuous"):
        beta_policy(stepwell.process("flow"), **{rules: True})


def test_signals_of_another_kind_or_shape_are_refused() -> None:
    sampler = beta_policy(LINEAR)
    with pytest.raises(Unsupported, match="decrease"):
        sampler.learn(told(Tick(), None, GradientSignal(0, torch.zeros(2, 4), 16)))
    with pytest.raises(InvalidParameter, match="50 and 3 times"):
        sampler.learn(told(Tick(), None, DecreaseSignal(torch.zeros(49), torch.zeros(4, 3))))
