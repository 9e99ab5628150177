"""Detectors warn once, in plain words, and alike in a run that was stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import case
from small_runs import assert_same_run, records_without_clock, small_run, words

from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.train import loop
from stepwell.train.sampler_warnings import DETECTORS, PATIENCE, Detector, SamplerWarnings

EXTREMES = {
    "sampler/top_tenth_mass": (0.95, 0.4),
    "sampler/explained": (0.1, 0.8),
    "sampler/policy_move": (0.6, 0.01),
    "sampler/effective_sample_share": (0.1, 0.7),
    "sampler/negative_gains": (0.5, 0.1),
}
"""Of each metric, a value that is bad and one that is good."""

WORDS = {
    "sampler/top_tenth_mass": "collapsed: 95 % of its draws",
    "sampler/explained": "explains only 10 % of the decrease",
    "sampler/policy_move": "moved 60 % of its draws",
    "sampler/effective_sample_share": "counts like 10 % of its examples",
    "sampler/negative_gains": "50 % of the strata",
}


def heard(diagnostics: SamplerWarnings, metric: str, values: list[float]) -> list[str]:
    return [message for value in values for message in diagnostics.check({metric: value, "loss": 1.0})]


def test_every_detector_is_tested_here() -> None:
    assert {detector.metric for detector in DETECTORS} == EXTREMES.keys()
    assert len({detector.name for detector in DETECTORS}) == len(DETECTORS)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
def test_it_warns_once_until_things_are_good_again(detector: Detector) -> None:
    bad, good = EXTREMES[detector.metric]
    diagnostics = SamplerWarnings()
    assert heard(diagnostics, detector.metric, [good] * 10 + [bad] * (PATIENCE - 1)) == []
    (message,) = heard(diagnostics, detector.metric, [bad] * 20)
    assert WORDS[detector.metric] in message
    assert heard(diagnostics, detector.metric, [good] * (PATIENCE - 1) + [bad] * 10) == [], "not cleared yet"
    assert len(heard(diagnostics, detector.metric, [good] * PATIENCE + [bad] * 10)) == 1


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
def test_between_its_two_bounds_nothing_changes(detector: Detector) -> None:
    bad, _ = EXTREMES[detector.metric]
    middle = (detector.limit + detector.calm) / 2
    diagnostics = SamplerWarnings()
    assert heard(diagnostics, detector.metric, [middle] * 10) == []
    heard(diagnostics, detector.metric, [bad] * PATIENCE)
    assert heard(diagnostics, detector.metric, [middle] * 10 + [bad] * 10) == []


@pytest.mark.parametrize("stop", range(2 * PATIENCE + 4))
def test_a_state_taken_at_any_moment_continues(stop: int) -> None:
    values = [0.1] * (PATIENCE + 1) + [0.9] * PATIENCE + [0.1] * PATIENCE
    metric = "sampler/effective_sample_share"
    whole = [SamplerWarnings.check(d, {metric: v}) for d in [SamplerWarnings()] for v in values]
    first, second = SamplerWarnings(), SamplerWarnings()
    found = [first.check({metric: value}) for value in values[:stop]]
    second.load_state_dict(first.state_dict())
    found += [second.check({metric: value}) for value in values[stop:]]
    assert found == whole
    assert sum(map(len, whole)) == 2


def test_values_that_are_missing_or_not_numbers_say_nothing() -> None:
    diagnostics = SamplerWarnings()
    for _ in range(10):
        assert diagnostics.check({"loss": 0.1}) == []
        assert diagnostics.check({metric: float("nan") for metric in EXTREMES}) == []


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Training whose sampler reports a collapse from the fifth step on."""
    real = loop.train_step

    def collapsing(training: Any, step: int) -> Any:
        report = real(training, step)
        mass = torch.tensor(0.95 if step >= 4 else 0.2)
        object.__setattr__(report, "sampler", {**report.sampler, "top_tenth_mass": mass})
        return report

    monkeypatch.setattr(loop, "train_step", collapsing)
    return monkeypatch


def test_a_run_says_and_records_it(troubled: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    run_plan(load("fashion16", words(tmp_path / "run", method="uniform")), say=said.append)
    step = 4 + PATIENCE
    assert [line for line in said if "collapsed" in line] == [
        line for line in said if line.startswith(f"Warning at step {step}: the policy collapsed")
    ]
    (warning,) = [line for line in records_without_clock(tmp_path / "run") if line["kind"] == "warning"]
    assert warning["step"] == step
    assert warning["images"] == step * 8
    assert warning["message"] in "".join(said)


@pytest.mark.parametrize("stop", [case(stop, quick=stop == 7) for stop in (6, 7, 9)])
def test_a_run_stopped_around_a_warning_warns_as_one_never_stopped(
    troubled: pytest.MonkeyPatch, tmp_path: Path, stop: int
) -> None:
    small_run(tmp_path / "whole")
    collapsing = loop.train_step

    def interrupted(training: Any, step: int) -> Any:
        if step == stop - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return collapsing(training, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", interrupted)
        small_run(tmp_path / "run")
    small_run(tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "warned"),
    [("neyman", True), ("neyman:strata=2,every_steps=1,images=2", False), ("uniform", False)],
)
def test_a_run_too_short_for_its_sampler_says_so(method: str, warned: bool, tmp_path: Path) -> None:
    lines = records_without_clock(small_run(tmp_path / "run", method=method))
    found = [
        line["message"]
        for line in lines
        if line["kind"] == "warning" and "like the reference" in line["message"]
    ]
    assert bool(found) == warned
    if warned:
        assert "measured all of time once after 20 steps" in found[0]
