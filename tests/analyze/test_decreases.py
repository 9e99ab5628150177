"""Rows of decreases around real updates: what is measured, and that measuring changes nothing."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator

from stepwell.analyze.approximation import Measured, decreases, require_target
from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.recipes.experiment import Experiment, experiment, network_of
from stepwell.recipes.load import load
from stepwell.recipes.training import training_of
from stepwell.train.step import Training, TrainingStopped, train_step

TIMES = 6


@pytest.fixture(scope="module")
def made() -> Experiment:
    return experiment(load("fashion16", ["model=micro", "batch=4", "dropout=0.1"]))


def fresh(made: Experiment) -> Training:
    """The same start every time: the network is built anew from the seed."""
    again = Experiment(made.plan, made.data, network_of(made.plan, made.data))
    return training_of(again, Accelerator(cpu=True))


def rows(training: Training, made: Experiment, target: str, steps: int = 2) -> torch.Tensor:
    return decreases(training, made.data.train, range(steps), Measured(target, TIMES, batch=4))


def test_measuring_does_not_change_training(made: Experiment) -> None:
    measured, plain = fresh(made), fresh(made)
    # As a loaded network is; training needs its dropout all the same.
    measured.network.eval()
    found = rows(measured, made, "vlb")
    plain.network.train()
    for step in range(2):
        train_step(plain, step)
    assert found.shape == (2, TIMES)
    assert bool((found != 0).all())
    for one, other in zip(measured.network.parameters(), plain.network.parameters(), strict=True):
        assert torch.equal(one, other)
    # The hooks are gone: further steps are not measured.
    train_step(measured, 2)
    assert len(found) == 2


def test_targets_weigh_the_same_losses(made: Experiment) -> None:
    plain, bound = rows(fresh(made), made, "none"), rows(fresh(made), made, "vlb")
    weight = build.weighting("vlb")(made.process, Measured("vlb", TIMES).grid(made.process))
    torch.testing.assert_close(bound, plain * weight.double(), rtol=1e-3, atol=1e-7)


def test_all_timesteps_are_measured_by_default(made: Experiment) -> None:
    assert torch.equal(Measured().grid(made.process), made.process.grid())
    assert len(Measured(times=5000).grid(made.process)) == 1000
    with pytest.raises(InvalidParameter, match="grid must be a whole number of at least 2"):
        Measured(times=1).grid(made.process)


def test_targets_that_a_process_does_not_have() -> None:
    with pytest.raises(Unsupported, match="--target simple"):
        require_target(build.process("flow"), "vlb")


def test_losses_that_are_not_finite_are_named(made: Experiment) -> None:
    training = fresh(made)
    with torch.no_grad():
        next(training.network.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingStopped, match="is not finite at step 1"):
        rows(training, made, "vlb", steps=1)
