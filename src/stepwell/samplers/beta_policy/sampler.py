"""The adaptive sampler of Kim et al. (CVPR 2025): a policy network chooses timesteps for every example."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Table, centres
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe import DecreaseSpec, ProbeSpec, Times
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.credit import (
    MIN_MEASUREMENTS,
    AlignmentCredit,
    Choice,
    Credit,
    DecreaseCredit,
    SignificantGains,
)
from stepwell.samplers.beta_policy.policy import Descent, Policy, first_shapes, prepared
from stepwell.samplers.beta_policy.rewards import CORRECTED, PUBLISHED, Rules, beta_entropy, spaced
from stepwell.samplers.beta_policy.table import BetaTable
from stepwell.samplers.gradients import strata_spec

_T = TypeVar("_T")

STRATA = 10
"""Whose gains pay the policy under credit=alignment: a Beta resolves no more, and fewer are known sooner."""
_QUICK = Descent(1e-2, memory=0.99)
"""For gradients that are exact: what they were long ago need not slow down what follows."""
REMEMBERED = 256
"""Examples of the last draw whose densities are kept: their mean is `density` when no x0 is given."""


def beta_policy(
    process: NoiseProcess,
    credit: str = "decrease",
    target: str | None = None,
    every_steps: int | None = None,
    queue: int = 20,
    subset: int | str = 3,
    selection: str = "f",
    grid: int | None = None,
    entropy: float | None = None,
    learning_rate: float | None = None,
    clip: float = 1.0,
    hidden: int | None = None,
    conditional: bool = True,
    floor: float | None = None,
    as_published: bool = False,
) -> TimestepSampler:
    """u ~ Beta(a(x0), b(x0)), learned from how much the last update lowered the target (Algorithm 1).

    `as_published` follows the official code where it differs from the paper: see `policy_reward.Rules`.
    """
    require.one_of("credit", credit, ("decrease", "alignment"))
    rules = _rules(process, as_published, target, hidden, floor)
    if grid is not None:
        rules = replace(rules, grid=require.count("grid", grid))
    table = BetaTable(len(process.grid()), process.reference, rules.floor, rules.rounded)
    paid: Credit
    if credit == "alignment":
        if as_published:
            raise InvalidParameter("as_published pays the decrease, as the official code: leave out credit=.")
        spec = strata_spec(process, STRATA, _or(every_steps, 16), 16, rules.target, "adam")
        # The policy waits until it can tell gains from noise: all it waits for comes in a hurry.
        spec = replace(spec, fast_rounds=MIN_MEASUREMENTS)
        gains = SignificantGains("beta-policy", process.reference, spec, decay=0.85)
        paid = AlignmentCredit(gains, table, require.not_negative("entropy", _or(entropy, 0.5)))
    else:
        choice = Choice("all" if subset == "all" else selection, queue)
        decrease = _decrease_spec(table.timesteps, _or(every_steps, 40), subset, rules)
        weight = require.not_negative("entropy", _or(entropy, 1e-2))
        paid = DecreaseCredit(decrease, table, rules, choice, weight)
    usual = _published_descent(process) if credit == "decrease" else _QUICK
    rate = require.positive("learning_rate", _or(learning_rate, usual.learning_rate))
    rule = replace(usual, learning_rate=rate, clip=require.positive("clip", clip))
    policy = Policy(rules.hidden, conditional, rules.bounds, rule)
    width, rows = rules.hidden if conditional else "none", rules.grid or "all"
    label = (
        f"beta-policy(credit={credit}, hidden={width}, subset={subset} of {rows}, "
        f"timesteps={table.timesteps}, as_published={as_published})"
    )
    return BetaPolicy(label, policy, table, paid, rules.largest)


def _or(given: _T | None, default: _T) -> _T:
    return default if given is None else given


def _rules(
    process: NoiseProcess, as_published: bool, target: str | None, hidden: int | None, floor: float | None
) -> Rules:
    """A preset, and what was asked for otherwise."""
    if as_published and process.timesteps is None:
        raise Unsupported(f"as_published counts discrete timesteps, and {process} is continuous.")
    rules = PUBLISHED if as_published else CORRECTED
    if target is not None:
        rules = replace(rules, target=target)
    if hidden is not None:
        rules = replace(rules, hidden=require.count("hidden", hidden))
    if floor is not None:
        rules = replace(rules, floor=require.between("floor", floor, 0, 1))
    return rules


def _decrease_spec(timesteps: int, every_steps: int, subset: int | str, rules: Rules) -> DecreaseSpec:
    """The middles of bins: of all timesteps, or of evenly spaced ones."""
    middles: Times = tuple(centres(timesteps).tolist())
    points = timesteps if rules.grid is None else min(rules.grid, timesteps)
    if subset == "all":
        first, grid = middles, ()
    else:
        if isinstance(subset, str):
            raise InvalidParameter(f'subset must be a number of timesteps or "all", not {subset!r}.')
        count = require.count("subset", subset)
        if count > points:
            raise InvalidParameter(f"subset={count} timesteps cannot be chosen from a grid of {points}.")
        grid = tuple(middles[index] for index in spaced(points, timesteps).tolist())
        lowest = rules.lowest_first
        first = middles[:count] if lowest else tuple(grid[i] for i in spaced(count, points).tolist())
    return DecreaseSpec(every_steps, rules.target, first, grid, rules.fresh_noise, rules.train_mode)


def _published_descent(process: NoiseProcess) -> Descent:
    """1e-2 for linear and quadratic schedules, 1e-3 for cosine ones (Kim et al. 2025, Tab. 7 to 9).

    They are told apart by the SNR in the middle of time: 0.08, 0.50 and 0.97. Flow and EDM are beyond it.
    """
    middle = torch.full((1,), 0.5, dtype=torch.float64)
    return Descent(1e-2 if float(process.log_snr(middle)) < math.log(0.7) else 1e-3)


class BetaPolicy(TimestepSampler):
    """Draws from the policy's densities; at the steps that its probe measures, the policy takes a step."""

    learns = True
    learns_from_losses = False

    def __init__(self, label: str, policy: Policy, table: BetaTable, credit: Credit, largest: int) -> None:
        self.label, self._largest = label, largest
        self._policy, self._table, self._credit = policy, table, credit
        self._shapes = first_shapes()
        self._example: torch.Size | None = None

    def __repr__(self) -> str:
        return self.label

    @property
    def probe(self) -> ProbeSpec:
        return self._credit.spec

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        x = prepared(x0, self._largest)
        with torch.no_grad():
            shapes = self._policy(x)
            placed = self._table.from_uniform(shapes, v)
        self._shapes, self._example = shapes[:REMEMBERED].clone(), x.shape[1:]
        action = None
        if self.probe.due(tick.step):
            action = torch.cat([x.flatten(1), placed.inner[:, None]], dim=1)
        return Draw(placed.u, placed.log_prob, torch.ones_like(placed.u), action)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._mean(x0).pdf(u)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._mean(x0).cdf(u)

    def masses(self, borders: Tensor) -> Tensor:
        return self._mean(None).masses(borders)

    def support(self, u: Tensor) -> Tensor:
        return torch.ones_like(u, dtype=torch.bool)

    @torch.no_grad()
    def _mean(self, x0: Tensor | None) -> Table:
        """The mean density of a batch; without one, of the last draw's."""
        if x0 is None:
            return self._table.mean(self._shapes)
        return self._table.mean(self._policy(prepared(x0, self._largest)))

    def learn(self, feedback: Feedback) -> Metrics:
        if feedback.signal is None:
            return {}
        loss, metrics = self._credit.hear(feedback)
        if feedback.action is None or self._example is None:
            # Somebody else drew, as a warm-up does: nothing to credit, though something was seen.
            return metrics
        x, drawn = feedback.action[:, :-1].unflatten(1, self._example), feedback.action[:, -1]
        before = self._policy.improve(x, lambda shapes: loss(shapes, drawn))
        return {**metrics, **self._policy_metrics(x[:REMEMBERED], before[:REMEMBERED])}

    @torch.no_grad()
    def _policy_metrics(self, x: Tensor, before: Tensor) -> Metrics:
        after = self._policy(x)
        old, new = self._table.masses(before), self._table.masses(after)
        likely = new.mean(0).topk(max(1, self._table.bins // 10)).values
        return {
            "policy_entropy": beta_entropy(after).mean(),
            "policy_a": after[:, 0].mean(),
            "policy_b": after[:, 1].mean(),
            "top_tenth_mass": likely.sum(),
            "policy_move": (new - old).abs().sum(1).mean() / 2,
        }

    def diagnostics(self) -> Mapping[str, Tensor]:
        return self._credit.diagnostics()

    def state_dict(self) -> State:
        return {
            "kind": self.label,
            "policy": self._policy.state_dict(),
            "credit": self._credit.state_dict(),
            "shapes": self._shapes.clone(),
        }

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self.label)
        self._policy.load_state_dict(state["policy"])
        self._credit.load_state_dict(state["credit"])
        self._shapes = state["shapes"].clone()
