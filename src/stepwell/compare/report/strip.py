"""The strip on top of a watched page: how far every run is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stepwell.compare.report.pictures import sheet_image
from stepwell.compare.views import RunState
from stepwell.runs.status import duration

_SHOWN = ("running", "failed", "stopped")
"""Runs with a row of their own; of the others only names are listed."""
_FEW = 6
"""More names than this are folded away."""


def strip(states: Sequence[RunState]) -> str:
    """A row for every run that trains, failed or was stopped; then who waits and who is done."""
    if not states:
        return ""
    rows = "".join(_row(run) for kind in _SHOWN for run in states if run.state == kind)
    counts = [f"{sum(run.state == kind for run in states)} {kind}" for kind in (*_SHOWN, "queued", "done")]
    said = ", ".join(count for count in counts if not count.startswith("0 "))
    named = {kind: [run.name for run in states if run.state == kind] for kind in ("queued", "done")}
    names = "".join(
        f"<p><b>{kind.capitalize()}</b> {escape('; '.join(own))}</p>" for kind, own in named.items() if own
    )
    if sum(map(len, named.values())) > _FEW:
        names = f'<details id="others"><summary id="others-fold">Queued and done</summary>{names}</details>'
    return f'<p class="counts">{len(states)} {_runs(states)}: {said}</p><ul class="strip">{rows}</ul>{names}'


def _runs(states: Sequence[RunState]) -> str:
    return "run" if len(states) == 1 else "runs"


def _row(run: RunState) -> str:
    name = escape(run.name)
    facts = [f"step {run.step:,} of {run.steps:,}"] if run.steps else []
    if run.state == "running":
        facts += [f"{duration(run.seconds_left)} left"] if run.seconds_left is not None else []
        facts += [f"{run.steps_per_second:.3g} steps/s"] if run.steps_per_second is not None else []
    facts += [f"training loss {run.loss:.4g}"] if run.loss is not None else []
    facts += [f"learning rate {run.learning_rate:.3g}"] if run.learning_rate is not None else []
    image = "" if run.sheet is None else sheet_image(run.sheet, f"Newest images of {run.name}")
    done = f'<progress max="{run.steps or 1}" value="{run.step}" aria-label="{name}"></progress>'
    message = f'<span class="message">{escape(run.message)}</span>' if run.message else ""
    return (
        f'<li class="{run.state}"><div><b>{name}</b> <span class="state">{run.state}</span>{done}'
        f'<span class="facts">{"".join(f"<span>{fact}</span> " for fact in facts)}</span>{message}</div>'
        f"{image}</li>"
    )
