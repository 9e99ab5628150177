"""Interdependence where it was planted: bands that share nothing, and bands that pull one weight apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from planted import BANDS, SIZE, BandDenoiser, Planted
from scipy import stats
from torch import Tensor, nn

import stepwell
from stepwell.analyze.gradient_rounds import Effort, GradientRounds
from stepwell.analyze.interdependence import (
    Alignments,
    Continuation,
    Transfer,
    Truncated,
    alignments,
    transfer,
)
from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.tick import Tick
from stepwell.data.batches import Batch
from stepwell.evaluate.bands import HeldOutLoss
from stepwell.objective import Objective
from stepwell.pacer import Pacer
from stepwell.probes.context import ProbeSetup
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import LearningRate
from stepwell.train.step import Training, train_step

PROCESS = stepwell.process("linear")
BATCH = 64


class Gaussian:
    """Batches of normal data, a function of the tick."""

    def __init__(self, scales: Tensor) -> None:
        self.scales = scales

    def at(self, tick: Tick, accumulate: int = 1) -> Batch:
        x0 = torch.randn(BATCH, len(self.scales), generator=tick.generator("data")) * self.scales
        return Batch(x0, None, torch.arange(BATCH))


class Opposed(nn.Module):
    """Says g x before the middle of time and -g x after it: the best g of one is the worst of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(SIZE))

    def forward(self, input: Tensor, time: Tensor, condition: Any = None) -> Tensor:
        """[B, SIZE] at timesteps [B] of 1000."""
        return torch.where(time < 500, 1.0, -1.0)[:, None] * self.gain * input


def training_of(network: nn.Module, scales: Tensor, lr: float = 1e-3, weighting: str = "none") -> Training:
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    network, optimizer = accelerator.prepare(network, optimizer)
    return Training(
        accelerator,
        network,
        objective := Objective(PROCESS, stepwell.weighting(weighting)),
        Pacer("uniform", PROCESS, objective.weighting),
        Gaussian(scales),  # type: ignore[arg-type]
        optimizer,
        LearningRate(lr),
        Ema(network.parameters(), 0.9),
        seed=1,
    )


def losses_of(scales: Tensor, bands: int = BANDS) -> Callable[[nn.Module], Sequence[float]]:
    x0 = torch.randn(256, len(scales), generator=torch.Generator().manual_seed(7)) * scales
    held_out = HeldOutLoss(PROCESS, x0, bands=bands)

    def losses(network: nn.Module) -> Sequence[float]:
        assert not network.training
        found: list[float] = held_out(network).plain.tolist()
        return found

    return losses


def aligned(network: nn.Module, scales: Tensor, effort: Effort, optimizer: Any = None) -> Alignments:
    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return Objective(PROCESS)(network, x0, noise, u, condition).plain

    def examples(tick: Tick) -> tuple[Tensor, None]:
        size = 2 * effort.images, len(scales)
        return torch.randn(size, generator=tick.generator("data")) * scales, None

    optimizer = optimizer or torch.optim.SGD(network.parameters(), lr=0.1)
    view = ProbeSetup(PROCESS, stepwell.weighting("none"), loss_at, optimizer, network)
    return alignments(GradientRounds(view, examples, effort), "adam")


def went_on(training: Training, scales: Tensor, *ranges: tuple[float, float]) -> Transfer:
    return transfer(training, 10, losses_of(scales), Continuation(ranges, steps=20))


def test_going_on_teaches_the_weighting_of_the_training_nothing() -> None:
    planted = Planted(bands=(2, 7))
    training = training_of(planted.model, planted.scales, weighting="uncertainty")
    train_step(training, 0)
    before = training.pacer.state_dict()["weighting"]
    went_on(training, planted.scales, (0.2, 0.3))
    after = training.pacer.state_dict()["weighting"]
    assert before["updates"] == after["updates"] == 1
    assert torch.equal(before["level"], after["level"])


def test_bands_that_share_nothing_change_nothing_elsewhere() -> None:
    planted = Planted(bands=(2, 7))
    found = went_on(training_of(planted.model, planted.scales), planted.scales, (0.2, 0.3), (0.7, 0.8))
    assert found.ranges == ((0.2, 0.3), (0.7, 0.8), (0.0, 1.0))
    for row, band in enumerate((2, 7)):
        change = found.change[row]
        assert change[band] < -5 * found.margin[row][band] < 0, "what is trained falls"
        assert [value for other, value in enumerate(change) if other != band] == [0.0] * (BANDS - 1)
    assert found.change[2][2] < 0, "all of time has the planted bands too"
    assert all(value != 0 for value in found.change[2])


def test_strata_of_bands_that_share_nothing_are_orthogonal() -> None:
    planted = Planted(bands=range(BANDS))
    found = aligned(planted.model, planted.scales, Effort(20, 10, 16))
    product, cosine = torch.tensor(found.product), torch.tensor(found.cosine)
    # There are no more weights than a sketch has places: other bands' products are exactly 0.
    same = torch.arange(20)[:, None] // 2 == torch.arange(20) // 2
    assert not product[~same].any()
    assert not cosine[~same].any()
    assert (cosine[same] > 0.9).all(), "two strata of a band with everything to learn agree"
    assert found.metric == "plain"


def test_bands_with_opposite_targets_undo_each_other() -> None:
    scales = torch.full((SIZE,), 0.5)
    network = Opposed()
    found = went_on(training_of(network, scales), scales, (0.0, 0.5), (0.5, 1.0))
    change, margin = torch.tensor(found.change), torch.tensor(found.margin)
    early = torch.arange(BANDS) < BANDS // 2
    for row, trained in enumerate((early, ~early)):
        assert (change[row, trained] < -margin[row, trained]).all()
        assert (change[row, ~trained] > margin[row, ~trained]).all()
    cosine = torch.tensor(aligned(network, scales, Effort(10, 3, 64)).cosine)
    assert (cosine[early][:, early] > 0.8).all()
    assert (cosine[early][:, ~early] < -0.8).all()
    assert torch.equal(cosine, cosine.T)


def test_the_loss_per_band_before_is_the_closed_form() -> None:
    scales = torch.full((SIZE,), 0.5)
    network = Opposed()
    nn.init.constant_(network.gain, 0.3)
    before = torch.tensor(went_on(training_of(network, scales), scales).before).double()
    a, s = (scale.double() for scale in PROCESS.scales(PROCESS.grid()))
    gain = torch.where(torch.arange(1000) < 500, 0.3, -0.3).double()
    variance = gain**2 * (a**2 * 0.25 + s**2) - 2 * gain * s + 1
    truth = variance.view(BANDS, -1).mean(1)
    # 256 images of SIZE normal errors: relative standard deviation sqrt(2 / 4096) in every band.
    far = stats.norm.isf(1e-6 / 2 / BANDS) * (2 / (256 * SIZE)) ** 0.5
    assert ((before / truth - 1).abs() < far).all(), (before, truth)


def test_products_are_those_of_the_mean_gradients() -> None:
    scales = torch.full((SIZE,), 0.5)
    effort = Effort(4, 40, 8)
    found = aligned(Opposed(), scales, effort)
    # At g = 0 one coordinate's gradient is -2 (+-1) x eps / D, with the mean -2 (+-1) s / D.
    s = PROCESS.scales(PROCESS.grid())[1].double().view(4, -1).mean(1)
    mean = -2 * torch.tensor([1, 1, -1, -1]) * s / SIZE
    truth = SIZE * mean[:, None] * mean
    product = torch.tensor(found.product, dtype=torch.float64)
    error = torch.tensor(found.margin, dtype=torch.float64) / stats.t.ppf(0.975, effort.rounds - 1)
    t = float(((product - truth) / error).abs().max())
    assert 2 * 16 * stats.t.sf(t, effort.rounds - 1) > 1e-6, "fails as often if all is right"
    assert ((product / truth - 1).abs() < 0.2).all(), "the test above has power"


def test_noise_is_not_taken_for_a_gradient() -> None:
    planted = Planted(bands=())
    # Every band is at its optimum: products are noise, and few squares of 10 leave their 95 % interval.
    found = aligned(planted.model, planted.scales, Effort(BANDS, 10, 2))
    told = int((~torch.tensor(found.cosine).diagonal().isnan()).sum())
    assert stats.binom.sf(told - 1, BANDS, 0.025) > 1e-6, f"{told} strata have a gradient that is not there"


def test_the_training_is_left_as_it_was() -> None:
    planted = Planted(bands=(2,))
    training = training_of(planted.model, planted.scales)
    from stepwell.train.step import train_step

    for step in range(3):
        train_step(training, step)
    network = training.network.eval()

    def state() -> list[Tensor]:
        moments = [value for each in training.optimizer.state.values() for value in each.values()]
        return [tensor.clone() for tensor in (*network.parameters(), *moments, *training.ema.average)]

    before, random = state(), torch.random.get_rng_state()
    first = went_on(training, planted.scales, (0.2, 0.3))
    assert all(torch.equal(*both) for both in zip(before, state(), strict=True))
    assert not network.training
    assert torch.equal(random, torch.random.get_rng_state())
    assert went_on(training, planted.scales, (0.2, 0.3)) == first, "and says the same again"

    def broken(network: nn.Module) -> Sequence[float]:
        changed = not torch.equal(before[0], next(network.parameters()))
        return [float("nan") if changed else 1.0] * BANDS

    with pytest.raises(NonFiniteLoss, match="give fewer --steps"):
        transfer(training, 3, broken, Continuation(((0.2, 0.3),), steps=2))
    assert all(torch.equal(*both) for both in zip(before, state(), strict=True))


@pytest.mark.parametrize("name", ["linear", "edm", "flow"])
def test_a_part_of_a_density_is_that_density_there(name: str) -> None:
    whole = stepwell.process(name).reference
    part = Truncated(whole, 0.3, 0.6)
    v = (torch.arange(1000) + 0.5) / 1000
    u = part.quantile(v)
    assert u.min() >= 0.3
    assert u.max() < 0.6
    assert torch.allclose(part.cdf(u), v, atol=1e-4)
    borders = torch.linspace(0.3, 0.6, 2001, dtype=torch.float64)
    middles = (borders[1:] + borders[:-1]) / 2
    assert float((part.pdf(middles) * borders.diff()).sum()) == pytest.approx(1.0, rel=1e-4)
    assert not part.pdf(torch.tensor([0.1, 0.7])).any()


@pytest.mark.parametrize("bad", [(0.2, 0.2), (0.5, 0.1), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 1.0)])
def test_what_is_no_range_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(InvalidParameter, match="is not a range of unit time"):
        Continuation((bad,))


def test_band_denoisers_are_told_apart_by_time() -> None:
    weights = torch.arange(BANDS).float()[:, None, None] * torch.eye(SIZE)
    said = BandDenoiser(weights)(torch.ones(2, SIZE), torch.tensor([250, 999]))
    assert said[:, 0].tolist() == [2.0, 9.0]
