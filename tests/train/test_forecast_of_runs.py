"""A run measures its forecast at the averaged weights, records it, and trains as if it had not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import newest_tensors, records_without_clock, small_run
from torch import Tensor

from stepwell.compare.forecasts import newest_forecast
from stepwell.compare.results import read, write_record
from stepwell.pacer import Pacer
from stepwell.recipes import run as runs
from stepwell.runs.metrics import FORECAST

SETTINGS: dict[str, Any] = {"batch": 16, "method": "auto"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("forecast") / "run", **SETTINGS)


def test_measuring_changes_nothing_that_is_trained(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "measurement_of", lambda made, training: lambda step: None)
    ours, theirs = newest_tensors(measured), newest_tensors(small_run(tmp_path / "run", **SETTINGS))
    assert ours.keys() == theirs.keys()
    differ = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert differ == [name for name in ours if "noise" in name]
    for one, other in zip(
        records_without_clock(measured), records_without_clock(tmp_path / "run"), strict=True
    ):
        assert {key: value for key, value in one.items() if not key.startswith(FORECAST)} == {
            key: value for key, value in other.items() if not key.startswith(FORECAST)
        }


def test_the_forecast_is_recorded_and_kept_in_thin_records(measured: Path, tmp_path: Path) -> None:
    first, *_, last = (r for r in records_without_clock(measured) if r["kind"] == "evaluation")
    assert not [key for key in first if key.startswith(FORECAST)]
    names = {key.removeprefix(FORECAST) for key in last if key.startswith(FORECAST)}
    assert {"left", "left_error", "least", "least_error", "images", "images_low", "best_images_high"} <= names
    outcome = read(measured)
    write_record(outcome, tmp_path / "record")
    told, kept = newest_forecast(outcome), newest_forecast(read(tmp_path / "record"))
    assert told is not None
    assert (told.batch, told.losses) == (16, 12 * 16)
    assert told.least == last["forecast/least"]
    # Thin records round.
    assert kept is not None
    assert kept.scalars() == pytest.approx(told.scalars(), rel=1e-3)


def test_it_measures_at_the_averaged_weights_and_not_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings, seen = list[Any](), list[tuple[int, bool, bool]]()
    build = runs.training_of

    def kept(*given: Any) -> Any:
        trainings.append(build(*given))
        return trainings[-1]

    def measure(pacer: Pacer, x0: Tensor, condition: Any = None) -> None:
        training = trainings[0]
        own = [p.detach() for p in training.network.parameters()]
        averaged = all(torch.equal(one, other) for one, other in zip(own, training.ema.average, strict=True))
        seen.append((pacer.draws, averaged, torch.is_grad_enabled()))

    monkeypatch.setattr(runs, "training_of", kept)
    monkeypatch.setattr(Pacer, "measure", measure)
    small_run(tmp_path / "run", **SETTINGS)
    assert seen == [(step, True, True) for step in (4, 8, 12)]


def test_tensorboard_has_the_forecast(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    small_run(tmp_path / "run", **SETTINGS, tracker="tensorboard", record_every=4)
    # accelerate writes the settings to a file of their own.
    files = map(str, (tmp_path / "run").rglob("events.out.tfevents*"))
    (written,) = (file for file in map(events.EventAccumulator, files) if file.Reload().Tags()["scalars"])
    tags = written.Tags()["scalars"]
    recorded = [r for r in records_without_clock(tmp_path / "run") if r["kind"] == "evaluation"][-1]
    for name, value in recorded.items():
        if name.startswith(FORECAST):
            assert name in tags
            assert written.Scalars(name)[-1].value == pytest.approx(value, rel=1e-5), name
