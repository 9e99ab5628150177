"""Samplers that learn from losses, against slow references in plain Python and against known profiles."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import feedback, profile
from torch import Tensor
from torch.utils._pytree import tree_leaves

import stepwell
from stepwell.core.density import edges
from stepwell.core.errors import InvalidParameter, NonFiniteLoss, StateMismatch
from stepwell.core.feedback import Feedback
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import State, TimestepSampler
from stepwell.core.tick import Tick
from stepwell.samplers.losses import (
    LossEma,
    LossSecondMoment,
    info_noise,
    log_snr_bins,
    loss_ema,
    loss_root,
    loss_second_moment,
)

LEARNERS = ("loss-second-moment", "loss-ema", "info-noise")
U = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000

Batch = list[tuple[int, float]]
"""Pairs of a bin and a loss."""


def _batches(bins: int) -> st.SearchStrategy[list[Batch]]:
    """Batches that hit few bins, so that most losses share one; their sizes go far beyond any history."""
    example = st.tuples(st.integers(0, bins - 1), st.floats(0, 100, width=32))
    sizes = st.one_of(st.integers(1, 8), st.integers(1, 300))
    batch = sizes.flatmap(lambda size: st.lists(example, min_size=size, max_size=size))
    return st.lists(batch, min_size=1, max_size=6)


def _told(batch: Iterable[tuple[int, float]], borders: Tensor) -> Feedback:
    """Feedback at the middles of the named bins."""
    index, losses = zip(*batch, strict=True)
    middle = ((borders[1:] + borders[:-1]) / 2).float()
    return feedback(middle[list(index)], torch.tensor(losses))


# loss-root


def test_the_root_is_of_the_loss_and_the_weight_counts_in_full() -> None:
    """p_k ~ width_k w_k sqrt(L_k): the weight is outside of the root, because it scales the gradient."""
    process = stepwell.process("linear")
    borders = log_snr_bins(process, 4)
    losses, weights = torch.tensor([4.0, 1.0, 0.25, 0.01]), torch.tensor([1.0, 3.0, 0.5, 20.0])
    sampler = loss_root(process, bins=4, decay=0.5, uniform_share=0.0)
    middle = ((borders[1:] + borders[:-1]) / 2).float()
    sampler.learn(Feedback(Tick(), middle, losses, weights * losses))
    expected = borders.diff() * (weights * losses.sqrt()).double()
    assert torch.allclose(sampler.masses(borders), expected / expected.sum(), atol=1e-6)


# loss-second-moment


@given(
    batches=st.integers(1, 6).flatmap(lambda bins: st.tuples(st.just(bins), _batches(bins))),
    history=st.integers(1, 12),
)
@settings(deadline=None, max_examples=40)
def test_the_second_moment_keeps_the_newest_losses_of_each_bin(
    batches: tuple[int, list[Batch]], history: int
) -> None:
    bins, stream = batches
    measure = torch.arange(1, bins + 1, dtype=torch.float64)
    sampler, rings = LossSecondMoment(measure, history), [deque(maxlen=history) for _ in range(bins)]
    for batch in stream:
        metrics = sampler.learn(_told(batch, edges(bins)))
        for index, loss in batch:
            rings[index].append(loss)
        state = sampler.state_dict()
        for index, ring in enumerate(rings):
            assert sorted(state["losses"][index].tolist()) == sorted([*ring, *[0.0] * (history - len(ring))])
        full = [len(ring) == history for ring in rings]
        assert float(metrics["bins_full"]) == pytest.approx(sum(full) / bins)
        roots = [math.sqrt(sum(loss**2 for loss in ring) / history) for ring in rings]
        masses = [m * max(root, 1e-30) for m, root in zip(measure.tolist(), roots, strict=True)]
        expected = [mass / sum(masses) for mass in masses] if all(full) else [1 / bins] * bins
        # Its borders are float32, which moves a bin of 6 by up to 2e-7.
        assert sampler.masses(edges(bins)).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_second_moment_forgets_in_the_order_of_arrival() -> None:
    sampler = LossSecondMoment(torch.ones(1), 3)
    for losses in ([1.0, 2.0], [3.0, 4.0], [5.0]):
        sampler.learn(_told([(0, loss) for loss in losses], edges(1)))
    assert sorted(sampler.state_dict()["losses"][0].tolist()) == [3.0, 4.0, 5.0]


def test_the_second_moment_draws_uniformly_until_every_bin_is_full() -> None:
    sampler = loss_second_moment(stepwell.process("linear", timesteps=4), history=2, uniform_share=0)
    middle = torch.tensor([0.125, 0.375, 0.625, 0.875])
    for u in (middle, middle[:3]):
        sampler.learn(feedback(u, torch.tensor([1.0, 2.0, 3.0, 4.0])[: len(u)]))
        assert torch.equal(sampler.density(middle), torch.ones(4))
    sampler.learn(feedback(middle[3:], torch.tensor([4.0])))
    assert torch.allclose(sampler.density(middle), torch.tensor([0.4, 0.8, 1.2, 1.6]))


def test_the_second_moment_has_a_uniform_floor() -> None:
    sampler = stepwell.sampler("loss-second-moment", "linear", bins=2, history=1, uniform_share=0.5)
    sampler.learn(feedback(torch.tensor([0.25, 0.75]), torch.tensor([0.0, 1.0])))
    assert torch.allclose(sampler.density(torch.tensor([0.25, 0.75])), torch.tensor([0.5, 1.5]))


def test_bins_follow_the_timesteps_unless_they_are_given() -> None:
    assert "bins=250" in repr(
        stepwell.sampler("loss-second-moment", stepwell.process("linear", timesteps=250))
    )
    assert "bins=1000" in repr(stepwell.sampler("loss-second-moment", "flow"))
    assert "bins=32" in repr(stepwell.sampler("loss-second-moment", "linear", bins=32))
    with pytest.raises(InvalidParameter, match="bins"):
        stepwell.sampler("loss-second-moment", "linear", bins=0)


# loss-ema


@given(
    batches=st.integers(1, 6).flatmap(lambda bins: st.tuples(st.just(bins), _batches(bins))),
    decay=st.sampled_from([0.0, 0.5, 0.9, 0.999]),
)
@settings(deadline=None, max_examples=40)
def test_the_running_mean_is_the_debiased_mean_of_bin_means(
    batches: tuple[int, list[Batch]], decay: float
) -> None:
    bins, stream = batches
    measure = torch.arange(1, bins + 1, dtype=torch.float64)
    sampler = LossEma("reference", edges(bins), measure, decay, lambda told: told.weighted)
    mean, seen = [0.0] * bins, [0.0] * bins
    for batch in stream:
        sampler.learn(_told(batch, edges(bins)))
        for index in range(bins):
            losses = [loss for at, loss in batch if at == index]
            if losses:
                kept = decay ** len(losses)
                mean[index] = kept * mean[index] + (1 - kept) * sum(losses) / len(losses)
                seen[index] = kept * seen[index] + (1 - kept)
        average = sum(mean) / sum(seen)
        height = [m / s if s else average for m, s in zip(mean, seen, strict=True)]
        masses = [m * max(h, 1e-30) for m, h in zip(measure.tolist(), height, strict=True)]
        expected = [mass / sum(masses) for mass in masses]
        assert sampler.masses(edges(bins)).tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_one_loss_is_enough_for_a_bin() -> None:
    # A mean that starts at 0 and is not debiased would need a thousand losses.
    sampler = LossEma("debiased", edges(2), torch.ones(2), 0.999, lambda told: told.weighted)
    sampler.learn(feedback(torch.tensor([0.25, 0.75]), torch.tensor([1.0, 3.0])))
    assert torch.allclose(sampler.density(torch.tensor([0.25, 0.75])), torch.tensor([0.5, 1.5]), rtol=1e-4)


@pytest.mark.parametrize("process", ["linear", "cosine", "flow", "edm"])
def test_the_density_of_loss_ema_becomes_the_loss_profile(process: str) -> None:
    over = stepwell.process(process)
    sampler = loss_ema(over, bins=50, decay=0.99, uniform_share=0.01)
    for step in range(150):
        tick = Tick(seed=2, step=step)
        u = tick.uniform("anywhere", 512)
        sampler.learn(feedback(u, profile(u) * (0.5 + tick.uniform("noise", 512)), tick))
    borders = log_snr_bins(over, 50)
    bin_of = torch.bucketize(U, borders[1:-1], right=True)
    count = len(borders) - 1
    within_bin = torch.zeros(count, dtype=torch.float64).index_add_(0, bin_of, profile(U))
    mean_loss = within_bin / torch.bincount(bin_of, minlength=count).clamp(min=1)
    aimed = mean_loss * over.reference.masses(borders)
    expected = 0.99 * aimed / aimed.sum() + 0.01 * borders.diff()
    measured = torch.bincount(bin_of, minlength=count) >= 4
    # Two hundred losses in effect, each +- 0.29: four standard errors are 8 %.
    ratio = sampler.masses(borders)[measured] / expected[measured]
    assert (ratio - 1).abs().max() < 0.12


def test_the_corrected_objective_stays_what_it_was() -> None:
    sampler = stepwell.sampler("loss-ema", "edm", bins=30, decay=0.9)
    reference = stepwell.process("edm").reference
    for step in range(50):
        tick = Tick(step=step)
        drawn = sampler.draw(torch.zeros(256), tick)
        sampler.learn(feedback(drawn.u, tick=tick))
        assert torch.allclose(
            drawn.correction, reference.pdf(drawn.u) * torch.exp(-drawn.log_prob), rtol=1e-4
        )
    aimed = float((reference.pdf(U) * profile(U)).mean())
    corrected = sampler.density(U) * (reference.pdf(U) / sampler.density(U)) * profile(U)
    assert float(corrected.mean()) == pytest.approx(aimed)


@pytest.mark.parametrize("name", ["loss-second-moment", "loss-ema"])
@pytest.mark.parametrize("process", ["linear", "flow", "edm"])
def test_equal_losses_draw_from_the_reference(name: str, process: str) -> None:
    # p in proportion to reference x loss: with all losses alike nothing is left to correct.
    over = stepwell.process(process)
    sampler = stepwell.sampler(name, over, uniform_share=0.0, unbiased=False)
    spread = (torch.arange(40_000) + 0.5) / 40_000
    sampler.learn(feedback(spread, torch.full((40_000,), 0.7)))
    coarse = edges(20)
    expected = over.reference.masses(coarse)
    # loss-ema's bins are flat inside, so a reference that is not may move inside them.
    assert torch.allclose(sampler.masses(coarse), expected, rtol=0.02, atol=3e-3)


def test_bins_are_even_in_log_snr_and_hold_whole_timesteps() -> None:
    for name in ("linear", "cosine"):
        over = stepwell.process(name)
        borders = log_snr_bins(over, 50)
        steps = borders * 1000
        assert torch.allclose(steps, steps.round(), atol=1e-6)
        assert (borders.diff() > 0).all()
    flow = stepwell.process("flow")
    widths = flow.log_snr(log_snr_bins(flow, 50)[1:-1]).diff()
    assert torch.allclose(widths, widths.mean().expand_as(widths), rtol=1e-6)


# info-noise


def _eps_profile(log_snr: Tensor) -> Tensor:
    """A synthetic eps loss over log-SNR: high at the noise end, with a bump in the middle."""
    return torch.sigmoid(-log_snr / 3) * 0.2 + torch.exp(-((log_snr / 3) ** 2))


PREDICTIONS = [
    ("linear", "eps"),
    ("linear", "v"),
    ("linear", "x0"),
    ("cosine", "v"),
    ("flow", "velocity"),
    ("flow", "eps"),
    ("flow", "x0"),
    ("edm", None),
]


def _process(name: str, prediction: str | None) -> NoiseProcess:
    return stepwell.process(name, **({} if prediction is None else {"prediction": prediction}))


@pytest.mark.parametrize(("name", "prediction"), PREDICTIONS, ids=str)
def test_info_noise_follows_the_eps_loss_over_log_sigma(name: str, prediction: str | None) -> None:
    process, bins = _process(name, prediction), 40
    sampler = info_noise(process, bins=bins, decay=0.0, uniform_share=0.0)
    borders = log_snr_bins(process, bins)
    inset = 0 if process.timesteps else 1e-3
    u = inset + (1 - 2 * inset) * (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    eps_loss = _eps_profile(process.log_snr(u))
    sampler.learn(feedback(u, eps_loss / process.eps_factor(u)))
    # The ends of a flow have no finite ln sigma, and the end bins of a table reach beyond the data.
    inner = borders[1:-1]
    ln_sigma = -process.log_snr(inner) / 2
    if process.timesteps is not None:
        half = 0.5 / process.timesteps
        ln_sigma = -(process.log_snr(inner - half) + process.log_snr(inner + half)) / 4
    bin_of = torch.bucketize(u, borders[1:-1], right=True)
    total = torch.zeros(len(borders) - 1, dtype=torch.float64).index_add_(0, bin_of, eps_loss)
    mean = (total / torch.bincount(bin_of))[1:-1]
    expected = mean * ln_sigma.diff()
    masses = sampler.masses(borders)[1:-1]
    assert torch.allclose(masses / masses.sum(), expected / expected.sum(), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("name", "prediction"), PREDICTIONS[:-1], ids=str)
def test_info_noise_is_the_same_for_every_prediction(name: str, prediction: str | None) -> None:
    densities = []
    for process in (_process(name, prediction), _process(name, "eps")):
        sampler = info_noise(process)
        for step in range(5):
            u = Tick(step=step).uniform("anywhere", 2000).clamp(1e-3, 1 - 1e-3)
            sampler.learn(feedback(u, _eps_profile(process.log_snr(u)) / process.eps_factor(u)))
        densities.append(sampler.density(U))
    assert torch.allclose(*densities, rtol=1e-3)


def test_info_noise_listens_to_the_plain_loss() -> None:
    # A weighting changes the objective, not where noise destroys information.
    told, same = info_noise(stepwell.process("linear")), info_noise(stepwell.process("linear"))
    u = Tick().uniform("anywhere", 500)
    told.learn(Feedback(Tick(), u, plain=profile(u), weighted=100 * u))
    same.learn(Feedback(Tick(), u, plain=profile(u), weighted=profile(u)))
    assert torch.equal(told.density(U), same.density(U))


@pytest.mark.parametrize("build", [loss_ema, loss_second_moment], ids=["loss-ema", "loss-second-moment"])
def test_the_others_listen_to_the_weighted_loss(build: type) -> None:
    told, same = build(stepwell.process("linear")), build(stepwell.process("linear"))
    u = (torch.arange(20_000) + 0.5) / 20_000
    told.learn(Feedback(Tick(), u, plain=100 * u, weighted=profile(u)))
    same.learn(Feedback(Tick(), u, plain=profile(u), weighted=profile(u)))
    assert torch.equal(told.density(U), same.density(U))


@pytest.mark.parametrize("prediction", ["eps", "v", "x0"])
def test_info_noise_stays_finite_at_zero_terminal_snr(prediction: str) -> None:
    process = stepwell.process("cosine", prediction=prediction, zero_terminal_snr=True)
    sampler = info_noise(process)
    u = Tick().uniform("anywhere", 5000)
    sampler.learn(feedback(u))
    assert sampler.density(U).isfinite().all()


# losses of every kind


def _state_tensors(state: State) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_is_an_error_and_changes_nothing(name: str, bad: float) -> None:
    sampler = stepwell.sampler(name, "flow")
    sampler.learn(feedback(torch.tensor([0.1, 0.5, 0.9])))
    before, density = _state_tensors(sampler.state_dict()), sampler.density(U)
    with pytest.raises(NonFiniteLoss, match=r"1 of 3 losses.*u = 0\.5000"):
        sampler.learn(feedback(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1.0, bad, 1.0])))
    after = _state_tensors(sampler.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert torch.equal(density, sampler.density(U))


@pytest.mark.parametrize("name", LEARNERS)
def test_an_accelerator_leaves_out_losses_that_are_not_finite(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There nobody can look without stopping the device; here the look is taken away instead.
    monkeypatch.setattr("stepwell.samplers.losses.valid_losses", lambda losses, u, learner: losses.isfinite())
    parameters = {"bins": 4, "unbiased": False}
    told, same = (stepwell.sampler(name, "flow", **parameters) for _ in range(2))
    u = Tick().uniform("anywhere", 200)
    losses, good = profile(u), torch.arange(200) % 3 != 0
    spoiled = torch.where(good, losses, torch.tensor([math.nan, math.inf]).repeat(100))
    metrics = told.learn(feedback(u, spoiled))
    same.learn(feedback(u[good], losses[good]))
    assert int(metrics["losses_left_out"]) == 67
    assert torch.allclose(told.density(U), same.density(U))


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("process", ["linear", "flow", "edm"])
@pytest.mark.parametrize("loss", [0.0, 1e-20, 1e25])
def test_losses_of_any_size_leave_a_density(name: str, process: str, loss: float) -> None:
    sampler, u = stepwell.sampler(name, process, unbiased=False), (torch.arange(20_000) + 0.5) / 20_000
    sampler.learn(feedback(u, torch.full_like(u, loss)))
    density = sampler.density(U)
    assert density.isfinite().all()
    assert (density >= 0).all()
    assert float(sampler.cdf(torch.ones(1))) == pytest.approx(1)
    assert sampler.draw(torch.zeros(1000), Tick()).log_prob.isfinite().all()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_time_without_loss_is_drawn_hardly_ever(name: str) -> None:
    sampler, u = stepwell.sampler(name, "linear", unbiased=False), (torch.arange(20_000) + 0.5) / 20_000
    sampler.learn(feedback(u, torch.where(u < 0.5, 0.0, 1.0)))
    # What is left is the uniform share, 1 % at most, and the bin that straddles the middle.
    assert float(sampler.cdf(torch.tensor([0.48]))) < 0.02


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_of_any_dtype_are_learned_without_their_graph(name: str, dtype: torch.dtype) -> None:
    sampler = stepwell.sampler(name, "linear", unbiased=False)
    u = (torch.arange(20_000) + 0.5) / 20_000
    losses = profile(u).to(dtype).requires_grad_()
    sampler.learn(feedback(u, losses * 1))
    density = sampler.density(U)
    assert not density.requires_grad
    assert not any(tensor.requires_grad for tensor in _state_tensors(sampler.state_dict()))
    assert not torch.equal(density, stepwell.sampler(name, "linear", unbiased=False).density(U))


def _fixed(sampler: TimestepSampler) -> bool:
    before = sampler.density(U)
    sampler.learn(feedback((torch.arange(20_000) + 0.5) / 20_000))
    return torch.equal(before, sampler.density(U))


@pytest.mark.parametrize("name", ["uniform", "logit-normal", "speed", "cosmap"])
def test_static_samplers_do_not_learn(name: str) -> None:
    assert _fixed(stepwell.sampler(name, "linear"))


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_do(name: str) -> None:
    assert not _fixed(stepwell.sampler(name, "linear"))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_floor_outside_counts_for_the_correction(name: str) -> None:
    sampler = stepwell.sampler(name, "linear", floor=0.5, unbiased=True)
    sampler.learn(feedback((torch.arange(20_000) + 0.5) / 20_000))
    drawn = sampler.draw(torch.zeros(5000), Tick())
    assert drawn.correction.max() <= 2.001


@pytest.mark.parametrize("other", ["cosine", "quadratic"])
@pytest.mark.parametrize("name", ["loss-ema", "info-noise"])
def test_the_state_of_the_same_learner_on_another_process_is_refused(name: str, other: str) -> None:
    # Bins of equal log-SNR lie elsewhere on another process, and there may be another number of them.
    saved = stepwell.sampler(name, other).state_dict()
    with pytest.raises(StateMismatch):
        stepwell.sampler(name, "linear").load_state_dict(saved)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("loss-second-moment", {"history": 0}),
        ("loss-second-moment", {"bins": -1}),
        ("loss-second-moment", {"uniform_share": 1.5}),
        ("loss-ema", {"bins": 0}),
        ("loss-ema", {"decay": 1.0}),
        ("loss-ema", {"decay": -0.1}),
        ("loss-ema", {"decay": "slow"}),
        ("info-noise", {"decay": None}),
        ("info-noise", {"bins": 2.5}),
    ],
)
def test_parameters_that_cannot_work_are_refused(name: str, parameters: dict) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(parameters)).split("_")[-1]):
        stepwell.sampler(name, "linear", **parameters)
