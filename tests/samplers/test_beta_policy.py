"""The Beta policy: the paper's equations by hand, the official code by transcription, and that it learns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from accelerator import DEVICE, Copies, accelerator
from cases import case
from odds import assert_uniform
from torch import Tensor

import stepwell
from stepwell.bound import step_kl
from stepwell.catalogue.find import find
from stepwell.core.density import Uniform, edges
from stepwell.core.errors import InvalidParameter, StateMismatch, UnknownName, Unsupported
from stepwell.core.feedback import DecreaseSignal, Feedback, GradientSignal
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.core.sampler import Metrics, TimestepSampler
from stepwell.core.tick import Tick
from stepwell.pacer import Pacer
from stepwell.samplers.beta_policy.alignment import MIN_MEASUREMENTS, SignificantGains
from stepwell.samplers.beta_policy.beta import BetaTable, beta_entropy, beta_log_density
from stepwell.samplers.beta_policy.decrease import select
from stepwell.samplers.beta_policy.policy import PolicyNetwork
from stepwell.samplers.beta_policy.rewards import CORRECTED, PUBLISHED, Rules, advantage
from stepwell.samplers.beta_policy.sampler import beta_policy
from stepwell.samplers.one_density import Static

LINEAR = stepwell.process("linear")
SEED = 5
Reward = Callable[[Tensor, Tensor], Tensor]
"""(x0 [B, ...], u [B]) -> rewards [B]."""


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def decrease(sampler: TimestepSampler) -> DecreaseSpec:
    spec = sampler.probe
    assert isinstance(spec, DecreaseSpec)
    return spec


def due(sampler: TimestepSampler, number: int = 0) -> Tick:
    """The tick of a step at which something is measured, counted from 0."""
    spec = sampler.probe
    assert spec is not None
    return Tick(SEED, step=_due_steps(spec)[number])


@cache
def _due_steps(spec: ProbeSpec) -> list[int]:
    return [step for step in range(10_000) if spec.due(step)]


def told(tick: Tick, action: Tensor | None, signal: Any) -> Feedback:
    nothing = torch.zeros(4)
    return Feedback(tick, nothing, nothing, nothing, action, signal)


def update(
    sampler: TimestepSampler, number: int, x0: Tensor, reward: Reward, row: Tensor | None = None
) -> Metrics:
    """One policy update from what each draw of a batch earns."""
    spec = decrease(sampler)
    tick = due(sampler, number)
    drawn = sampler.draw(x0, tick)
    row = noise(len(spec.grid), seed=number) if row is None else row
    each = reward(x0, drawn.u)[:, None]
    rewards = each.expand(-1, 0 if spec.late else len(spec.subset))
    signal = DecreaseSignal(row, rewards, lambda times: each.expand(-1, len(times)))
    return sampler.learn(told(tick, drawn.action, signal))


def constant(x0: Tensor, u: Tensor) -> Tensor:
    return torch.ones_like(u)


# What is asked for


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


# The equations


def test_rewards_over_the_subset() -> None:
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, -3.0, 0.0]])
    assert CORRECTED.reward(rewards).tolist() == [3, -1]
    assert PUBLISHED.reward(rewards).tolist() == pytest.approx([9 / math.log(2), -3 / math.log(2)])


def test_the_advantage_by_hand() -> None:
    # Mean 3, deviations -2, 0, 2: standard deviation sqrt(8 / 3).
    assert advantage(torch.tensor([1.0, 3.0, 5.0])).tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert advantage(torch.tensor([2.0, 2.0])).tolist() == [0, 0]
    with_bad = torch.tensor([1.0, math.nan, 3.0, math.inf, 5.0])
    assert advantage(with_bad).tolist() == pytest.approx([-(1.5**0.5), 0, 0, 0, 1.5**0.5])
    small = advantage(torch.tensor([1e-9, 3e-9, 5e-9]))
    assert small.tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5], rel=1e-3)


def test_the_corrected_loss_by_hand() -> None:
    log_prob, entropy = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([-0.1, -0.2, -0.6])
    loss = CORRECTED.loss(log_prob, entropy, torch.tensor([1.0, 3.0, 5.0]), 0.01)
    assert float(loss.mean()) == pytest.approx(-(1.5**0.5) * 1.5 / 3 + 0.01 * 0.3)


def test_the_published_loss_by_hand() -> None:
    log_prob, entropy = torch.tensor([0.5, -1.0]), torch.tensor([-0.1, -0.2])
    loss = PUBLISHED.loss(log_prob, entropy, torch.tensor([1.0, 3.0]), 0.01)
    assert float(loss.mean()) == pytest.approx(-(0.5 * 0.999 - 2.998) / 2)


def test_the_papers_reinforce_without_a_baseline_is_an_option() -> None:
    rules = replace(CORRECTED, advantage=False)
    loss = rules.loss(torch.tensor([0.5, -1.0]), torch.tensor([-0.1, -0.3]), torch.tensor([1.0, 3.0]), 0.01)
    assert float(loss.mean()) == pytest.approx(2.5 / 2 + 0.01 * 0.2)


def test_the_density_is_that_of_torchs_beta() -> None:
    shapes, x = 0.3 + 5 * Tick().uniform("shapes", 20).view(10, 2), Tick(step=1).uniform("x", 10)
    expected = torch.distributions.Beta(*shapes.unbind(1)).log_prob(x)
    assert torch.allclose(beta_log_density(shapes, x), expected, atol=1e-5)
    assert beta_log_density(shapes, torch.zeros(10)).isfinite().all()
    assert beta_log_density(shapes, torch.ones(10)).isfinite().all()


def entropy_force(rules: Rules, pair: tuple[float, float], weight: float) -> Tensor:
    """The expected gradient of the loss with respect to the shapes when all rewards are 0."""
    shapes = torch.tensor([pair], dtype=torch.float64).requires_grad_()
    table = BetaTable(20_000, Uniform())
    middles, masses = (table.inner[1:] + table.inner[:-1]) / 2, table.masses(shapes)[0].detach()
    log_prob = beta_log_density(shapes.expand(len(middles), 2), middles)
    entropy = beta_entropy(shapes)
    # An expectation over draws: the mean of the loss, with each draw as often as it comes.
    each = torch.stack(
        [
            rules.loss(log_prob[k : k + 1], entropy, torch.zeros(1, dtype=torch.float64), weight) * masses[k]
            for k in range(0, len(middles), 20)
        ]
    )
    (gradient,) = torch.autograd.grad(each.sum() / masses[::20].sum(), shapes)
    return gradient[0]


@pytest.mark.parametrize("pair", [(0.8, 1.2), (2.0, 5.0), (12.0, 3.0)])
def test_the_entropy_bonus_pushes_with_its_weight(pair: tuple[float, float]) -> None:
    shapes = torch.tensor([pair], dtype=torch.float64).requires_grad_()
    (towards,) = torch.autograd.grad(beta_entropy(shapes).sum(), shapes)
    assert torch.allclose(entropy_force(CORRECTED, pair, 0.01), -0.01 * towards[0], rtol=1e-6)


def test_the_published_entropy_term_pushes_too_little() -> None:
    # Its expected force is |H| times the intended one: 0.07 of it for Beta(0.8, 1.2).
    pair = (2.0, 5.0)
    shapes = torch.tensor([pair], dtype=torch.float64)
    published, intended = entropy_force(PUBLISHED, pair, 0.01), entropy_force(CORRECTED, pair, 0.01)
    assert torch.allclose(published, -beta_entropy(shapes) * intended, rtol=0.02)
    mild = torch.tensor([(0.8, 1.2)], dtype=torch.float64)
    assert float(-beta_entropy(mild)) == pytest.approx(0.07, abs=0.005)


def test_one_update_as_published_is_the_transcription_of_the_official_code() -> None:
    sampler, x0 = beta_policy(LINEAR, as_published=True), noise(8, 3, 32, 32)
    network = PolicyNetwork(3, 2, 256, SEED, torch.device("cpu"))
    reference = torch.optim.Adam(network.parameters(), lr=1e-2)
    for number in range(3):
        tick = due(sampler, number)
        drawn = sampler.draw(x0, tick)
        assert drawn.action is not None
        u = drawn.action[:, -1]
        timestep = (drawn.u.double() * 1000).long()
        assert torch.equal(timestep, torch.round(u.double() * 999).long())
        rewards, row = noise(8, 3, seed=number) / 100, noise(1000, seed=number)
        sampler.learn(told(tick, drawn.action, DecreaseSignal(row, rewards)))

        ab = torch.nn.functional.softplus(network(x0)) + 1e-5
        beta = torch.distributions.Beta(ab[:, 0], ab[:, 1])
        reward = rewards.sum(1) / math.log(2) + 1e-2 * beta.entropy()
        loss = -(beta.log_prob(u) * reward).mean()
        reference.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        reference.step()
    weights = sampler.state_dict()["policy"]["3/2"]["weights"]
    for name, parameter in network.named_parameters():
        assert torch.allclose(weights[name], parameter, atol=2e-4), name
    moved = weights["linear.2.weight"].abs().max()
    assert moved > 0.005, "three steps of 1e-2 were taken"


def test_the_reward_as_published_is_the_fall_of_the_kl_in_bits() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    kls: list[tuple[Tensor, Tensor]] = []

    def loss_at(x0: Tensor, eps: Tensor, u: Tensor, condition: None) -> Tensor:
        problem = LINEAR.corrupt(x0, eps, u)
        output = model(problem.input)
        nats = step_kl(LINEAR, x0, problem.xt, output, u, "fixed-large")
        kls.append((u, nats.detach() / 4 / math.log(2)))
        return (output - problem.target).square().mean(1)

    sampler = beta_policy(LINEAR, as_published=True, every_steps=1)
    heard: list[Feedback] = []
    learn = sampler.learn
    sampler.learn = lambda feedback: heard.append(feedback) or learn(feedback)  # type: ignore[method-assign]
    pacer = Pacer(sampler, LINEAR, loss_at=loss_at, optimizer=optimizer, network=model)
    x0 = noise(6, 4)
    pace = pacer.draw(x0, Tick())
    loss_at(x0, noise(6, 4, seed=1), pace.u, None).mean().backward()
    kls.clear()
    pacer.before_update()
    optimizer.step()
    pacer.after_update()
    signal = heard[0].signal
    assert isinstance(signal, DecreaseSignal)
    # The whole batch at one time is a measurement at S, before and then after the update.
    at = {
        time: [kl for u, kl in kls if (u == u[0]).all() and float(u[0]) == pytest.approx(time)]
        for time in (0.0005, 0.0015, 0.0025)
    }
    assert all(len(found) == 2 for found in at.values())
    expected = sum(before - after for before, after in at.values())
    assert torch.allclose(PUBLISHED.reward(signal.rewards.double()), expected, rtol=1e-3, atol=1e-6)


def test_one_corrected_update_is_its_formula() -> None:
    sampler, x0, table = beta_policy(LINEAR), noise(16, 5), BetaTable(1000, Uniform(), 0.1)
    network = PolicyNetwork(5, 0, 128, SEED, torch.device("cpu"))
    reference, tick = torch.optim.Adam(network.parameters(), lr=1e-2), due(sampler)
    drawn = sampler.draw(x0, tick)
    rewards = noise(16, 3, seed=2) * 1e-4
    sampler.learn(told(tick, drawn.action, DecreaseSignal(noise(50), rewards)))
    ab = torch.nn.functional.softplus(network(x0)) + 1e-5
    reward = rewards.mean(1)
    scaled = (reward - reward.mean()) / reward.std(correction=0)
    height = table.masses(ab).gather(1, (drawn.u.double() * 1000).long()[:, None])[:, 0] * 1000
    assert torch.allclose(height.log(), drawn.log_prob, atol=1e-4)
    loss = -(scaled * height.log()).mean() - 1e-2 * torch.distributions.Beta(*ab.unbind(1)).entropy().mean()
    loss.backward()
    reference.step()
    weights = sampler.state_dict()["policy"]["5/0"]["weights"]
    assert torch.allclose(weights["linear.2.weight"], network.linear[2].weight, atol=1e-5)
    assert weights["linear.2.weight"].abs().max() > 0.009


# The queue and the subset


def queue(sampler: TimestepSampler) -> Tensor:
    found: Tensor = sampler.state_dict()["credit"]["queue"]
    return found


def test_the_queue_keeps_the_last_twenty_rows_in_order() -> None:
    sampler, x0 = beta_policy(LINEAR), torch.zeros(4, 1)
    rows = [noise(50, seed=number) for number in range(25)]
    for number, row in enumerate(rows):
        update(sampler, number, x0, constant, row)
        assert torch.equal(queue(sampler), torch.stack(rows[max(0, number - 19) : number + 1]))


@pytest.mark.parametrize("selection", ["f", "forward", "random", "grid"])
def test_the_subset_is_what_selection_says_from_the_third_row_on(selection: str) -> None:
    sampler, x0 = beta_policy(LINEAR, selection=selection, subset=4, queue=5), torch.zeros(4, 1)
    first = decrease(sampler).subset
    for number in range(9):
        update(sampler, number, x0, constant)
        rows = queue(sampler)
        if number < 2:
            assert decrease(sampler).subset == first
            continue
        key = due(sampler, number).key("subset")
        chosen = select(rows, rows.sum(1) * 20, 4, selection, key)
        grid = decrease(sampler).grid
        assert decrease(sampler).subset == tuple(grid[index] for index in chosen.tolist())
    assert (decrease(sampler).subset == first) is (selection == "grid")
    assert sampler.diagnostics()["subset"].tolist() == pytest.approx(decrease(sampler).subset)


def test_rewards_are_read_at_the_subset_that_was_measured() -> None:
    # The S chosen in an update is for the next one: |S| stays, so only the times tell.
    sampler, x0 = beta_policy(LINEAR), torch.zeros(4, 1)
    seen = []
    for number in range(5):
        seen.append(decrease(sampler).subset)
        update(sampler, number, x0, constant)
    assert len(set(seen[:3])) == 1
    assert len(set(seen)) > 1


def test_as_published_the_second_update_chooses_from_two_rows() -> None:
    sampler, x0 = beta_policy(LINEAR, as_published=True), torch.zeros(4, 1)
    update(sampler, 0, x0, constant)
    assert decrease(sampler).subset == (0.0005, 0.0015, 0.0025)
    update(sampler, 1, x0, constant)
    assert decrease(sampler).subset == pytest.approx((0.9975, 0.9985, 0.9995))


def test_all_timesteps_need_no_choice() -> None:
    sampler, x0 = beta_policy(LINEAR, subset="all"), torch.zeros(4, 1)
    for number in range(4):
        metrics = update(sampler, number, x0, constant, torch.zeros(0))
    assert len(decrease(sampler).subset) == 1000
    assert "explained" not in metrics


def test_what_the_subset_explains_is_told() -> None:
    sampler, x0 = beta_policy(LINEAR), torch.zeros(4, 1)
    one = torch.eye(50)[7]
    for number in range(8):
        # A single time carries all that varies: any S with it explains everything.
        metrics = update(sampler, number, x0, constant, one * float(noise(1, seed=number)))
        assert ("explained" in metrics) is (number >= 4)
    assert decrease(sampler).grid[7] in decrease(sampler).subset
    assert float(metrics["explained"]) == pytest.approx(1)
    for number in range(8, 40):
        metrics = update(sampler, number, x0, constant)
    assert float(metrics["explained"]) < 0.9


def test_paper_pays_on_the_subset_that_this_very_row_chose() -> None:
    # Algorithm 2: push, select, then pay. The F of three rows are Pearson's correlations, by numpy.
    sampler, x0, asked, rows = beta_policy(LINEAR, paper=True), noise(8, 4), list[Any](), list[Tensor]()
    first = decrease(sampler).subset
    for number in range(6):
        tick = due(sampler, number)
        drawn = sampler.draw(x0, tick)
        rows.append(noise(1000, seed=number))

        def rewards_at(times: Any) -> Tensor:
            asked.append(times)
            return torch.ones(8, len(times))

        signal = DecreaseSignal(rows[-1], torch.zeros(8, 0), rewards_at)
        sampler.learn(told(tick, drawn.action, signal))
        if number < 2:
            assert asked[-1] == first, "with two rows every correlation is 1: nothing can be chosen"
            continue
        table = torch.stack(rows).double().numpy()
        with_sum = [abs(np.corrcoef(column, table.sum(1))[0, 1]) for column in table.T]
        best = sorted(np.argsort(with_sum)[-3:].tolist())
        assert asked[-1] == pytest.approx([(index + 0.5) / 1000 for index in best])
    assert len(asked) == 6
    with pytest.raises(InvalidParameter, match="rewards_at"):
        sampler.learn(told(tick, None, DecreaseSignal(rows[0], torch.zeros(8, 0))))


def test_one_update_by_the_paper_is_its_formula() -> None:
    """REINFORCE on the raw mean over S, without a baseline, and 1e-2 times the entropy, without bounds."""
    sampler, x0 = beta_policy(LINEAR, paper=True), noise(16, 3, 32, 32)
    network = PolicyNetwork(3, 2, 128, SEED, torch.device("cpu"))
    tick = due(sampler)
    drawn = sampler.draw(x0, tick)
    rewards = noise(16, 3, seed=2) / 10 + 0.05
    signal = DecreaseSignal(noise(1000), torch.zeros(16, 0), lambda times: rewards)
    sampler.learn(told(tick, drawn.action, signal))
    # The network sees all 32 pixels of a side.
    beta = torch.distributions.Beta(*(torch.nn.functional.softplus(network(x0)) + 1e-5).unbind(1))
    loss = -(rewards.mean(1) * beta.log_prob(drawn.u)).mean() - 1e-2 * beta.entropy().mean()
    loss.backward()
    first = sampler.state_dict()["policy"]["3/2"]["first"]
    for name in ("linear.2.weight", "linear.2.bias"):
        wanted = network.get_parameter(name).grad
        assert wanted is not None
        assert wanted.norm() < 1, "not clipped"
        error = (10 * first[name] - wanted).norm() / wanted.norm()
        # The density is constant in each of 1000 bins.
        assert error < 0.02, (name, error)


def test_a_run_by_the_paper_is_algorithms_1_and_2() -> None:
    """Every number from a transcription: weights before and after, Eq. 7, numpy's correlations."""
    process = stepwell.process("linear", timesteps=25)
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(noise(4, 4, seed=8) / 2)
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def loss_at(x0: Tensor, eps: Tensor, u: Tensor, condition: None) -> Tensor:
        calls.append((x0.clone(), eps.clone(), u.clone()))
        problem = process.corrupt(x0, eps, u)
        return (model(problem.input) - problem.target).square().mean(1)

    beta = torch.linspace(1e-4 * 40, 0.02 * 40, 25, dtype=torch.float64)
    kept = torch.cumprod(1 - beta, 0)

    def bound(weights: dict[str, Tensor], call: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """c_t |eps - eps_theta|^2 [B], Eq. 7 with sigma^2 = beta."""
        x0, eps, u = (value.double() for value in call)
        t = (u * 25).long()
        xt = kept[t].sqrt()[:, None] * x0 + (1 - kept[t]).sqrt()[:, None] * eps
        said = xt @ weights["weight"].double().T + weights["bias"].double()
        return beta[t] / (2 * (1 - beta[t]) * (1 - kept[t])) * (eps - said).square().sum(1)

    sampler = beta_policy(process, paper=True, every_steps=1)
    pacer = Pacer(sampler, process, loss_at=loss_at, optimizer=optimizer, network=model)
    rows, last, seen = [], None, decrease(sampler).subset
    for step in range(6):
        x0 = noise(5, 4, seed=step)
        pace = pacer.draw(x0, Tick(3, step))
        optimizer.zero_grad()
        loss_at(x0, noise(5, 4, seed=100 + step), pace.u, None).mean().backward()
        calls.clear()
        pacer.before_update()
        before = copy.deepcopy(model.state_dict())
        optimizer.step()
        after = copy.deepcopy(model.state_dict())
        metrics = pacer.after_update()
        # 25 timesteps in calls of 5, before and after; then S after and before, with the same noise.
        row, at_subset = calls[:5], calls[10:13]
        assert len(calls) == 5 + 5 + 3 + 3
        for one, other in zip((*row, *at_subset), (*calls[5:10], *calls[13:]), strict=True):
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
        example = row[0][0][0]
        source = x0 if last is None else last
        assert any(torch.equal(example, one) for one in source), "of the data, not of this batch"
        rows.append(torch.cat([bound(before, call) - bound(after, call) for call in row]))
        assert torch.allclose(queue(sampler)[-1].double(), rows[-1], rtol=1e-3, atol=1e-6)
        if len(rows) > 2:
            table = queue(sampler).double().numpy()
            strength = [abs(np.corrcoef(column, table.sum(1))[0, 1]) for column in table.T]
            seen = tuple((index + 0.5) / 25 for index in sorted(np.argsort(strength)[-3:].tolist()))
        assert [float(call[2][0]) for call in at_subset] == pytest.approx(seen)
        assert all(torch.equal(call[0], x0) for call in at_subset)
        falls = torch.stack([bound(before, call) - bound(after, call) for call in at_subset], dim=1)
        assert float(metrics["reward"]) == pytest.approx(float(falls.mean()), rel=1e-3, abs=1e-7)
        assert all(torch.equal(value, after[name]) for name, value in model.state_dict().items())
        last = x0


@pytest.mark.parametrize("shape", ["within", "shift"])
def test_in_another_unit_time_late_rewards_are_asked_in_the_processs(shape: str) -> None:
    inner = beta_policy(LINEAR, paper=True)
    sampler = (
        stepwell.within(inner, 0.5, 1.0)
        if shape == "within"
        else stepwell.shift(inner, 3.0, stepwell.process("flow"))
    )
    asked: list[Any] = []

    def rewards_at(times: Any) -> Tensor:
        asked.append(times)
        return torch.ones(4, len(times))

    tick, x0 = due(sampler), torch.zeros(4, 1)
    drawn = sampler.draw(x0, tick)
    sampler.learn(told(tick, drawn.action, DecreaseSignal(noise(1000), torch.zeros(4, 0), rewards_at)))
    own = decrease(inner).subset
    wanted = [0.5 + u / 2 if shape == "within" else 3 * u / (1 + 2 * u) for u in own]
    assert asked == [pytest.approx(wanted)]


# It learns


def in_band(x0: Tensor, u: Tensor) -> Tensor:
    return ((u > 0.2) & (u < 0.4)).float() + 0.3 * noise(len(u), seed=int(u[0] * 1e6))


@pytest.mark.parametrize("conditional", [case(each, quick=each) for each in (True, False)])
def test_a_reward_for_a_band_moves_the_draws_there(conditional: bool) -> None:
    sampler, x0 = beta_policy(LINEAR, conditional=conditional), noise(64, 6)
    for number in range(150):
        metrics = update(sampler, number, x0, in_band)
    band = torch.tensor([0.2, 0.4], dtype=torch.float64)
    sampler.draw(x0, Tick())
    # A fifth of uniform draws.
    assert float(sampler.masses(band)) > 0.6
    assert float(metrics["top_tenth_mass"]) > 0.25
    assert float(metrics["policy_entropy"]) < -0.3


def test_the_policy_learns_which_example_wants_which_time() -> None:
    sampler, x0 = beta_policy(LINEAR), noise(64, 6)

    def reward(x: Tensor, u: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0, u, 1 - u)

    for number in range(100):
        update(sampler, number, x0, reward)
    high, low = noise(64, 6, seed=1), noise(64, 6, seed=2)
    high[:, 0], low[:, 0] = 1.5, -1.5
    late = [1 - float(sampler.cdf(torch.tensor([0.5]), x)) for x in (high, low)]
    assert late[0] > 0.75
    assert late[1] < 0.25
    # Each draw's probability is its own example's, not the batch's.
    both = torch.cat([high[:3], low[:3]])
    drawn = sampler.draw(both, Tick(step=3))
    own = torch.cat([sampler.density(drawn.u[k : k + 1], both[k : k + 1]) for k in range(6)])
    assert torch.allclose(drawn.log_prob, own.log(), atol=1e-4)
    assert not torch.allclose(drawn.log_prob, sampler.density(drawn.u, both).log(), atol=0.05)


def test_draws_of_a_learned_policy_follow_its_density() -> None:
    # Fails once in a million.
    sampler, x0 = beta_policy(LINEAR), noise(64, 6)
    for number in range(60):
        update(sampler, number, x0, in_band)
    u = torch.cat([sampler.draw(x0, Tick(seed=9, step=step)).u for step in range(200)])
    assert_uniform(sampler.cdf(u.double(), x0))


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_no_reward_can_starve_a_timestep(end: float) -> None:
    sampler, x0 = beta_policy(LINEAR, learning_rate=0.1), noise(64, 6)
    for number in range(60):
        metrics = update(sampler, number, x0, lambda x, u: 1 - (u - end).abs() ** 0.1)
    density = sampler.density((torch.arange(1000) + 0.5) / 1000)
    assert density.min() >= 0.1 * (1 - 1e-4)
    # Not even in the timestep that is paid best: the shapes are bounded.
    assert density.max() < 200
    assert min(float(metrics["policy_a"]), float(metrics["policy_b"])) >= 0.5
    assert max(float(metrics["policy_a"]), float(metrics["policy_b"])) < 32.001


def test_a_policy_that_went_to_one_end_comes_back() -> None:
    sampler, x0 = beta_policy(LINEAR, learning_rate=0.1), noise(64, 6)
    for number in range(50):
        update(sampler, number, x0, lambda x, u: -u)
    assert float(sampler.cdf(torch.tensor([0.5]), x0)) > 0.85
    for number in range(50, 150):
        update(sampler, number, x0, lambda x, u: u)
    assert float(sampler.cdf(torch.tensor([0.5]), x0)) < 0.3


def test_metrics_say_how_the_policy_is() -> None:
    sampler, x0 = beta_policy(LINEAR), torch.zeros(100, 2)
    reward = torch.arange(100.0)
    metrics = update(sampler, 1, x0, lambda x, u: reward)
    assert all(value.dim() == 0 for value in metrics.values())
    assert float(metrics["reward"]) == pytest.approx(49.5)
    assert float(metrics["reward_snr"]) == pytest.approx(49.5 / (28.866 / 10), rel=1e-3)
    sampler.draw(x0, Tick())
    after = sampler.state_dict()["shapes"][0]
    assert float(metrics["policy_a"]) == pytest.approx(float(after[0]))
    assert float(metrics["policy_b"]) == pytest.approx(float(after[1]))
    assert float(metrics["policy_entropy"]) == pytest.approx(float(beta_entropy(after[None])))
    heights = sampler.density((torch.arange(1000) + 0.5) / 1000)
    tenth = heights.sort().values[-100:].sum() / 1000
    assert float(metrics["top_tenth_mass"]) == pytest.approx(float(tenth), rel=1e-4)
    fresh = beta_policy(LINEAR).density((torch.arange(1000) + 0.5) / 1000)
    moved = (heights - fresh).abs().mean() / 2
    assert float(metrics["policy_move"]) == pytest.approx(float(moved), rel=1e-3)
    assert sampler.learn(told(Tick(), None, None)) == {}


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_leaves_a_policy(bad: float, as_published: bool) -> None:
    sampler, x0 = beta_policy(LINEAR, as_published=as_published), noise(8, 3)
    for number in range(5):
        row = noise(len(decrease(sampler).grid), seed=number)
        row[number] = bad
        update(sampler, number, x0, lambda x, u: torch.where(u > 0.5, bad, u), row)
    drawn = sampler.draw(x0, Tick())
    assert drawn.log_prob.isfinite().all()
    assert sampler.density(torch.linspace(0, 0.99, 50)).isfinite().all()


# Its place in a loop


def test_an_action_is_handed_out_only_when_something_is_measured() -> None:
    sampler, x0 = beta_policy(LINEAR), noise(5, 3, 64, 9)
    tick = due(sampler, 1)
    assert sampler.draw(x0, replace(tick, step=tick.step + 1)).action is None
    drawn = sampler.draw(x0, tick)
    assert drawn.action is not None
    # What the policy saw of each example, and what was drawn for it.
    assert drawn.action.shape == (5, 3 * 8 * 8 + 1)
    assert torch.equal(drawn.action[:, -1], drawn.u)


def test_feedback_of_all_ranks_is_learned_as_one_batch() -> None:
    # In rank order, as the pacer gathers it; every rank then holds the same policy.
    x0, reward = noise(8, 3, 16, 16), noise(16, 1, seed=3).expand(16, 3)
    ranks = [beta_policy(LINEAR) for _ in range(2)]
    tick = due(ranks[0])
    drawn = [s.draw(x0 + r, replace(tick, rank=r, world=2)) for r, s in enumerate(ranks)]
    gathered = torch.cat([d.action for d in drawn if d.action is not None])
    signal = DecreaseSignal(noise(50), reward)
    for sampler in ranks:
        sampler.learn(told(tick, gathered, signal))
    u = torch.linspace(0.01, 0.99, 30)
    assert torch.equal(ranks[0].density(u, x0), ranks[1].density(u, x0))
    assert not torch.equal(ranks[0].density(u, x0), beta_policy(LINEAR).density(u, x0))


def test_a_warm_up_fills_the_queue_and_leaves_the_policy() -> None:
    sampler = stepwell.warm_up(beta_policy(LINEAR), 1000)
    for number in range(5):
        update(sampler, number, torch.zeros(4, 2), constant)
    state = sampler.state_dict()["sampler"]
    assert len(state["credit"]["queue"]) == 5
    assert state["policy"] == {}


def test_inside_a_range_it_is_probed_there_and_learns_its_own_time() -> None:
    sampler, x0 = stepwell.within(beta_policy(LINEAR), 0.5, 1.0), noise(64, 4)
    assert min(decrease(sampler).grid) > 0.5
    for number in range(60):
        update(sampler, number, x0, lambda x, u: u)
    assert float(sampler.cdf(torch.tensor([0.75]), x0)) < 0.25


@pytest.mark.parametrize(
    "parameters",
    [{}, {"as_published": True}, {"paper": True}, {"conditional": False}, {"selection": "forward"}],
    ids=str,
)
def test_a_reloaded_policy_continues_with_the_same_bits(parameters: dict[str, Any]) -> None:
    one, x0 = beta_policy(LINEAR, **parameters), noise(16, 3, 8, 8)
    for number in range(6):
        update(one, number, x0, lambda x, u: u)
    other = beta_policy(LINEAR, **parameters)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert decrease(one) == decrease(other)
    for number in range(6, 10):
        for each in (one, other):
            update(each, number, x0, lambda x, u: u.square())
        ticks = Tick(step=number)
        assert torch.equal(one.draw(x0, ticks).u, other.draw(x0, ticks).u)
        assert decrease(one).subset == decrease(other).subset


@pytest.mark.parametrize(
    "other",
    [
        {"hidden": 64},
        {"conditional": False},
        {"as_published": True},
        {"paper": True},
        {"subset": 2},
        {"grid": 20},
    ],
    ids=str,
)
def test_the_state_of_another_policy_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(StateMismatch):
        beta_policy(LINEAR).load_state_dict(beta_policy(LINEAR, **other).state_dict())


# Credit by alignment


def gradients(
    sampler: TimestepSampler, visits: int, gain: Callable[[float, int], float], x0: Tensor, first: int = 0
) -> Metrics:
    """Rounds over all strata whose gradients, each in its own direction, gain what `gain(u, visit)` says."""
    spec = sampler.probe
    assert isinstance(spec, GradientSpec)
    metrics: Metrics = {}
    for turn in range(first * spec.strata, (first + visits) * spec.strata):
        tick = due(sampler, turn)
        drawn, stratum = sampler.draw(x0, tick), spec.stratum(tick.step)
        middle = (spec.borders[stratum] + spec.borders[stratum + 1]) / 2
        direction = torch.eye(spec.strata)[stratum]
        halves = torch.stack([gain(middle, turn // spec.strata) * direction, direction])
        metrics = sampler.learn(told(tick, drawn.action, GradientSignal(stratum, halves, 16)))
    return metrics


def in_two_bands(u: float, visit: int) -> float:
    return 1.0 if 0.2 < u < 0.4 else 0.0


def test_alignment_asks_for_gradients_of_the_target() -> None:
    spec = beta_policy(LINEAR, credit="alignment", target="min-snr").probe
    assert isinstance(spec, GradientSpec)
    assert (spec.every_steps, spec.target, spec.strata, spec.preconditioned) == (16, "min-snr", 10, True)


@pytest.mark.parametrize("conditional", [case(each, quick=not each) for each in (True, False)])
def test_gains_in_a_band_move_the_draws_there(conditional: bool) -> None:
    sampler, x0 = beta_policy(LINEAR, credit="alignment", conditional=conditional), noise(32, 6)
    gradients(sampler, MIN_MEASUREMENTS - 1, in_two_bands, x0)
    band = torch.tensor([0.2, 0.4], dtype=torch.float64)
    start = float(beta_policy(LINEAR).masses(band))
    assert float(sampler.masses(band)) == pytest.approx(start), "two visits of a stratum say nothing yet"
    metrics = gradients(sampler, 15, in_two_bands, x0, MIN_MEASUREMENTS - 1)
    sampler.draw(x0, Tick())
    assert float(sampler.masses(band)) > 0.7
    assert float(metrics["sure_gains"]) == pytest.approx(0.2)
    assert sampler.diagnostics()["interdependence"].shape == (10, 10)


def test_alignment_never_looks_at_a_value() -> None:
    sampler = beta_policy(LINEAR, credit="alignment")
    ticks, spec = [due(sampler, number) for number in range(3)], sampler.probe
    assert isinstance(spec, GradientSpec)
    with accelerator():
        x0, halves = torch.zeros(4, 1, 8, 8, device=DEVICE), torch.ones(2, 6, device=DEVICE)
        nothing = torch.zeros(4, device=DEVICE)
        for tick in ticks:
            signal = GradientSignal(spec.stratum(tick.step), halves, 16)
            with Copies() as copies:
                drawn = sampler.draw(x0, tick)
                metrics = sampler.learn(Feedback(tick, nothing, nothing, nothing, drawn.action, signal))
    assert all(value.device == DEVICE for value in metrics.values())
    assert "policy_move" in metrics
    assert copies.found == []


def test_noise_pays_nobody() -> None:
    def luck(u: float, visit: int) -> float:
        return float(noise(1, seed=int(u * 100) + 1000 * visit))

    sampler, x0 = beta_policy(LINEAR, credit="alignment"), noise(32, 6)
    gradients(sampler, 20, luck, x0)
    sampler.draw(x0, Tick())
    # Ten strata of gains that are all chance: the draws stay about even.
    assert sampler.masses(edges(10)).max() < 0.2


def test_a_gain_shrinks_by_what_noise_would_give() -> None:
    # One stratum gives the target's direction, the other is 60 or 30 degrees away in turn.
    spec = GradientSpec(1, "vlb", (0.0, 0.5, 1.0), 16)
    gains, target = SignificantGains("test", Uniform(), spec, decay=1 - 1e-5), torch.tensor([2.0, 0.0])
    for turn in range(4):
        for stratum, angle in enumerate((0.0, (math.pi / 3, -math.pi / 6)[turn % 2])):
            trained = 3 * torch.tensor([math.cos(angle), math.sin(angle)])
            halves = torch.stack([trained, target])
            gains.learn(told(Tick(), None, GradientSignal(stratum, halves, 16)))
    # Cosines of the second: 1 / 2 and sqrt(3) / 2 in turn, of four visits; gains 6 and 6 times their mean.
    mean, spread = (0.5 + 0.75**0.5) / 2, (0.75**0.5 - 0.5) / 2
    left = 1 - 4 * (spread**2 / 3) / mean**2
    expected = torch.tensor([1.0, mean]) / ((1 + mean) / 2) * torch.tensor([1, left])
    assert gains.significant().tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert bool(gains.ready)


def test_gradients_that_shrink_together_are_no_noise() -> None:
    sampler, x0 = beta_policy(LINEAR, credit="alignment"), noise(8, 2)
    metrics = gradients(sampler, 8, lambda u, visit: (1.0 if 0.2 < u < 0.4 else 0.1) * 0.5**visit, x0)
    assert float(metrics["sure_gains"]) == 1


def test_alignment_continues_with_the_same_bits() -> None:
    one, x0 = beta_policy(LINEAR, credit="alignment"), noise(8, 2, 6, 6)
    gradients(one, 5, in_two_bands, x0)
    other = beta_policy(LINEAR, credit="alignment")
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for each in (one, other):
        gradients(each, 2, in_two_bands, x0, 5)
    assert torch.equal(one.draw(x0, Tick()).u, other.draw(x0, Tick()).u)
    with pytest.raises(StateMismatch):
        beta_policy(LINEAR).load_state_dict(one.state_dict())


def test_strata_of_another_reference_are_paid_alike() -> None:
    sampler, x0 = beta_policy(stepwell.process("edm"), credit="alignment"), noise(32, 6)
    gradients(sampler, 15, lambda u, visit: float(u > 0.6), x0)
    sampler.draw(x0, Tick())
    reference = stepwell.process("edm").reference
    border = torch.tensor([0.6, 1.0], dtype=torch.float64)
    assert float(sampler.masses(border)) > 1.5 * float(reference.masses(border))


def test_with_aligned_credit_the_policy_moves_as_soon_as_every_stratum_was_seen_three_times() -> None:
    """Found on fashion16: with one fast round it stood still for the first 360 steps."""
    sampler = stepwell.sampler("beta-policy", stepwell.process("linear"), credit="alignment")
    spec = sampler.probe
    assert isinstance(spec, GradientSpec)
    due = [step for step in range(2000) if spec.due(step)]
    turns = [spec.stratum(step) for step in due]
    assert turns == [turn % spec.strata for turn in range(len(due))], (
        "round-robin, also where the pace changes"
    )
    assert due[3 * spec.strata - 1] == 119
    assert due[3 * spec.strata] == 119 + spec.every_steps


# Mixed with another sampler


UNIFORM = Static(Uniform(), "uniform")
MIXED: dict[str, Callable[[TimestepSampler], TimestepSampler]] = {
    "mix": lambda policy: stepwell.mix(policy, UNIFORM, 0.5),
    "stratified": lambda policy: stepwell.stratified(stepwell.mix(policy, UNIFORM, 0.5)),
    "unbiased": lambda policy: stepwell.unbiased(stepwell.mix(policy, UNIFORM, 0.5), Uniform()),
    "within": lambda policy: stepwell.within(stepwell.mix(policy, UNIFORM, 0.5), 0.2, 0.7),
    "within inside": lambda policy: stepwell.mix(stepwell.within(policy, 0.2, 0.7), UNIFORM, 0.5),
    "shift": lambda policy: stepwell.shift(stepwell.mix(policy, UNIFORM, 0.5), 3.0, stepwell.process("flow")),
    "warm_up": lambda policy: stepwell.warm_up(stepwell.mix(policy, UNIFORM, 0.5), 3),
    "twice": lambda policy: stepwell.mix(stepwell.mix(policy, UNIFORM, 0.25), UNIFORM, 1 / 3),
}


def reinforce(x: Tensor, u: Tensor, reward: Tensor, as_published: bool) -> dict[str, Tensor]:
    """The gradient of the first policy step, clipped to norm 1, by the formula and torch's own Beta."""
    network = PolicyNetwork(5, 0, 256 if as_published else 128, SEED, torch.device("cpu"))
    ab = torch.nn.functional.softplus(network(x)) + 1e-5
    beta = torch.distributions.Beta(*ab.unbind(1))
    if as_published:
        loss = -(beta.log_prob(u) * (reward / math.log(2) + 1e-2 * beta.entropy())).mean()
    else:
        # The share 0.1 of the reference is part of the density that the policy drew from.
        height = 0.9 * beta.log_prob(u).exp() + 0.1
        scaled = (reward - reward.mean()) / reward.std(correction=0)
        loss = -(scaled * height.log()).mean() - 1e-2 * beta.entropy().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_in_a_mix_the_policy_learns_from_its_own_draws_alone(name: str, as_published: bool) -> None:
    policy, x0 = beta_policy(LINEAR, as_published=as_published), noise(64, 5)
    sampler = MIXED[name](policy)
    tick = due(sampler)
    drawn, spec = sampler.draw(x0, tick), decrease(sampler)
    assert drawn.action is not None
    u, own = drawn.action[:, -1], ~drawn.action[:, -1].isnan()
    assert 16 < int(own.sum()) < 48
    if name == "mix":
        assert torch.equal(own, tick.uniform("timestep", 64) >= 0.5)
        if not as_published:
            assert torch.equal(u[own], drawn.u[own])
    rewards = noise(64, 3, seed=2) / 10
    sampler.learn(told(tick, drawn.action, DecreaseSignal(noise(len(spec.grid)), rewards)))
    reward = (rewards.sum(1) if as_published else rewards.mean(1))[own]
    wanted = reinforce(x0[own], u[own], reward, as_published)
    (trained,) = policy.state_dict()["policy"].values()
    for part in ("linear.2.weight", "linear.2.bias"):
        # Adam's first moment is a tenth of the first gradient.
        error = (10 * trained["first"][part] - wanted[part]).norm() / wanted[part].norm()
        # The default's density is constant in each of 1000 bins.
        assert error < (1e-5 if as_published else 0.03), (part, error)


@pytest.mark.parametrize("credit", ["decrease", "alignment"])
def test_a_mix_that_never_asks_the_policy_leaves_it_alone(credit: str) -> None:
    policy, x0 = beta_policy(LINEAR, credit=credit), noise(16, 5)
    sampler = stepwell.mix(policy, UNIFORM, 1.0)
    start = policy.density(torch.linspace(0.01, 0.99, 30), x0)
    if credit == "decrease":
        for number in range(5):
            metrics = update(sampler, number, x0, lambda x, u: u)
    else:
        metrics = gradients(sampler, MIN_MEASUREMENTS + 2, in_two_bands, x0)
    assert all(value.isfinite() for value in metrics.values())
    assert torch.equal(policy.density(torch.linspace(0.01, 0.99, 30), x0), start)
    assert sampler.draw(x0, Tick()).u.isfinite().all()


@pytest.mark.parametrize("credit", ["decrease", "alignment"])
def test_in_a_mix_nothing_is_read_back_from_the_device(credit: str) -> None:
    sampler = stepwell.mix(beta_policy(LINEAR, credit=credit), UNIFORM, 0.5)
    ticks = [due(sampler, number) for number in range(2)]
    with accelerator():
        x0, nothing = torch.zeros(8, 3, 8, 8, device=DEVICE), torch.zeros(8, device=DEVICE)
        signal: Any = GradientSignal(0, torch.ones(2, 20, device=DEVICE), 16)
        if credit == "decrease":
            signal = DecreaseSignal(torch.ones(50, device=DEVICE), torch.ones(8, 3, device=DEVICE))
        for tick in ticks:
            with Copies() as copies:
                drawn = sampler.draw(x0, tick)
                metrics = sampler.learn(Feedback(tick, nothing, nothing, nothing, drawn.action, signal))
    assert all(value.device == DEVICE for value in metrics.values())
    assert copies.found == []


def test_two_seeds_have_two_policies_and_all_ranks_of_one_have_one() -> None:
    x0, states = noise(8, 3, 16, 16), []
    for tick in (Tick(1, 39, 0, 0, 2), Tick(1, 39, 0, 1, 2), Tick(2, 39)):
        sampler = beta_policy(LINEAR)
        action = sampler.draw(x0, replace(tick, rank=0, world=1)).action
        sampler.learn(told(tick, action, DecreaseSignal(noise(50), noise(8, 3, seed=1))))
        states.append(sampler.state_dict()["policy"]["3/2"]["weights"])
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
        assert name.startswith("linear.2") or not torch.equal(value, states[2][name])


def test_a_policy_from_before_weights_had_a_seed_goes_on_with_its_own() -> None:
    # Old states have a network from the first draw on: before its first step too.
    sampler, x0 = beta_policy(LINEAR), noise(8, 5)
    sampler.draw(x0, Tick(SEED))
    state = sampler.state_dict()
    network = PolicyNetwork(5, 0, 128, 0, torch.device("cpu"))
    old = {name: torch.full_like(p, 0.01) for name, p in network.named_parameters()}
    nothing = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    state["policy"] = {"5/0": {"weights": old, "first": nothing, "second": nothing, "steps": 0}}
    sampler.load_state_dict(state)
    update(sampler, 0, x0, lambda x, u: u)
    trained = sampler.state_dict()["policy"]["5/0"]
    assert torch.allclose(trained["weights"]["linear.0.weight"], old["linear.0.weight"], atol=0.011)
    assert trained["steps"] == 1
