"""The adaptive sampler of Kim et al. (CVPR 2025): a policy network chooses timesteps for every example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.density import Table, centres
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe import DecreaseSpec, ProbeSpec, Times
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import PerExample, per_example
from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.alignment import MIN_MEASUREMENTS, AlignmentCredit, SignificantGains
from stepwell.samplers.beta_policy.beta import BetaTable, beta_entropy
from stepwell.samplers.beta_policy.decrease import DecreaseCredit, spaced
from stepwell.samplers.beta_policy.policy import AdamSettings, Policy, initial_shapes, prepared
from stepwell.samplers.beta_policy.rewards import CORRECTED, PAPER, PUBLISHED, Actions, Credit, Rules
from stepwell.samplers.gradients import strata_spec

_STRATA = 10
"""Strata whose gains reward the policy: a Beta density resolves no more, and fewer are measured sooner."""
_ALIGNMENT_ADAM = AdamSettings(1e-2, beta2=0.99)
"""A short memory: these gradients are exact, so old ones should not slow down new ones."""
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
    paper: bool = False,
) -> TimestepSampler:
    """u ~ Beta(a(x0), b(x0)), learned from how much the last update lowered the target (Algorithm 1).

    `floor` is the share of draws from the process's reference density. `paper` follows the paper and
    `as_published` its official code, wherever our default differs: see `rewards.Rules`.
    """
    require.one_of("credit", credit, ("decrease", "alignment"))
    source = _source(process, as_published, paper)
    rules = _rules(source, target=target, hidden=hidden, floor=floor, grid=grid)
    table = BetaTable(len(process.grid()), process.reference, rules.floor, rules.rounded)
    reward: Credit
    if credit == "alignment":
        if source:
            raise InvalidParameter(
                f"{source} rewards the decrease, as its authors do: leave out credit=, or {source}."
            )
        every_steps = 16 if every_steps is None else every_steps
        spec = strata_spec(process, _STRATA, every_steps, 16, rules.target, "adam")
        # The policy waits until gains can be told from noise, so those measurements come fast.
        spec = replace(spec, fast_rounds=MIN_MEASUREMENTS)
        gains = SignificantGains("beta-policy", process.reference, spec, decay=0.85)
        weight = require.not_negative("entropy", 0.5 if entropy is None else entropy)
        reward, adam = AlignmentCredit(gains, table, weight), _ALIGNMENT_ADAM
    else:
        every_steps = 40 if every_steps is None else every_steps
        decreases = _decrease_spec(table.timesteps, every_steps, subset, rules)
        weight = require.not_negative("entropy", 1e-2 if entropy is None else entropy)
        reward = DecreaseCredit(decreases, table, rules, selection, queue, weight)
        adam = AdamSettings(_published_rate(process))
    if learning_rate is not None:
        adam = replace(adam, learning_rate=require.positive("learning_rate", learning_rate))
    adam = replace(adam, clip=require.positive("clip", clip))
    policy = Policy(rules.hidden, conditional, rules.bounds, adam)
    width, rows = rules.hidden if conditional else "none", rules.grid or "all"
    label = (
        f"beta-policy(credit={credit}, hidden={width}, subset={subset} of {rows}, "
        f"timesteps={table.timesteps}, as_published={as_published}{', paper=True' if paper else ''})"
    )
    return BetaPolicy(label, policy, table, reward, rules.largest)


_SOURCES = {"": CORRECTED, "paper": PAPER, "as_published": PUBLISHED}


def _source(process: NoiseProcess, as_published: bool, paper: bool) -> str:
    """Whose rules: ours (nothing), the paper's or its code's."""
    if paper and as_published:
        raise InvalidParameter("paper follows the paper and as_published its code: give one of them.")
    source = "paper" if paper else "as_published" if as_published else ""
    if source and process.timesteps is None:
        raise Unsupported(f"{source} counts discrete timesteps, and {process} is continuous.")
    return source


def _rules(source: str, **settings: Any) -> Rules:
    """The rules of a source, with the settings that are not None."""
    rules = replace(
        _SOURCES[source], **{name: value for name, value in settings.items() if value is not None}
    )
    require.count("hidden", rules.hidden, most=require.MOST_BINS)
    require.between("floor", rules.floor, 0, 1)
    if rules.grid is not None:
        require.count("grid", rules.grid)
    return rules


def _decrease_spec(timesteps: int, every_steps: int, subset: int | str, rules: Rules) -> DecreaseSpec:
    """Decreases at the middles of timesteps: of all, or of evenly spaced ones."""
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
    return DecreaseSpec(
        every_steps,
        rules.target,
        first,
        grid,
        fresh_noise=rules.fresh_noise,
        train_mode=rules.train_mode,
        # All of time needs no choice.
        late=rules.late and bool(grid),
        earlier_example=rules.earlier_example,
        squared_norm=rules.squared_norm,
    )


def _published_rate(process: NoiseProcess) -> float:
    """The learning rate in the tables of Kim et al. (2025).

    1e-2 on DDPM's linear and quadratic schedules (Tab. 7); 1e-3 on cosine (Tab. 7 and 9), on LDM's latents
    (Tab. 8) and on what the paper does not have.
    """
    return 1e-2 if process.schedule() in ("linear", "quadratic") else 1e-3


class BetaPolicy(TimestepSampler):
    """Draws from the policy's densities; the policy takes a step whenever its probe has measured."""

    learns = True
    learns_from_losses = False

    def __init__(self, label: str, policy: Policy, table: BetaTable, credit: Credit, largest: int) -> None:
        self.label, self._largest = label, largest
        self._policy, self._table, self._credit = policy, table, credit
        self._shapes = initial_shapes()
        self._example: torch.Size | None = None

    def __repr__(self) -> str:
        # Not in the label: a state may go on at another rate.
        return f"{self.label[:-1]}, learning_rate={self._policy.settings.learning_rate:g})"

    @property
    def probe(self) -> ProbeSpec:
        return self._credit.spec

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        x = prepared(x0, self._largest)
        with torch.no_grad():
            shapes = self._policy(x)
            draws = self._table.from_uniform(shapes, v)
        self._shapes, self._example = shapes[:REMEMBERED].clone(), x.shape[1:]
        action = None
        if self.probe.due(tick.step):
            action = torch.cat([x.flatten(1), draws.inner[:, None]], dim=1)
        return Draw(draws.u, draws.log_prob, torch.ones_like(draws.u), action)

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
        loss, metrics = self._credit.learn(feedback)
        if feedback.action is None or self._example is None:
            # Another sampler drew, as in a warm-up: nothing to reward, but the measurement counts.
            return metrics
        actions = Actions.of(feedback.action[:, -1])
        x = torch.where(actions.own[:, None], feedback.action[:, :-1], 0.0).unflatten(1, self._example)
        before = self._policy.improve(
            x, lambda shapes: loss(shapes, actions), feedback.tick.seed, actions.own
        )
        first = slice(REMEMBERED)
        return {**metrics, **self._policy_metrics(x[first], before[first], actions.own[first])}

    @torch.no_grad()
    def _policy_metrics(self, x: Tensor, before: Tensor, own: Tensor) -> Metrics:
        after = self._policy(x)
        old, new = self._table.masses(before), self._table.masses(after)

        def mean(values: Tensor) -> Tensor:
            # Of own examples; 0 if there are none.
            return torch.where(per_example(own, values), values, 0.0).sum(0) / own.sum().clamp(min=1)

        a, b = mean(after)
        likely = mean(new).topk(max(1, self._table.bins // 10)).values
        return {
            "policy_entropy": mean(beta_entropy(after)),
            "policy_a": a,
            "policy_b": b,
            "top_tenth_mass": likely.sum(),
            "policy_move": mean((new - old).abs().sum(1)) / 2,
            "policy_learning_rate": after.new_full((), self._policy.settings.learning_rate),
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
        self._policy.load_state_dict(saved_state.part(state, "policy", self))
        self._credit.load_state_dict(saved_state.part(state, "credit", self))
        self._shapes = saved_state.tensor(state, "shapes", self, (None, 2))
