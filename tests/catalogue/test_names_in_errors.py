"""Errors name samplers and processes as people wrote them."""

from __future__ import annotations

import pytest
import torch

import stepwell
from stepwell.catalogue.find import SAMPLERS
from stepwell.core.errors import InvalidParameter, StateMismatch, Unsupported
from stepwell.pacer.window import CallOrderError
from stepwell.processes.scheduler import process_from
from stepwell.samplers.combinators import stratified


class Scheduler:
    """As diffusers' have it."""

    alphas_cumprod = stepwell.process("linear", timesteps=8).alphas_cumprod()


def test_what_the_catalogue_builds_is_called_what_it_was_asked_for() -> None:
    process = stepwell.process("cosine:timesteps=100", prediction="v")
    assert str(process) == "cosine:timesteps=100,prediction=v"
    assert str(stepwell.sampler("neyman:strata=8", process, floor=0.1)) == "neyman:strata=8,floor=0.1"
    assert str(process_from(Scheduler())) == "Scheduler (8 timesteps, eps)"


@pytest.mark.parametrize("name", [entry.name for entry in SAMPLERS if entry.learns])
def test_what_is_put_together_in_code_shows_no_fingerprint(name: str) -> None:
    process = stepwell.process("linear")
    wrapped = stratified(stepwell.sampler(name, process, unbiased=False, stratified=False))
    assert str(wrapped) == f"stratified({name}:unbiased=false,stratified=false)"
    wrapped.sampler.written = ""  # type: ignore[attr-defined]
    assert "over=" not in str(wrapped)


def test_errors_name_the_sampler_and_the_process() -> None:
    with pytest.raises(InvalidParameter, match=r"^neyman:strata=8 measures losses itself"):
        stepwell.Pacer("neyman:strata=8", "linear")
    with pytest.raises(Unsupported, match=r"^uniform:within=.*,unbiased=true never draws u from 0.5"):
        stepwell.sampler("uniform", "linear", within=(0, 0.5), unbiased=True)
    with pytest.raises(Unsupported, match=r"and cosine is no flow"):
        stepwell.sampler("flux", "cosine")
    pacer = stepwell.Pacer(process="linear")
    pacer.draw(torch.zeros(2, 1))
    with pytest.raises(CallOrderError, match="which auto learns from"):
        pacer.after_update()


def test_a_state_of_another_process_is_refused_in_words() -> None:
    one, other = (stepwell.sampler("auto", process) for process in ("linear", "flow"))
    with pytest.raises(StateMismatch, match="on another process") as caught:
        other.load_state_dict(one.state_dict())
    assert "over=" not in str(caught.value)
