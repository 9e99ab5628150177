"""Samplers that change over the optimizer's steps."""

from __future__ import annotations

import pytest
import torch
from synthetic import teach

import stepwell
from stepwell.core.errors import InvalidParameter, StepwellError, Unsupported

U = torch.linspace(0.05, 0.95, 19)
X0 = torch.zeros(256, 1, 2, 2)


def staged(text: str, process: str = "flow", **more: object) -> stepwell.TimestepSampler:
    return stepwell.sampler("over-steps", process, stages=text, **more)


def at(sampler: stepwell.TimestepSampler, step: int) -> stepwell.TimestepSampler:
    sampler.draw(X0, stepwell.Tick(step=step))
    return sampler


def test_each_stage_draws_from_its_step_on() -> None:
    sampler = staged("[0 uniform; 10 logit-normal:mean=1,std=0.5; 20 uniform:within=(0.2, 0.6)]")
    middle = stepwell.sampler("logit-normal", "flow", mean=1, std=0.5)
    for step, wanted in ((0, torch.ones_like(U)), (9, torch.ones_like(U)), (10, middle.density(U))):
        torch.testing.assert_close(at(sampler, step).density(U), wanted)
    tick = stepwell.Tick(step=15)
    assert torch.equal(sampler.draw(X0, tick).u, middle.draw(X0, tick).u)
    drawn = sampler.draw(X0, stepwell.Tick(step=25)).u
    assert float(drawn.min()) >= 0.2 and float(drawn.max()) < 0.6


def test_a_linear_blend_moves_from_one_density_to_the_next() -> None:
    sampler = staged("[0 uniform; 100 jit]", blend="linear")
    end = stepwell.sampler("jit", "flow").density(U)
    for step in (0, 25, 50, 100, 500):
        share = min(step / 100, 1)
        torch.testing.assert_close(at(sampler, step).density(U), (1 - share) + share * end)
    drawn = sampler.draw(torch.zeros(20_000, 1, 2, 2), stepwell.Tick(step=50))
    torch.testing.assert_close(drawn.log_prob.exp(), sampler.density(drawn.u))
    # Half of the draws are uniform: below 0.1 jit has next to none. Five standard deviations.
    assert float((drawn.u < 0.1).float().mean()) == pytest.approx(0.05, abs=0.008)


def test_a_stage_that_learns_learns_before_its_turn() -> None:
    sampler = teach(staged("[0 uniform; 1000 loss-root]", "linear"))
    before, after = at(sampler, 0).density(U), at(sampler, 1000).density(U)
    torch.testing.assert_close(before, torch.ones_like(U))
    assert not torch.allclose(after, before, atol=0.05)
    assert sampler.reference is not None, "uniform is linear's own density: the objective is one"


def test_it_resumes_exactly() -> None:
    one = teach(staged("[0 uniform; 10 loss-root; 20 auto]", "linear"))
    at(one, 12)
    other = staged("[0 uniform; 10 loss-root; 20 auto]", "linear")
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.density(U), other.density(U))
    for step in (13, 21):
        tick = stepwell.Tick(step=step)
        assert torch.equal(one.draw(X0, tick).u, other.draw(X0, tick).u)
    with pytest.raises(StepwellError, match="over_steps"):
        staged("[0 uniform; 11 loss-root; 20 auto]", "linear").load_state_dict(one.state_dict())


def test_a_pacer_draws_stages_by_its_own_count() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    sampler = staged("[0 uniform:within=(0, 0.5); 3 uniform:within=(0.5, 1)]")
    pacer = stepwell.Pacer(sampler, "flow").attach(optimizer)
    halves = []
    for _ in range(5):
        pace = pacer.draw(X0)
        pacer.observe((parameter - pace.u).square())
        parameter.sum().backward()
        optimizer.step()
        halves.append(bool((pace.u >= 0.5).all()))
    assert halves == [False, False, False, True, True]


def test_samplers_and_tables_are_stages_too() -> None:
    built = stepwell.over_steps({0: stepwell.sampler("uniform", "flow"), 5: stepwell.sampler("jit", "flow")})
    named = stepwell.sampler("over-steps", "flow", stages={"0": "uniform", "5": "jit"})
    assert torch.equal(at(built, 6).density(U), at(named, 6).density(U))


@pytest.mark.parametrize(
    ("stages", "more", "error", "said"),
    [
        ("[5 uniform]", {}, InvalidParameter, "begins at step 5"),
        ("[0 uniform; 9]", {}, InvalidParameter, "'9' is no stage"),
        ("[0 uniform; 0 jit]", {}, InvalidParameter, "step 0 has two samplers"),
        ("[0 uniform; -1 jit]", {}, InvalidParameter, "the step of a stage"),
        (7, {}, InvalidParameter, "stages must be written"),
        ({}, {}, InvalidParameter, "needs stages"),
        ("[0 uniform]", {"blend": "smooth"}, StepwellError, "'smooth' is not a known blend"),
        ("[0 uniform; 9 auto]", {"blend": "linear"}, Unsupported, "corrections would then be wrong"),
        ("[0 jit; 9 auto]", {}, Unsupported, "the stage at step 0 changes the objective"),
        ("[0 neyman; 9 alignment:unbiased=true]", {}, Unsupported, "two stages measure gradients"),
    ],
)
def test_what_cannot_be_a_plan_is_told(
    stages: object, more: dict[str, object], error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        stepwell.sampler("over-steps", "flow", stages=stages, **more)
