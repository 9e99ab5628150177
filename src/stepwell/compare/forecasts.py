"""What runs expected of their draws, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepwell.compare.judgement import Judgement
from stepwell.compare.results import Outcome
from stepwell.compare.stats import paired
from stepwell.compare.views import Cell, Table
from stepwell.core.estimates import Estimate
from stepwell.pacer.forecast import Forecast
from stepwell.runs.metrics import FORECAST

CAPTION = (
    "What the runs expected at their last evaluation: what their timesteps leave of the gradient's variance, "
    "and what the best would; the batch at which noise and signal are equal; the images for the same loss "
    "over those of the process's own timesteps. Last, the images that were measured, over those of what "
    "a method is judged against. 95 % intervals, over seeds where there are several."
)
COLUMNS = (
    "method",
    "variance left",
    "best possible",
    "critical batch",
    "images expected",
    "best possible images",
    "images measured",
)


def newest_forecast(run: Outcome) -> Forecast | None:
    """What a run expected of its draws at its last evaluation; None in records of before that was told."""
    last = run.evaluations[-1]
    told = {key.removeprefix(FORECAST): value for key, value in last.items() if key.startswith(FORECAST)}
    # Whatever is not finite was recorded as null.
    told = {name: value for name, value in told.items() if value is not None}
    if not told.keys() >= {"least", "least_error"} or not last["step"]:
        return None
    return Forecast.recorded(told, last["images"], last["images"] // last["step"])


def forecast_table(runs: dict[str, list[Outcome]], judgements: Sequence[Judgement]) -> Table | None:
    """The newest forecasts of every method of a workload; None if no run recorded one."""
    measured = {judgement.method: judgement.images for judgement in judgements}
    rows = []
    for method, own in runs.items():
        told = [forecast for forecast in map(newest_forecast, own) if forecast is not None]
        if told:
            rows.append((method, *_cells(told), measured.get(method)))
    return Table(CAPTION, COLUMNS, tuple(rows)) if rows else None


def forecast_sentence(runs: Sequence[Outcome]) -> list[str]:
    """What a single run expects, in words; nothing for several, which have a table."""
    told = newest_forecast(runs[0]) if len(runs) == 1 else None
    return [] if told is None else [f"Forecast: {told}."]


def _cells(told: Sequence[Forecast]) -> tuple[Cell, ...]:
    changed = all(math.isnan(one.left) for one in told)
    return (
        "changes the objective" if changed else _over_seeds([one.left_range for one in told]),
        _over_seeds([one.least_range for one in told]),
        _critical([one.critical_batch for one in told if one.critical_batch is not None]),
        _over_seeds([one.images for one in told if one.images is not None]),
        _over_seeds([one.best_images for one in told if one.best_images is not None]),
    )


def _over_seeds(estimates: Sequence[Estimate]) -> Cell:
    """The mean over seeds: their spread has the error of each; of a single one, its own interval."""
    if not estimates:
        return None
    return estimates[0].text() if len(estimates) == 1 else paired([one.value for one in estimates])


def _critical(estimates: Sequence[Estimate]) -> Cell:
    if len(estimates) < 2:
        return estimates[0].text(".3g") if estimates else None
    mean = paired([one.value for one in estimates])
    if mean.missed:
        return f"above {min(one.low for one in estimates):.3g}"
    return Estimate(mean.mean, mean.low, mean.high).text(".3g")
