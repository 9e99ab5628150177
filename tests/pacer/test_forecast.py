"""What draws leave of the gradient's variance, told from losses, on losses whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.pacer import Pacer

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


@pytest.mark.parametrize("name", ["auto", "loss-root"])
def test_what_learned_draws_leave(name: str) -> None:
    pacer = watched(name, steep, steps=300)
    told = pacer.forecast()
    assert abs(told.left - true_left(pacer, steep)) < 4 * told.left_error + 0.01
    assert told.left < 0.8


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
