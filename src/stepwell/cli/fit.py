"""`stepwell fit`: the density that would have been best for a log of timesteps and losses."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.columns import table
from stepwell.cli.options import SPEC, add_command, add_json, add_save, output, path_of
from stepwell.cli.timestep_output import add_timestep_output, nearest_table, save, say, written
from stepwell.core.errors import InvalidParameter

if TYPE_CHECKING:
    from stepwell.analyze.fit import Fit
    from stepwell.analyze.loss_log import LossLog

_EXAMPLES = """examples:
  stepwell fit losses.csv
  stepwell fit losses.jsonl --columns noise_level,mse --units sigma --save fit.png
  stepwell fit losses.tsv --process scaled-linear --weighting min-snr --weighted
  stepwell fit losses.csv --steps 4000 --format simpletuner -o timesteps.json --nearest

One line of the log is one example: its timestep and its loss, the plain one unless --weighted. How often the
log has each timestep does not matter, as long as it has them all: losses are averaged in bins of time first.
"""
_FIFTHS = 5


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(
        verbs,
        "fit",
        run,
        help="the best density for a log of timesteps and losses of any trainer",
        description="Read pairs of timestep and loss (CSV, TSV or JSON lines) and find the density that\n"
        "leaves the least variance in the gradient: p in proportion to weight x root of the mean loss.",
        examples=_EXAMPLES,
    )
    verb.add_argument("log", type=path_of, metavar="LOSSES", help="a CSV, TSV or JSON-lines file")
    verb.add_argument("-p", "--process", default="flow", metavar=SPEC, help="the process (flow)")
    verb.add_argument(
        "-w", "--weighting", default="none", metavar=SPEC, help="that the loop trains with (none)"
    )
    verb.add_argument(
        "--weighted", action="store_true", help="the logged losses are multiplied by the weighting already"
    )
    verb.add_argument(
        "--columns", metavar="TIMESTEP,LOSS", help="names of the two columns; guessed by default"
    )
    verb.add_argument(
        "--units",
        metavar="UNITS",
        help="what the times are: timestep, sigma, u or from-noise; guessed by default",
    )
    add_timestep_output(verb)
    add_save(verb)
    add_json(verb)


def run(options: argparse.Namespace) -> None:
    """Read, fit, print; write the format that is asked for."""
    chart.check_save(options.save)
    if (options.format is None) != (options.out is None):
        raise InvalidParameter("--format and -o FILE belong together: give both, or neither.")
    from stepwell.analyze.fit import fit
    from stepwell.analyze.loss_log import read_log
    from stepwell.catalogue import build
    from stepwell.integrations.timestep_lists import density_of

    process, weighting = build.process(options.process), build.weighting(options.weighting)
    log = read_log(options.log, process, _columns(options.columns), options.units)
    result = fit(log.u, log.losses, process, weighting, options.weighted)
    density = density_of(result.spec, process)
    file = None if options.format is None else written(options, density, options.format)
    lines = [
        _heading(options, log),
        "",
        _charts(result, chart.last_time(process.timesteps)),
        "",
        *_words(result),
    ]
    if options.nearest:
        lines += ["", nearest_table(density)]
    lines += ["", "In Stepwell, as a sampler:", str(result.spec)]
    output(options, _plain(result, log), "\n".join(lines), lambda path: _save(result, path))
    if file is not None:
        save(options.out, file.content)
        say(f"Wrote {options.out}.\n{file.note}")


def _columns(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise InvalidParameter(f"--columns {text}: write the names of two columns, as in timestep,loss.")
    return names[0], names[1]


def _heading(options: argparse.Namespace, log: LossLog) -> str:
    time, loss = log.columns
    already = " and multiplied by it in the log" if options.weighted else ""
    lines = [
        f"{options.log}: {len(log.u):,} pairs of {time} and {loss}",
        f"{time} read as {log.read_as}; process {options.process}, weighting {options.weighting}{already}",
    ]
    lines.append("Losses are averaged in bins of time: how often each timestep was drawn cancels.")
    if log.left_out:
        lines.append(f"{log.left_out:,} records without one of the two are left out.")
    return "\n".join(lines)


def _charts(result: Fit, last: str) -> str:
    borders = result.borders.tolist()
    heights = (result.masses / result.borders.diff()).tolist()
    plots = [
        chart.bars("mean loss (all of time = 1)", result.curve.tolist(), borders, last),
        chart.bars("best density (uniform = 1)", heights, borders, last),
    ]
    names = [f"{100 * k // _FIFTHS}-{100 * (k + 1) // _FIFTHS} %" for k in range(_FIFTHS)]
    rows = [["time", *names]]
    for name, shares in (("in the log", result.counts.double()), ("best", result.masses)):
        rows.append([name, *(f"{100 * share:.1f} %" for share in result.in_parts(shares, _FIFTHS))])
    return "\n\n".join([*plots, "\n".join(table(rows, right=True))])


def _words(result: Fit) -> list[str]:
    from stepwell.analyze.fit import CLOSE

    lines = [
        "Forecast, if losses are multiplied by the weight that keeps the objective:",
        f"{result.forecast}.",
    ]
    noise = f"Noise in the losses costs about {100 * result.excess:.1f} % of variance above the best"
    if result.excess <= CLOSE:
        lines.append(f"{noise}.")
    elif result.enough is None:
        lines.append(
            f"{noise}, and more pairs like these would not change that: log losses at all timesteps."
        )
    else:
        more = result.enough - result.forecast.losses
        lines.append(f"{noise}: too few pairs. With about {more:,} more it would be {100 * CLOSE:.0f} %.")
    if result.unseen > 0:
        low, high = result.seen
        lines.append(
            f"The pairs lie between u = {low:.3g} and {high:.3g} and leave out {100 * result.unseen:.1f} % "
            "of the objective: what the loss is there is not known, and the density goes on as beside."
        )
    return lines


def _plain(result: Fit, log: LossLog) -> dict[str, Any]:
    return {
        "pairs": len(log.u),
        "columns": list(log.columns),
        "read_as": log.read_as,
        "borders": result.borders.tolist(),
        "counts": result.counts.tolist(),
        "mean_loss": result.curve.tolist(),
        "masses": result.masses.tolist(),
        **result.forecast.scalars(),
        "excess": result.excess,
        "enough": result.enough,
        "unseen": result.unseen,
        "spec": str(result.spec),
    }


def _save(result: Fit, path: Path) -> None:
    figure = chart.blank(8, 6.4)
    above, below = figure.subplots(2, 1, sharex=True)
    borders, widths = result.borders.tolist(), result.borders.diff()
    logged = result.counts / result.counts.sum() / widths
    above.stairs(result.curve.tolist(), borders, **chart.line_style(0))
    below.stairs((result.masses / widths).tolist(), borders, label="best", **chart.line_style(0))
    below.stairs(logged.tolist(), borders, label="in the log", **chart.line_style(1))
    above.set_ylabel("mean loss\n(all of time = 1)")
    below.set_ylabel("density\n(uniform = 1)")
    below.set_xlabel(chart.TIME_AXIS)
    below.legend(frameon=False, fontsize=8, loc="upper right")
    for axes in (above, below):
        chart.time_axes(axes)
    chart.write(figure, path)
