"""uncertainty and uncertainty-mean: where they arrive, on losses that are planted."""

from __future__ import annotations

import math
from collections.abc import Callable

import published
import pytest
import torch
from cases import case
from torch import Tensor

import stepwell
from stepwell.catalogue import build
from stepwell.core.errors import Unsupported
from stepwell.pacer import Pacer
from stepwell.weightings.uncertainty import LARGEST_LOG_LOSS, Uncertainty

FORMS = ("uncertainty", "uncertainty-mean")


def steep(u: Tensor) -> Tensor:
    """A loss a hundred times as high near the data, as on DDPM's linear chain."""
    return 0.4 * torch.exp(-5 * u) + 0.004


def hill(u: Tensor) -> Tensor:
    return 0.1 + torch.exp(-3 * u) + 2 * torch.exp(-(((u - 0.6) / 0.15) ** 2))


def taught(
    name: str, process: str, loss: Callable[[Tensor], Tensor], updates: int, freedom: int = 4
) -> Uncertainty:
    """A weighting after updates of 64 draws of the reference, losses with chi-square noise; 0: without."""
    weighting, over = stepwell.weighting(name), stepwell.process(process)
    assert isinstance(weighting, Uncertainty)
    generator = torch.Generator().manual_seed(0)
    for step in range(updates):
        u = over.reference.quantile(torch.rand(64, generator=generator).double()).float()
        noise = torch.randn(64, freedom, generator=generator).square().mean(1) if freedom else 1.0
        losses = loss(u) * noise
        weighting.learn(over, stepwell.Feedback(stepwell.Tick(step=step), u, losses, losses))
    return weighting


def error(weighting: Uncertainty, process: str, loss: Callable[[Tensor], Tensor]) -> float:
    """The root mean square of v - ln(loss), over the process's own draws."""
    over = stepwell.process(process)
    u = over.reference.quantile((torch.arange(500).double() + 0.5) / 500).float()
    return float((weighting.log_loss(over, u) - loss(u).log()).square().mean().sqrt())


@pytest.mark.parametrize(
    ("name", "process", "loss"),
    [
        case("uncertainty", "flow", steep, quick=True),
        case("uncertainty", "linear", hill, quick=False),
        case("uncertainty", "edm", steep, quick=False),
        case("uncertainty-mean", "flow", steep, quick=True),
        case("uncertainty-mean", "linear", hill, quick=False),
        case("uncertainty-mean", "edm", steep, quick=False),
    ],
)
def test_v_becomes_the_logarithm_of_the_planted_loss(
    name: str, process: str, loss: Callable[[Tensor], Tensor]
) -> None:
    # Measured after 2,000 updates of 64 noisy losses: 0.04 to 0.05 learned, 0.02 to 0.03 from means.
    tolerance = 0.08 if name == "uncertainty" else 0.05
    assert error(taught(name, process, loss, updates=2000), process, loss) < tolerance


@pytest.mark.parametrize("name", FORMS)
def test_a_constant_loss_arrives_at_its_logarithm_and_the_objective_at_one_more(name: str) -> None:
    weighting, over, u = stepwell.weighting(name), stepwell.process("flow"), torch.linspace(0.01, 0.99, 64)
    losses = torch.full_like(u, 0.05)
    for step in range(400):
        metrics = weighting.learn(over, stepwell.Feedback(stepwell.Tick(step=step), u, losses, losses))
    v, objective = (float(text) for text in published.UNCERTAINTY_OF_A_TWENTIETH.split())
    assert (v, objective) == pytest.approx((math.log(0.05), 1 + math.log(0.05)), abs=5e-5)
    assert weighting.log_loss(over, u).tolist() == pytest.approx([v] * 64, abs=0.06)
    assert float(metrics["uncertainty_loss"]) == pytest.approx(objective, abs=1e-3)
    assert float(metrics["weighted_loss"]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", FORMS)
def test_weights_are_one_over_the_loss_and_nobody_scales_them(name: str) -> None:
    weighting, over = taught(name, "flow", lambda u: 0 * u + 0.02, 600, freedom=0), stepwell.process("flow")
    u = torch.linspace(0.1, 0.9, 9)
    assert weighting(over, u).tolist() == pytest.approx([50.0] * 9, rel=0.02)


@pytest.mark.parametrize("name", FORMS)
def test_losses_of_nothing_and_of_everything_have_finite_weights(name: str) -> None:
    for loss in (0.0, 1e30):
        weighting = taught(name, "flow", lambda u, loss=loss: 0 * u + loss, 40, freedom=0)
        weights = weighting(stepwell.process("flow"), torch.rand(50))
        assert weights.isfinite().all()
        assert (weights.log().abs() <= LARGEST_LOG_LOSS + 1e-4).all()


def test_draws_of_auto_follow_weight_times_root_of_loss_and_keep_the_weighted_objective() -> None:
    pacer, loss = Pacer("auto", "flow", "uncertainty-mean"), steep
    for _ in range(400):
        pace = pacer.draw(torch.zeros(64, 1))
        pacer.observe(loss(pace.u))
        pacer.before_update()
        pacer.after_update()
    u = (torch.arange(1000) + 0.5) / 1000
    # Weight 1 / loss: the density is that of 1 / sqrt(loss), four fifths of it; the rest is the reference.
    wanted = loss(u) ** -0.5
    wanted = 0.2 + 0.8 * wanted / wanted.mean()
    found = pacer.sampler.density(u)
    assert float((found / wanted - 1).square().mean().sqrt()) < 0.06
    pace = pacer.draw(torch.zeros(20_000, 1))
    terms = pace.weight * loss(pace.u)
    # All weighted losses are 1, however they are drawn: the objective is the reference's mean of 1.
    assert float(terms.mean()) == pytest.approx(1, abs=0.03)
    assert float((terms / pace.correction).std()) < 0.1


def test_a_weighting_that_learns_is_no_measure() -> None:
    with pytest.raises(Unsupported, match=r"uncertainty learns its weights.*fixed weighting"):
        build.fixed_weighting("uncertainty")
    weight = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(Unsupported, match="It is the sampler's target"):
        Pacer("alignment:target=uncertainty", "linear", loss_at=lambda *_: weight)
