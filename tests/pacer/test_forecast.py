"""What draws leave of the gradient's variance, told from losses, on losses whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.density import not_below
from stepwell.core.errors import InvalidParameter
from stepwell.core.estimates import Estimate
from stepwell.pacer import Pacer
from stepwell.pacer.forecast import Forecast
from stepwell.samplers.losses import even_bins

FINE = (torch.arange(4000).double() + 0.5) / 4000


def steep(u: Tensor) -> Tensor:
    return 0.4 * torch.exp(-5 * u)


def flat(u: Tensor) -> Tensor:
    return torch.full_like(u, 0.3)


def watched(
    name: str, loss: Callable[[Tensor], Tensor], steps: int = 150, process: str = "linear", batch: int = 8
) -> Pacer:
    """A pacer that observed losses with chi-square noise of four degrees of freedom."""
    pacer = Pacer(name, process)
    observe(pacer, loss, range(steps), batch)
    return pacer


def observe(pacer: Pacer, loss: Callable[[Tensor], Tensor], steps: range, batch: int = 8) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        pace = pacer.draw(torch.zeros(batch, 1))
        noise = torch.randn(batch, 4, generator=generator).square().mean(1)
        pacer.observe(loss(pace.u.double()).float() * noise)
        pacer.before_update()
        pacer.after_update()


def true_left(pacer: Pacer, loss: Callable[[Tensor], Tensor]) -> float:
    q, p = pacer.process.reference.pdf(FINE), pacer.sampler.density(FINE)
    return float((q**2 * loss(FINE) / p).mean() / (q * loss(FINE)).mean())


def test_uniform_draws_leave_all_and_it_says_what_the_best_would() -> None:
    told = watched("uniform", steep).forecast()
    best = float(steep(FINE).sqrt().mean() ** 2 / steep(FINE).mean())
    assert told.losses == 1200
    assert told.left == pytest.approx(1, abs=1e-4)
    # Four standard errors, once in 16,000 seeds; and the error itself is small.
    assert abs(told.least - best) < 4 * told.least_error
    assert told.least_error < 0.03
    assert str(told).startswith("these timesteps save nothing; the best would leave 0.6")


@pytest.mark.parametrize("name", ["auto", "auto:bins=32", "loss-root"])
def test_what_learned_draws_leave(name: str) -> None:
    pacer = watched(name, steep, steps=300)
    told = pacer.forecast()
    assert abs(told.left - true_left(pacer, steep)) < 4 * told.left_error + 0.01
    assert told.left < 0.8


def test_the_curve_of_auto_is_not_kept_twice() -> None:
    pacer = watched("auto", steep, steps=43)
    state = pacer.state_dict()["forecast"]
    assert not state["count"].any()
    assert not len(state["u"])
    told = pacer.forecast()
    assert pacer.forecast() == told, "asking changed the curve"
    resumed = Pacer("auto", "linear")
    resumed.load_state_dict(pacer.state_dict())
    assert resumed.forecast() == told


def test_a_curve_over_other_times_or_bins_is_not_taken() -> None:
    borders = not_below(even_bins(stepwell.process("linear"), 64), torch.float32)
    assert stepwell.sampler("auto", "linear").loss_curve(borders) is not None
    assert stepwell.sampler("auto", "linear", within=(0.2, 0.8), unbiased=False).loss_curve(borders) is None
    assert stepwell.sampler("auto", "linear", bins=32).loss_curve(borders) is None


@pytest.mark.parametrize("process", ["linear", "flow", "edm"])
def test_nothing_to_win_is_a_forecast_too(process: str) -> None:
    told = watched("reference", flat, process=process).forecast()
    assert told.least > 0.98
    assert str(told).startswith("nothing to win here")


def test_draws_that_change_the_objective_have_no_share() -> None:
    told = watched("logit-normal", steep).forecast()
    assert math.isnan(told.left)
    assert "change the objective" in str(told)
    assert watched("logit-normal:unbiased=true", steep).forecast().left > told.least


def test_before_enough_losses_it_says_so() -> None:
    assert "no forecast yet: 0 of the 100 losses" in str(Pacer("uniform", "linear").forecast())
    assert "no forecast yet: 16 of the 100 losses" in str(watched("uniform", steep, steps=2).forecast())


def test_it_goes_on_exactly_and_asking_changes_nothing() -> None:
    whole = watched("uniform", steep, steps=60)
    half = watched("uniform", steep, steps=37)
    for _ in range(3):
        half.forecast()
    resumed = Pacer("uniform", "linear")
    resumed.load_state_dict(half.state_dict())
    observe(resumed, steep, range(37, 60))
    assert resumed.forecast() == whole.forecast()


def test_a_weighting_counts() -> None:
    """Flat losses under a steep weight: most is won where the weight is high."""
    pacer = Pacer("uniform", "linear", "min-snr")
    observe(pacer, flat, range(200))
    weight = stepwell.weighting("min-snr")(pacer.process, FINE)
    best = float(weight.mean() ** 2 / weight.square().mean())
    told = pacer.forecast()
    assert abs(told.least - best) < 4 * told.least_error + 0.01


def test_a_pacer_without_a_name_is_auto_and_needs_a_process() -> None:
    assert "auto" in repr(Pacer(process="flow").sampler)
    with pytest.raises(InvalidParameter, match="Pacer\\(process=noise_scheduler\\)"):
        Pacer()


def test_losses_that_are_not_finite_do_not_count() -> None:
    pacer = watched("uniform", steep, steps=20)
    before = pacer.forecast()
    for _ in range(16):
        pacer.draw(torch.zeros(4, 1))
        pacer.observe(torch.full((4,), math.nan))
        pacer.before_update()
        pacer.after_update()
    after: Any = pacer.forecast()
    assert after.losses == before.losses + 64
    assert math.isfinite(after.least)


MEASURED = {"critical_batch": Estimate(107, 78, 169), "best_images": Estimate(0.66, 0.6, 0.73)}
OWN = {**MEASURED, "images": Estimate(0.71, 0.65, 0.78)}
LEAST = "0.58 (0.54 to 0.62) of the gradient's variance"
WORTH = "; small batches need about that share of the images, large ones save less"
TEXTS = {
    "no losses": (
        Forecast(16, 1.0, 0.0, 1.0, 0.0),
        "",
        "no forecast yet: 16 of the 100 losses that it needs were observed",
    ),
    "nothing to win": (
        Forecast(500, 1.0, 0.0, 0.99, 0.01),
        "nothing to win by other timesteps",
        "nothing to win here: even the best timesteps would leave 0.99 (0.97 to 1.00) of the gradient's "
        "variance",
    ),
    "nothing to win at this batch": (
        Forecast(500, 0.62, 0.02, 0.58, 0.02, 4096, **{**OWN, "best_images": Estimate(0.99, 0.98, 1.0)}),
        "nothing to win by other timesteps",
        "nothing to win here: even the best timesteps would need 0.99 (0.98 to 1.00) of the images that "
        f"the process's own timesteps need at batch 4096; they leave {LEAST}, and the critical batch is "
        "107 (78 to 169)",
    ),
    "objective changed": (
        Forecast(500, math.nan, 0.02, 0.58, 0.02),
        "gradient variance at best 0.58x",
        f"these timesteps change the objective; the best that keep it would leave {LEAST}{WORTH}",
    ),
    "objective changed, measured": (
        Forecast(500, math.nan, 0.02, 0.58, 0.02, 16, **MEASURED),
        "forecast at best 0.66x the images",
        "these timesteps change the objective; the best that keep it would need 0.66 (0.60 to 0.73) of "
        f"the images that the process's own timesteps need at batch 16; they leave {LEAST}, and the "
        "critical batch is 107 (78 to 169)",
    ),
    "the process's own": (
        Forecast(500, 1.0, 0.0, 0.58, 0.02),
        "gradient variance 1.00x, best 0.58x",
        f"these timesteps save nothing; the best would leave {LEAST}{WORTH}",
    ),
    "losses only": (
        Forecast(500, 0.62, 0.02, 0.58, 0.02),
        "gradient variance 0.62x, best 0.58x",
        "these timesteps leave 0.62 (0.58 to 0.66) of the gradient's variance, the best would leave "
        f"0.58 (0.54 to 0.62){WORTH}",
    ),
    "measured": (
        Forecast(500, 0.62, 0.02, 0.58, 0.02, 16, **OWN),
        "forecast 0.71x the images, best 0.66x",
        "expect 0.71 (0.65 to 0.78) of the images that the process's own timesteps need at batch 16, "
        "0.66 (0.60 to 0.73) at best: these timesteps leave 0.62 (0.58 to 0.66) of the gradient's "
        "variance, the best 0.58 (0.54 to 0.62), and the critical batch is 107 (78 to 169)",
    ),
    "no signal seen": (
        Forecast(
            500, 0.62, 0.02, 0.58, 0.02, 4, **{**OWN, "critical_batch": Estimate(math.inf, 78, math.inf)}
        ),
        "forecast 0.71x the images, best 0.66x",
        "expect 0.71 (0.65 to 0.78) of the images that the process's own timesteps need at batch 4, "
        "0.66 (0.60 to 0.73) at best: these timesteps leave 0.62 (0.58 to 0.66) of the gradient's "
        "variance, the best 0.58 (0.54 to 0.62), and the critical batch is above 78",
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_every_forecast_in_words(kind: str) -> None:
    told, short, long = TEXTS[kind]
    assert (told.short(), str(told)) == (short, long)
    numbers = told.scalars()
    assert all(map(math.isfinite, numbers.values()))
    if numbers:
        assert str(Forecast.recorded(numbers, told.losses, told.batch)) == long


def test_where_a_reference_ends_no_draws_are_missed() -> None:
    pacer = stepwell.Pacer("auto", "flow:shift=3,reference=logit-normal")
    for _ in range(40):
        pace = pacer.draw(torch.zeros(16, 1))
        pacer.observe(0.5 + 0.1 * pace.u)
        pacer.before_update()
        pacer.after_update()
    # Its last bins have less mass than float32 tells from none.
    assert pacer.forecast().left == pytest.approx(1, abs=0.02)
