"""Noise from a pace: by default what it always was, paired on request, the same after a resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import stepwell
from stepwell.core.errors import InvalidParameter, UnknownName
from stepwell.core.noise import COUPLINGS, opposite_neighbours
from stepwell.core.tick import Tick
from stepwell.pacer import Pacer
from stepwell.recipes.load import load
from stepwell.recipes.schema import BadRecipe

X0 = torch.zeros(8, 1, 4, 4)
TICK = Tick(seed=3, step=5, micro=1, rank=1, world=2)


def test_by_default_noise_is_that_of_the_tick_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(TICK.key("noise"))
    noise = Pacer("uniform", "linear").draw(X0, TICK).noise_like(X0)
    assert torch.equal(noise, torch.randn(X0.shape, generator=generator))


def test_paired_noise_follows_the_tick_and_the_times() -> None:
    pacer = Pacer("uniform", "linear", noise="paired")
    pace, plain = pacer.draw(X0, TICK), Pacer("uniform", "linear").draw(X0, TICK)
    assert torch.equal(pace.noise_like(X0), opposite_neighbours(plain.noise_like(X0), pace.u))
    assert torch.equal(pace.noise_like(X0), pace.noise_like(X0))
    by_time = pace.noise_like(X0)[pace.u.argsort()]
    assert torch.equal(by_time[1::2], -by_time[::2])


def test_ranks_and_micro_batches_share_no_noise() -> None:
    ticks = (TICK, replace(TICK, rank=0), replace(TICK, micro=0), replace(TICK, step=6))
    noises = [Pacer("uniform", "linear", noise="paired").draw(X0, tick).noise_like(X0) for tick in ticks]
    values = torch.cat(noises).abs().flatten()
    # Each value stands in two examples, of one micro-batch.
    assert len(values.unique()) == len(values) // 2


def test_a_loop_of_your_own_has_the_same_noise_after_a_resume() -> None:
    weights = torch.nn.Parameter(torch.zeros(1))

    def noises(pacer: Pacer, steps: int) -> list[torch.Tensor]:
        found = []
        for _ in range(steps):
            pace = pacer.draw(X0)
            found.append(pace.noise_like(X0))
            pacer.before_update()
            pacer.after_update()
        return found

    def made() -> Pacer:
        optimizer = torch.optim.SGD([weights], lr=0.1)
        return stepwell.Pacer("uniform", "flow", optimizer=optimizer, seed=4, noise="paired")

    whole, first, second = made(), made(), made()
    expected = noises(whole, 6)
    found = noises(first, 2)
    second.load_state_dict(first.state_dict())
    found += noises(second, 4)
    assert all(torch.equal(*both) for both in zip(expected, found, strict=True))
    evaluated = [whole.eval().draw(X0).noise_like(X0) for _ in range(2)]
    assert torch.equal(*evaluated)
    assert not any(torch.equal(evaluated[0], noise) for noise in expected)


def test_mistakes_are_named() -> None:
    with pytest.raises(UnknownName, match=r"pared.*noise.*paired"):
        Pacer("uniform", "linear", noise="pared")
    with pytest.raises(BadRecipe, match=r"1 mistake.*\n.*pared.*noise.*paired"):
        load("fashion16", ["noise=pared"])
    with pytest.raises(InvalidParameter, match=r"of 8 examples.*latents"):
        Pacer("uniform", "linear").draw(X0, TICK).noise_like(X0[:3])
    for name in COUPLINGS:
        assert load("fashion16", [f"noise={name}"]).recipe.noise == name
