"""The queue of decreases, the timesteps chosen from it, and the paper's algorithms as a whole."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from samplers.beta_policy.policy_updates import (
    LINEAR,
    SEED,
    constant,
    decrease,
    due,
    noise,
    queue,
    told,
    update,
)
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.core.feedback import DecreaseSignal
from stepwell.core.tick import Tick
from stepwell.pacer import Pacer
from stepwell.samplers.beta_policy.decrease import select
from stepwell.samplers.beta_policy.policy import PolicyNetwork
from stepwell.samplers.beta_policy.sampler import beta_policy


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
