"""The laws of mix, stratified, unbiased, warm_up, within and shift."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from odds import assert_uniform
from synthetic import feedback, profile
from torch import Tensor

import stepwell
from stepwell.core.density import Density, Uniform, edges
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Feedback, GradientSignal
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.core.sampler import Metrics, TimestepSampler
from stepwell.core.tick import Tick
from stepwell.samplers.one_density import Static

LINEAR = stepwell.process("linear")
FLOW = stepwell.process("flow")
EDM = stepwell.process("edm")
UNIFORM = Static(Uniform(), "uniform")
U = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000


def _logit_normal() -> TimestepSampler:
    return stepwell.sampler("logit-normal", LINEAR)


def _learner() -> TimestepSampler:
    return stepwell.sampler("loss-ema", FLOW, bins=20, decay=0.9, unbiased=False)


class Listening(Static):
    """Uniform draws; keeps its feedback, and asks for whatever a test wants measured."""

    learns = True

    def __init__(self, spec: ProbeSpec | None = None) -> None:
        super().__init__(Uniform(), "listening")
        self._spec = spec
        self.heard: list[Feedback] = []

    @property
    def probe(self) -> ProbeSpec | None:
        return self._spec

    def learn(self, feedback: Feedback) -> Metrics:
        self.heard.append(feedback)
        return {}


# mix


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 1.0])
def test_a_mixture_is_the_convex_combination(share: float) -> None:
    one, other = _logit_normal(), stepwell.sampler("beta", LINEAR)
    mixed = stepwell.mix(one, other, share)
    assert torch.allclose(mixed.density(U), (1 - share) * one.density(U) + share * other.density(U))
    assert torch.allclose(mixed.cdf(U), (1 - share) * one.cdf(U) + share * other.cdf(U))


@pytest.mark.parametrize(("share", "only"), [(0.0, "one"), (1.0, "other")])
def test_a_mixture_of_all_or_nothing_draws_from_one_part(share: float, only: str) -> None:
    parts = {"one": stepwell.within(UNIFORM, 0, 0.25), "other": stepwell.within(UNIFORM, 0.5, 1)}
    u = stepwell.mix(parts["one"], parts["other"], share).draw(torch.zeros(5000), Tick()).u
    assert (parts[only].density(u) > 0).all()


def test_the_share_of_a_mixture_is_met() -> None:
    mixed = stepwell.mix(stepwell.within(UNIFORM, 0, 0.5), stepwell.within(UNIFORM, 0.5, 1), 0.3)
    u = mixed.draw(torch.zeros(100_000), Tick()).u
    # Five standard deviations of a binomial share: fails once in two million.
    assert abs(float((u >= 0.5).float().mean()) - 0.3) < 5 * (0.3 * 0.7 / 100_000) ** 0.5


def test_only_the_first_part_of_a_mixture_learns() -> None:
    one, other = Listening(), Listening()
    stepwell.mix(one, other, 0.5).learn(feedback(torch.rand(4)))
    assert (len(one.heard), len(other.heard)) == (1, 0)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), None, True])
def test_a_share_outside_zero_to_one_is_refused(share: object) -> None:
    with pytest.raises(InvalidParameter, match="share"):
        stepwell.mix(UNIFORM, UNIFORM, share)


# stratified


def _global_batch(batch: int, world: int, step: int = 0, micro: int = 0) -> Tensor:
    """Uniforms [world, batch] as every rank of a group would draw them."""
    sampler, x0 = stepwell.stratified(UNIFORM), torch.zeros(batch)
    ticks = (Tick(seed=5, step=step, micro=micro, rank=rank, world=world) for rank in range(world))
    return torch.stack([sampler.draw(x0, tick).u for tick in ticks]).double()


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_every_stratum_of_the_global_batch_gets_one_draw(world: int, batch: int) -> None:
    count = world * batch
    for step, micro in itertools.product(range(5), range(4)):
        inside = _global_batch(batch, world, step, micro).flatten().sort().values * count - torch.arange(
            count
        )
        # float32 may round a draw up to its stratum's border, never past it.
        assert ((inside >= 0) & (inside <= 1)).all()


@pytest.mark.parametrize("world", [2, 4])
def test_every_rank_covers_time_evenly(world: int) -> None:
    for step in range(5):
        for of_rank in _global_batch(64, world, step):
            # One draw in each world-th stratum: no gap is wider than two such steps.
            gaps = torch.cat([of_rank.sort().values, of_rank.min()[None] + 1]).diff()
            assert gaps.max() < 2 / 64


def test_ranks_and_accumulation_steps_never_share_a_time() -> None:
    drawn = [_global_batch(64, 4, step, micro) for step in range(4) for micro in range(4)]
    assert len(torch.cat(drawn).unique()) == 4 * 4 * 4 * 64


def _star_discrepancy(points: Tensor) -> Tensor:
    """The largest gap between share and length of [0, x) for rows of points [n, M]."""
    rows, count = points.sort(dim=1).values, points.shape[1]
    rank = torch.arange(count, dtype=torch.float64)
    above, below = (rank + 1) / count - rows, rows - rank / count
    return torch.maximum(above, below).amax(1)


@pytest.mark.parametrize("accumulation", [2, 3, 4, 8])
def test_accumulation_steps_spread_inside_each_stratum(accumulation: int) -> None:
    count = 2 * 512
    micros = [_global_batch(512, 2, micro=micro).flatten() for micro in range(accumulation)]
    inside = torch.stack(micros, dim=1) * count % 1
    independent = Tick(seed=6).uniform("independent", count * accumulation).double()
    ratio = _star_discrepancy(inside).mean() / _star_discrepancy(independent.view(count, -1)).mean()
    # The golden ratio gives 0.81, 0.67, 0.67 and 0.42 in expectation, each +- 0.01 over 1024 strata.
    assert ratio < {2: 0.87, 3: 0.73, 4: 0.73, 8: 0.48}[accumulation]


@pytest.mark.parametrize("micro", [0, 3])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 2), (3, 4)])
def test_few_strata_have_the_bits_that_torch_gives(
    rank: int, world: int, micro: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draws() -> Tensor:
        ticks = (Tick(7, step, micro, rank, world) for step in range(30))
        return torch.cat([sampler.draw(torch.zeros(n), tick).u for tick in ticks for n in (1, 3, 4, 31)])

    sampler = stepwell.stratified(UNIFORM)
    few = draws()
    monkeypatch.setattr("stepwell.samplers.combinators.few", lambda count, device: False)
    assert torch.equal(few, draws())


@pytest.mark.parametrize("slot", [0, 3, 6])
def test_each_example_of_a_stratified_batch_is_an_ordinary_draw(slot: int) -> None:
    sampler, x0 = stepwell.stratified(_logit_normal()), torch.zeros(7)
    ticks = [Tick(seed=8, step=step, micro=step % 3, rank=step % 2, world=2) for step in range(2000)]
    u = torch.stack([sampler.draw(x0, tick).u[slot] for tick in ticks]).double()
    assert_uniform(sampler.cdf(u), failure_rate=1e-6)


@pytest.mark.parametrize("name", ["uniform", "logit-normal", "speed", "beta", "info-noise"])
def test_stratified_batches_have_a_far_smaller_variance(name: str) -> None:
    inner = stepwell.sampler(name, FLOW)

    def variance(sampler: TimestepSampler) -> float:
        batches = [sampler.draw(torch.zeros(64), Tick(seed=9, step=step)).u for step in range(300)]
        return float(torch.sin(3 * torch.stack(batches).double()).mean(1).var())

    assert variance(inner) / variance(stepwell.stratified(inner)) > 50


def test_stratified_keeps_density_and_correction() -> None:
    inner = stepwell.unbiased(_logit_normal(), Uniform())
    outer = stepwell.stratified(inner)
    drawn = outer.draw(torch.zeros(100), Tick())
    assert torch.equal(outer.density(U), inner.density(U))
    assert outer.reference is inner.reference
    assert torch.allclose(drawn.correction, 1 / inner.density(drawn.u))


# unbiased


@pytest.mark.parametrize("reference", [Uniform(), EDM.reference], ids=["uniform", "edm"])
def test_the_correction_is_reference_over_density(reference: Density) -> None:
    sampler = stepwell.unbiased(stepwell.sampler("logit-normal", EDM, floor=0.1), reference)
    drawn = sampler.draw(torch.zeros(5000), Tick())
    assert torch.allclose(drawn.correction, reference.pdf(drawn.u) / sampler.density(drawn.u), rtol=1e-4)
    assert torch.allclose(drawn.log_prob, sampler.density(drawn.u).log())


@pytest.mark.parametrize("stratify", [False, True])
def test_the_corrected_mean_is_the_reference_mean(stratify: bool) -> None:
    sampler = stepwell.sampler("logit-normal", EDM, floor=0.2, unbiased=True, stratified=stratify)
    means = []
    for step in range(200):
        drawn = sampler.draw(torch.zeros(256), Tick(seed=4, step=step))
        means.append((drawn.correction * profile(drawn.u)).mean())
    means = torch.stack(means).double()
    aimed = (EDM.reference.pdf(U) * profile(U)).mean()
    # Five standard errors over 200 steps: fails about once in a million.
    assert abs(float(means.mean() - aimed)) < 5 * float(means.std()) / 200**0.5


@pytest.mark.parametrize(
    ("build", "missing"),
    [
        (lambda: stepwell.within(UNIFORM, 0.2, 0.8), "0.0001 to 0.9999"),
        (lambda: stepwell.sampler("table", LINEAR, masses=[1, 1, 0, 1]), "0.5001 to 0.7499"),
    ],
    ids=["within", "table"],
)
def test_missing_support_is_an_error_that_says_where(
    build: Callable[[], TimestepSampler], missing: str
) -> None:
    with pytest.raises(Unsupported, match=missing):
        stepwell.unbiased(build(), Uniform())


def test_missing_support_is_found_behind_a_warm_up() -> None:
    # At step 0 the warm-up draws uniformly; what counts is what it draws afterwards.
    with pytest.raises(Unsupported, match="never draws"):
        stepwell.sampler("table", LINEAR, masses=[0, 1], warm_up_steps=10, unbiased=True)


def test_missing_support_by_keyword_is_an_error_too() -> None:
    with pytest.raises(Unsupported, match="never draws"):
        stepwell.sampler("uniform", LINEAR, within=(0.2, 0.8), unbiased=True)


def test_a_floor_restores_support() -> None:
    floored = stepwell.mix(stepwell.within(UNIFORM, 0.2, 0.8), UNIFORM, 0.1)
    assert stepwell.unbiased(floored, Uniform()).reference is not None


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("mix", lambda corrected: stepwell.mix(corrected, UNIFORM, 0.1)),
        ("mix", lambda corrected: stepwell.mix(UNIFORM, corrected, 0.1)),
        ("mix", lambda corrected: stepwell.mix(stepwell.stratified(corrected), UNIFORM, 0.1)),
        ("warm_up", lambda corrected: stepwell.warm_up(corrected, 5)),
        ("within", lambda corrected: stepwell.within(corrected, 0.2, 0.8)),
        ("shift", lambda corrected: stepwell.shift(corrected, 3.0, FLOW)),
        ("unbiased", lambda corrected: stepwell.unbiased(corrected, Uniform())),
    ],
    ids=["mix", "mix-other", "mix-stratified", "warm_up", "within", "shift", "unbiased"],
)
def test_a_corrected_sampler_cannot_be_reshaped(
    name: str, wrap: Callable[[TimestepSampler], TimestepSampler]
) -> None:
    corrected = stepwell.unbiased(_logit_normal(), Uniform())
    with pytest.raises(Unsupported) as error:
        wrap(corrected)
    assert f"unbiased({name}(...), reference)" in str(error.value)


# warm_up


def test_a_warm_up_ends_exactly_at_its_step() -> None:
    inner = _logit_normal()
    sampler, x0 = stepwell.warm_up(inner, 5), torch.zeros(64)
    u = U.float()
    assert torch.equal(sampler.density(u), torch.ones_like(u))
    for step in range(10):
        tick = Tick(seed=2, step=step)
        expected = UNIFORM if step < 5 else inner
        drawn = sampler.draw(x0, tick)
        assert torch.equal(drawn.u, expected.draw(x0, tick).u)
        assert torch.equal(drawn.log_prob, expected.draw(x0, tick).log_prob)
        assert torch.equal(sampler.density(u), expected.density(u))
        assert torch.equal(sampler.cdf(u), expected.cdf(u))


def test_a_resumed_warm_up_knows_where_it_was() -> None:
    sampler, resumed = stepwell.warm_up(_logit_normal(), 5), stepwell.warm_up(_logit_normal(), 5)
    sampler.draw(torch.zeros(1), Tick(step=7))
    resumed.load_state_dict(sampler.state_dict())
    assert torch.equal(resumed.density(U), sampler.density(U))


def test_a_sampler_learns_during_its_warm_up() -> None:
    listening = Listening()
    stepwell.warm_up(listening, 5).learn(feedback(torch.rand(4)))
    assert len(listening.heard) == 1


@pytest.mark.parametrize("steps", [0, -1, 1.5, None])
def test_a_warm_up_needs_a_number_of_steps(steps: object) -> None:
    with pytest.raises(InvalidParameter, match="steps"):
        stepwell.warm_up(UNIFORM, steps)


# within

EXTREME = torch.tensor([2**-24, 1 - 2**-24])
"""The smallest and the largest uniform that a tick can give."""


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.8), (0.1, 0.7), (0.7, 0.9), (0.3, 0.3001), (0, 1)])
def test_within_never_leaves_its_range(low: float, high: float) -> None:
    u = stepwell.within(UNIFORM, low, high).draw(torch.zeros(200_000), Tick()).u
    assert float(u.min()) >= low
    assert float(u.max()) < high


def test_within_keeps_its_range_for_every_pair_of_timesteps() -> None:
    # In float32 0.7 is below 0.7: such a draw would be timestep 699 of 1000.
    left = []
    for first, last in ((first, first + 1) for first in range(1000)):
        sampler = stepwell.sampler("uniform", LINEAR, min_timestep=first, max_timestep=last)
        index = LINEAR.time(sampler.from_uniform(EXTREME, torch.zeros(2), Tick()).u)
        left += [(first, t) for t in index.tolist() if t != first]
    assert left == []


def test_within_has_no_density_outside_and_all_of_it_inside() -> None:
    sampler = stepwell.within(_logit_normal(), 0.25, 0.75)
    inside = (U >= 0.25) & (U < 0.75)
    assert (sampler.density(U[~inside]) == 0).all()
    assert torch.allclose(sampler.density(U[inside]), 2 * _logit_normal().density(2 * U[inside] - 0.5))
    assert sampler.cdf(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == [0, 0, 0.5, 1, 1]


def test_within_learns_in_the_coordinate_of_its_sampler() -> None:
    listening = Listening()
    u = torch.tensor([0.25, 0.375, 0.5, 0.7])
    stepwell.within(listening, 0.25, 0.75).learn(feedback(u))
    assert torch.allclose(listening.heard[0].u, torch.tensor([0.0, 0.25, 0.5, 0.9]))


def test_losses_outside_the_range_teach_nothing() -> None:
    # They come from a floor or a warm-up around within; at the range's ends they would stand for its bins.
    u = torch.tensor([0.3, 0.4, 0.6])
    told, same = stepwell.within(_learner(), 0.25, 0.75), stepwell.within(_learner(), 0.25, 0.75)
    told.learn(feedback(torch.cat([u, torch.tensor([0.1, 0.9])]), torch.tensor([1.0, 2, 3, 1e6, 1e6])))
    same.learn(feedback(u, torch.tensor([1.0, 2, 3])))
    assert torch.allclose(told.density(U), same.density(U))


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.8, 0.2), (-0.1, 0.5), (0.5, 1.1), (None, 1)])
def test_an_empty_or_outer_range_is_refused(low: object, high: object) -> None:
    with pytest.raises(InvalidParameter, match="range"):
        stepwell.within(UNIFORM, low, high)


# shift


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 17.0])
def test_shift_moves_every_draw_by_the_formula(factor: float) -> None:
    x0 = torch.zeros(5000)
    plain = UNIFORM.draw(x0, Tick()).u.double()
    shifted = stepwell.shift(UNIFORM, factor, FLOW).draw(x0, Tick()).u.double()
    assert torch.allclose(shifted, factor * plain / (1 + (factor - 1) * plain), atol=1e-6)
    assert torch.allclose(shifted / (factor - (factor - 1) * shifted), plain, atol=1e-5)


@pytest.mark.parametrize("factor", [0.2, 3.0])
def test_the_density_of_a_shift_is_that_of_its_inverse(factor: float) -> None:
    sampler = stepwell.shift(UNIFORM, factor, FLOW)
    assert torch.allclose(sampler.cdf(U), U / (factor - (factor - 1) * U))
    assert torch.allclose(sampler.density(U), factor / (factor - (factor - 1) * U) ** 2)


def test_shift_and_its_inverse_cancel() -> None:
    there_and_back = stepwell.shift(stepwell.shift(_logit_normal(), 3.0, FLOW), 1 / 3, FLOW)
    assert torch.allclose(there_and_back.density(U), _logit_normal().density(U))


def test_shift_learns_in_the_coordinate_of_its_sampler() -> None:
    listening = Listening()
    sampler = stepwell.shift(listening, 3.0, FLOW)
    drawn = sampler.draw(torch.zeros(100), Tick()).u
    sampler.learn(feedback(drawn))
    assert torch.allclose(listening.heard[0].u, UNIFORM.draw(torch.zeros(100), Tick()).u, atol=1e-5)


@pytest.mark.parametrize("factor", [0, -1, float("inf"), None])
def test_a_shift_that_is_not_positive_is_refused(factor: object) -> None:
    with pytest.raises(InvalidParameter, match="shift"):
        stepwell.shift(UNIFORM, factor, FLOW)


def test_shifting_a_shifted_process_is_an_error_that_says_what_it_would_do() -> None:
    shifted = stepwell.process("flow", shift=3.0)
    with pytest.raises(Unsupported, match="would shift by 6"):
        stepwell.sampler("uniform", shifted, shift=2.0)
    assert stepwell.sampler("uniform", shifted, shift=1.0).density(U).max() == 1


# what passes through all of them

WRAPPERS: dict[str, Callable[[TimestepSampler], TimestepSampler]] = {
    "mix": lambda sampler: stepwell.mix(sampler, UNIFORM, 0.1),
    "stratified": stepwell.stratified,
    "unbiased": lambda sampler: stepwell.unbiased(sampler, Uniform()),
    "warm_up": lambda sampler: stepwell.warm_up(sampler, 5),
    "within": lambda sampler: stepwell.within(sampler, 0.5, 1.0),
    "shift": lambda sampler: stepwell.shift(sampler, 3.0, FLOW),
}


def _shifted(u: float) -> float:
    return 3 * u / (1 + 2 * u)


PLACES: dict[str, Callable[[float], float]] = {"within": lambda u: 0.5 + u / 2, "shift": _shifted}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_probe_is_asked_for_in_the_outer_coordinate(name: str) -> None:
    at = PLACES.get(name, lambda u: u)
    strata = GradientSpec(3, "vlb", borders=(0.0, 0.25, 0.5, 1.0), images=5, preconditioned=False)
    asked = WRAPPERS[name](Listening(strata)).probe
    assert asked.borders == pytest.approx(tuple(map(at, strata.borders)))
    assert replace(asked, borders=strata.borders) == strata
    times = DecreaseSpec(40, subset=(0.1, 0.6), grid=(0.0, 0.25, 0.75), train_mode=True)
    asked = WRAPPERS[name](Listening(times)).probe
    assert asked.subset == pytest.approx(tuple(map(at, times.subset)))
    assert asked.grid == pytest.approx(tuple(map(at, times.grid)))
    assert replace(asked, subset=times.subset, grid=times.grid) == times


def test_a_probe_goes_through_two_coordinates() -> None:
    spec = GradientSpec(3, borders=(0.0, 0.5, 1.0))
    both = stepwell.within(stepwell.shift(Listening(spec), 3.0, FLOW), 0.5, 1.0)
    assert both.probe.borders == pytest.approx((0.5, 0.5 + _shifted(0.5) / 2, 1.0))


@pytest.mark.parametrize("name", WRAPPERS)
def test_no_probe_stays_no_probe(name: str) -> None:
    assert WRAPPERS[name](UNIFORM).probe is None


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "within"])
def test_signals_and_losses_reach_the_sampler_inside(name: str) -> None:
    listening, signal = Listening(), GradientSignal(1, torch.ones(2, 3), images=8)
    losses = torch.rand(4, generator=torch.Generator().manual_seed(0))
    WRAPPERS[name](listening).learn(feedback(edges(4)[:-1].float(), losses, Tick(step=3), signal))
    heard = listening.heard[0]
    assert heard.signal is signal
    assert heard.tick == Tick(step=3)
    assert torch.equal(heard.plain, losses)
    assert torch.equal(heard.weighted, losses)


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("from_losses", [True, False])
def test_what_a_sampler_learns_from_shows_through(name: str, from_losses: bool) -> None:
    listening = Listening()
    listening.learns_from_losses = from_losses
    wrapped = WRAPPERS[name](listening)
    assert (wrapped.learns, wrapped.learns_from_losses) == (True, from_losses)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_portrait_shows_through(name: str) -> None:
    listening = Listening()
    listening.diagnostics = lambda: {"matrix": torch.eye(2)}
    assert torch.equal(WRAPPERS[name](listening).diagnostics()["matrix"], torch.eye(2))


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_combinator_prints_what_it_wraps(name: str) -> None:
    inner = _logit_normal()
    assert repr(inner) in repr(WRAPPERS[name](inner))
