"""What samplers may ask to be measured and what they hear back, down to a sampler that lives on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.density import Density, Table, Uniform
from stepwell.core.errors import InvalidParameter
from stepwell.core.feedback import Feedback, GradientSignal
from stepwell.core.probe import DecreaseSpec, GradientSpec
from stepwell.core.ranks import Alone
from stepwell.core.sampler import Metrics, State, TimestepSampler, require_kind
from stepwell.core.tick import Tick
from stepwell.samplers.one_density import OneDensity, Static

LINEAR = stepwell.process("linear")
UNIFORM = Static(Uniform(), "uniform")


def _strata(count: int, every_steps: int) -> GradientSpec:
    return GradientSpec(every_steps, borders=tuple(index / count for index in range(count + 1)))


# probe specs


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"every_steps": 0, "borders": (0.0, 1.0)}, "every_steps"),
        ({"every_steps": 1.5, "borders": (0.0, 1.0)}, "every_steps"),
        ({"every_steps": 1}, "at least 2 borders"),
        ({"every_steps": 1, "borders": (0.5,)}, "at least 2 borders"),
        ({"every_steps": 1, "borders": (0.0, 0.5, 0.5, 1.0)}, "rise"),
        ({"every_steps": 1, "borders": (1.0, 0.0)}, "rise"),
        ({"every_steps": 1, "borders": (0.0, 1.5)}, r"\[0, 1\]"),
        ({"every_steps": 1, "borders": (-0.1, 1.0)}, r"\[0, 1\]"),
        ({"every_steps": 1, "borders": (0.0, float("nan"))}, r"\[0, 1\]"),
        ({"every_steps": 1, "borders": (0.0, 1.0), "images": 0}, "images"),
        ({"every_steps": 1, "borders": (0.0, 1.0), "target": ""}, "target must name a weighting"),
    ],
    ids=str,
)
def test_a_gradient_probe_that_cannot_be_is_refused(parameters: dict, named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        GradientSpec(**parameters)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"every_steps": 0, "subset": (0.5,)}, "every_steps"),
        ({"every_steps": 40}, "at least 1 time"),
        ({"every_steps": 40, "subset": (), "grid": (0.5,)}, "at least 1 time"),
        ({"every_steps": 40, "subset": (0.5, -0.1)}, r"\[0, 1\)"),
        ({"every_steps": 40, "subset": (0.5, 1.0)}, r"\[0, 1\)"),
        ({"every_steps": 40, "subset": (0.5,), "grid": (float("nan"),)}, r"\[0, 1\)"),
    ],
    ids=str,
)
def test_a_decrease_probe_that_cannot_be_is_refused(parameters: dict, named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        DecreaseSpec(**parameters)


@pytest.mark.parametrize(("every_steps", "hurried"), [(1, 1), (3, 1), (4, 1), (16, 4), (40, 10)])
@pytest.mark.parametrize("strata", [1, 2, 7])
def test_strata_take_turns_and_the_first_round_hurries(every_steps: int, hurried: int, strata: int) -> None:
    spec = _strata(strata, every_steps)
    assert spec.strata == strata
    first = [hurried * turn - 1 for turn in range(1, strata + 1)]
    later = [first[-1] + every_steps * turn for turn in range(1, 2 * strata + 1)]
    due = [step for step in range(later[-1] + 1) if spec.due(step)]
    assert due == first + later
    assert [spec.stratum(step) for step in due] == list(range(strata)) * 3


def test_a_decrease_is_measured_in_the_last_of_every_few_steps() -> None:
    spec = DecreaseSpec(40, subset=(0.5,))
    assert [step for step in range(130) if spec.due(step)] == [39, 79, 119]


def test_a_probe_is_a_value() -> None:
    assert DecreaseSpec(40, subset=(0.5,)) == DecreaseSpec(40, subset=(0.5,))
    assert _strata(3, 2) == _strata(3, 2) != _strata(3, 1)


def test_a_mapped_probe_has_other_times_and_all_else_alike() -> None:
    spec = GradientSpec(3, "vlb", (0.0, 0.5, 1.0), images=4, preconditioned=False)
    halved = spec.mapped(lambda times: tuple(time / 2 for time in times))
    assert halved == GradientSpec(3, "vlb", (0.0, 0.25, 0.5), images=4, preconditioned=False)
    fall = DecreaseSpec(40, "vlb", subset=(0.5,), grid=(0.0, 0.25), fresh_noise=True)
    halved = fall.mapped(lambda times: tuple(time / 2 for time in times))
    assert halved == DecreaseSpec(40, "vlb", subset=(0.25,), grid=(0.0, 0.125), fresh_noise=True)


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


class Doubled(Alone):
    """A group in which it shows what was gathered."""

    world = 2

    def gather(self, value: Tensor) -> Tensor:
        return torch.cat([value, value + 100])


def test_gathered_feedback_holds_the_examples_of_all_ranks() -> None:
    signal = GradientSignal(0, torch.ones(2, 3), images=8)
    action = torch.zeros(2, 3)
    told = Feedback(Tick(step=5), torch.tensor([0.1, 0.2]), torch.ones(2), torch.zeros(2), action, signal)
    gathered = told.gathered(Doubled())
    assert gathered.u.tolist() == pytest.approx([0.1, 0.2, 100.1, 100.2])
    assert gathered.plain.tolist() == [1, 1, 101, 101]
    assert gathered.weighted.tolist() == [0, 0, 100, 100]
    assert gathered.action.shape == (4, 3)
    assert gathered.signal is signal, "a signal is equal on every rank already"
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
        self._spec, self._spread = _strata(strata, every_steps), torch.ones(strata)

    @property
    def probe(self) -> GradientSpec:
        return self._spec

    @property
    def current(self) -> Density:
        return Table(torch.tensor(self._spec.borders), self._spread)

    def learn(self, feedback: Feedback) -> Metrics:
        if not isinstance(feedback.signal, GradientSignal):
            return {}
        self._spread = self._spread.clone()
        self._spread[feedback.signal.stratum] = feedback.signal.halves.diff(dim=0).norm()
        return {"spread": self._spread.mean()}

    def state_dict(self) -> State:
        return {"kind": self.label, "spread": self._spread.clone()}

    def load_state_dict(self, state: State) -> None:
        self._spread = require_kind(state, self.label)["spread"].clone()


def _spread(u: Tensor) -> Tensor:
    """What training would find out: gradients vary most around 0.7."""
    return 0.02 + torch.exp(-(((u - 0.7) / 0.06) ** 2))


def _probe(spec: GradientSpec, step: int) -> GradientSignal | None:
    """A probe without a model: the mean of the truth over the stratum whose turn it is."""
    if not spec.due(step):
        return None
    turn = spec.stratum(step)
    u = torch.linspace(spec.borders[turn], spec.borders[turn + 1], 50)
    return GradientSignal(turn, torch.stack([torch.zeros(1), _spread(u).mean()[None]]), images=1)


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
    "shift": lambda sampler: stepwell.shift(sampler, 2.0, stepwell.process("flow")),
    "warm_up": lambda sampler: stepwell.warm_up(sampler, 20),
    "all": lambda sampler: stepwell.unbiased(
        stepwell.stratified(
            stepwell.mix(
                stepwell.within(
                    stepwell.shift(stepwell.warm_up(sampler, 20), 2.0, stepwell.process("flow")), 0.3, 1.0
                ),
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
    sampler = Measured(4, every_steps=8)
    asked = [step for step in range(20) if _probe(sampler.probe, step) is not None]
    assert asked == [1, 3, 5, 7, 15]
    assert sampler.learn(Feedback(Tick(step=1), torch.zeros(1), torch.zeros(1), torch.zeros(1))) == {}
