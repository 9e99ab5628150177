"""What samplers may ask to be measured and what they hear back, down to a sampler that lives on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.density import Density, Table, Uniform
from stepwell.core.errors import InvalidParameter, UnknownName
from stepwell.core.feedback import Feedback, ProbeSpec, Signal
from stepwell.core.group import Alone
from stepwell.core.sampler import Metrics, State, TimestepSampler, matching
from stepwell.core.tick import Tick
from stepwell.samplers.one_density import OneDensity
from stepwell.samplers.static import Static

LINEAR = stepwell.process("linear")
UNIFORM = Static(Uniform(), "uniform")


# ProbeSpec


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"kind": "gradients", "every_steps": 0, "borders": (0.0, 1.0)}, "every_steps"),
        ({"kind": "gradients", "every_steps": 1.5, "borders": (0.0, 1.0)}, "every_steps"),
        ({"kind": "gradients", "every_steps": 1}, "at least 2 borders"),
        ({"kind": "gradients", "every_steps": 1, "borders": (0.5,)}, "at least 2 borders"),
        ({"kind": "gradients", "every_steps": 1, "borders": (0.0, 0.5, 0.5, 1.0)}, "rise"),
        ({"kind": "gradients", "every_steps": 1, "borders": (1.0, 0.0)}, "rise"),
        ({"kind": "gradients", "every_steps": 1, "borders": (0.0, 1.5)}, r"\[0, 1\]"),
        ({"kind": "gradients", "every_steps": 1, "borders": (0.0, float("nan"))}, r"\[0, 1\]"),
        ({"kind": "decrease", "every_steps": 40}, "at least 1 subset"),
        ({"kind": "decrease", "every_steps": 40, "subset": (0.5, -0.1)}, r"\[0, 1\]"),
    ],
    ids=str,
)
def test_a_probe_that_cannot_be_is_refused(parameters: dict, named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        ProbeSpec(**parameters)


def test_an_unknown_kind_of_probe_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean 'gradients'\? Known: decrease, gradients"):
        ProbeSpec("gradient", 1, borders=(0.0, 1.0))


@pytest.mark.parametrize("every_steps", [1, 3, 40])
@pytest.mark.parametrize("strata", [1, 2, 7])
def test_strata_take_turns_and_each_gets_its_turn(every_steps: int, strata: int) -> None:
    borders = tuple(index / strata for index in range(strata + 1))
    spec = ProbeSpec("gradients", every_steps, borders=borders)
    due = [step for step in range(3 * strata * every_steps) if spec.due(step)]
    assert due == list(range(0, 3 * strata * every_steps, every_steps))
    assert [spec.stratum(step) for step in due] == list(range(strata)) * 3


def test_a_probe_is_a_value() -> None:
    assert ProbeSpec("decrease", 40, subset=(0.5,)) == ProbeSpec("decrease", 40, subset=(0.5,))


# Signal


class Doubled(Alone):
    """A group whose mean is visible."""

    world = 2

    def mean(self, value: Tensor) -> Tensor:
        return 2 * value

    def gather(self, value: Tensor) -> Tensor:
        return torch.cat([value, value + 100])


def test_a_reduced_signal_is_the_mean_of_each_value() -> None:
    signal = Signal("gradients", {"one": torch.tensor([1.0, 2.0]), "two": torch.tensor(3.0)})
    reduced = signal.reduced(Doubled())
    assert reduced.kind == "gradients"
    assert {name: value.tolist() for name, value in reduced.values.items()} == {"one": [2.0, 4.0], "two": 6.0}
    assert signal.values["two"] == 3.0


# Feedback


@pytest.mark.parametrize(
    ("u", "plain", "weighted"),
    [((4,), (4,), (3,)), ((4,), (1,), (4,)), ((4,), (), ()), ((), (), ()), ((4, 1), (4, 1), (4, 1))],
    ids=str,
)
def test_feedback_needs_one_value_per_example(
    u: tuple[int, ...], plain: tuple[int, ...], weighted: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidParameter, match=r"one value per example[\s\S]*before they are averaged"):
        Feedback(Tick(), torch.zeros(u), torch.zeros(plain), torch.zeros(weighted))


def test_gathered_feedback_holds_the_examples_of_all_ranks() -> None:
    signal = Signal("gradients", {"spread": torch.ones(2)})
    action = torch.zeros(2, 3)
    told = Feedback(Tick(step=5), torch.tensor([0.1, 0.2]), torch.ones(2), torch.zeros(2), action, signal)
    gathered = told.gathered(Doubled())
    assert gathered.u.tolist() == pytest.approx([0.1, 0.2, 100.1, 100.2])
    assert gathered.plain.tolist() == [1, 1, 101, 101]
    assert gathered.weighted.tolist() == [0, 0, 100, 100]
    assert gathered.action.shape == (4, 3)
    assert gathered.signal.values["spread"].tolist() == [2, 2]
    assert gathered.tick == told.tick


def test_gathering_without_action_and_signal_stays_without() -> None:
    gathered = Feedback(Tick(), torch.zeros(2), torch.zeros(2), torch.zeros(2)).gathered(Doubled())
    assert gathered.action is None
    assert gathered.signal is None


# a sampler that learns from measurements


class Measured(OneDensity):
    """Masses in proportion to what a gradients probe last said of each stratum."""

    label = "measured"
    learns = True

    def __init__(self, strata: int, every_steps: int) -> None:
        self._borders = torch.linspace(0, 1, strata + 1)
        self._spread = torch.ones(strata)
        self._spec = ProbeSpec("gradients", every_steps, borders=tuple(self._borders.tolist()))

    @property
    def probe(self) -> ProbeSpec:
        return self._spec

    @property
    def current(self) -> Density:
        return Table(self._borders, self._spread)

    def learn(self, feedback: Feedback) -> Metrics:
        if feedback.signal is None:
            return {}
        self._spread = self._spread.clone()
        self._spread[self._spec.stratum(feedback.tick.step)] = feedback.signal.values["spread"]
        return {"spread": self._spread.mean()}

    def state_dict(self) -> State:
        return {"kind": self.label, "spread": self._spread.clone()}

    def load_state_dict(self, state: State) -> None:
        self._spread = matching(state, self.label)["spread"].clone()


def _spread(u: Tensor) -> Tensor:
    """What training would find out: gradients vary most around 0.7."""
    return 0.02 + torch.exp(-(((u - 0.7) / 0.06) ** 2))


def _probe(spec: ProbeSpec, step: int) -> Signal | None:
    """A probe without a model: the mean of the truth over the stratum whose turn it is."""
    if not spec.due(step):
        return None
    turn = spec.stratum(step)
    u = torch.linspace(spec.borders[turn], spec.borders[turn + 1], 50)
    return Signal(spec.kind, {"spread": _spread(u).mean()})


def _run(sampler: TimestepSampler, steps: int = 60) -> Tensor:
    """The draws of the last twenty steps of a training run that only probes."""
    x0, drawn = torch.zeros(64, 1), []
    for step in range(steps):
        tick = Tick(step=step)
        u = sampler.draw(x0, tick).u
        losses = torch.ones(64)
        sampler.learn(Feedback(tick, u, losses, losses, signal=_probe(sampler.probe, step)))
        drawn.append(u)
    return torch.cat(drawn[-20:])


STACKS: dict[str, Callable[[TimestepSampler], TimestepSampler]] = {
    "alone": lambda sampler: sampler,
    "mix": lambda sampler: stepwell.mix(sampler, UNIFORM, 0.1),
    "stratified": stepwell.stratified,
    "unbiased": lambda sampler: stepwell.unbiased(sampler, Uniform()),
    "within": lambda sampler: stepwell.within(sampler, 0.5, 1.0),
    "shift": lambda sampler: stepwell.shift(sampler, 2.0, LINEAR),
    "warm_up": lambda sampler: stepwell.warm_up(sampler, 20),
    "all": lambda sampler: stepwell.unbiased(
        stepwell.stratified(
            stepwell.mix(
                stepwell.within(stepwell.shift(stepwell.warm_up(sampler, 20), 2.0, LINEAR), 0.3, 1.0),
                UNIFORM,
                0.1,
            )
        ),
        Uniform(),
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_a_sampler_that_is_measured_ends_where_the_signal_is(name: str) -> None:
    sampler = STACKS[name](Measured(20, every_steps=2))
    u = _run(sampler)
    near = ((u > 0.58) & (u < 0.82)).float().mean()
    assert near > 0.6, f"{float(near):.2f} of the draws are where 0.24 of uniform ones would be"


@pytest.mark.parametrize("name", STACKS)
def test_a_measured_sampler_resumes_through_every_combinator(name: str) -> None:
    sampler, resumed = (STACKS[name](Measured(20, every_steps=2)) for _ in range(2))
    _run(sampler)
    resumed.load_state_dict(sampler.state_dict())
    tick, x0 = Tick(step=100), torch.zeros(64)
    assert torch.equal(sampler.draw(x0, tick).u, resumed.draw(x0, tick).u)


@pytest.mark.parametrize("name", ["unbiased", "all"])
def test_a_measured_sampler_keeps_the_objective_when_corrected(name: str) -> None:
    sampler = STACKS[name](Measured(20, every_steps=2))
    _run(sampler)
    draws = [sampler.draw(torch.zeros(256), Tick(seed=1, step=100 + step)) for step in range(200)]
    means = torch.stack([(drawn.correction * torch.cos(drawn.u)).mean() for drawn in draws]).double()
    # Five standard errors: fails about once in a million.
    assert abs(float(means.mean()) - torch.sin(torch.tensor(1.0))) < 5 * float(means.std()) / 200**0.5


def test_between_measurements_nothing_is_learned() -> None:
    sampler = Measured(4, every_steps=3)
    asked = [step for step in range(12) if _probe(sampler.probe, step) is not None]
    assert asked == [0, 3, 6, 9]
    assert sampler.learn(Feedback(Tick(step=1), torch.zeros(1), torch.zeros(1), torch.zeros(1))) == {}
