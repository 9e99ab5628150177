"""Options and output that `table` and `fit` share: a density in the formats that trainers read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepwell.cli.columns import folded, labelled
from stepwell.cli.options import path_of, whole
from stepwell.core.errors import InvalidParameter, StepwellError, unknown
from stepwell.integrations.host_densities import HOSTS
from stepwell.integrations.host_formats import FORMATS
from stepwell.runs.io import write_atomic

if TYPE_CHECKING:
    from stepwell.integrations.timestep_lists import TimestepDensity

_NO_WEIGHT = "No loss gets the weight that keeps the objective: what is drawn more often also counts more."


class Written(NamedTuple):
    """A file's content, and what to say about it."""

    content: str
    note: str


def add_timestep_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of formats and lists."""
    names = ", ".join(each.name for each in (*FORMATS, *HOSTS))
    parser.add_argument("-f", "--format", metavar="FORMAT", help=f"one of {names}")
    parser.add_argument("-o", "--out", type=path_of, metavar="FILE", help="write the format to a file")
    parser.add_argument(
        "--steps", type=whole(10_000_000, 1), default=1000, help="optimizer steps that a list is for (1000)"
    )
    parser.add_argument(
        "--batch", type=whole(65_536, 1), default=1, help="timesteps of each step, spread evenly (1)"
    )
    parser.add_argument("--seed", type=whole(least=0), default=0, help="of the list's order (0)")
    parser.add_argument(
        "--nearest", action="store_true", help="print every trainer's own setting nearest to the density"
    )


def written(options: argparse.Namespace, density: TimestepDensity, name: str) -> Written:
    """A density in the format of this name."""
    from stepwell.integrations.nearest import nearest
    from stepwell.integrations.timestep_lists import stratified_times

    for each in FORMATS:
        if each.name == name:
            u = stratified_times(density.table, options.steps, options.batch, options.seed)
            note = f"{each.name}, for {each.host}: {each.units}."
            return Written(
                each.text(density, u, options.batch), note if each.has_weight else f"{note}\n{_NO_WEIGHT}"
            )
    for host in HOSTS:
        if host.name == name:
            own = nearest(host, density)
            note = (
                f"{host.name}, for {host.title}, which reads no list: the nearest of its own densities, "
                f"{own.divergence:.4f} nats from this one; {100 * own.moved:.1f} % of draws lie elsewhere."
            )
            return Written(f"{own.written}\n", f"{note}\n{_NO_WEIGHT}")
    raise unknown("format", name, [each.name for each in (*FORMATS, *HOSTS)])


def save(path: Path, content: str) -> None:
    """Write a file, or say why that cannot be."""
    if not path.parent.is_dir() or path.is_dir():
        reason = "that is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InvalidParameter(f"--out {path}: {reason}.")
    try:
        write_atomic(path, content.encode())
    except OSError as error:
        raise StepwellError(f"could not write {path}: {error.strerror}.") from error


def nearest_table(density: TimestepDensity) -> str:
    """One row per trainer: how far the nearest of its own densities is, and how it is set."""
    from stepwell.integrations.nearest import nearest

    process = density.process
    fitting = [
        host
        for host in HOSTS
        if host.models == "any"
        or (host.models == "flow" and process.interpolates)
        or (host.models == "ddpm" and process.is_ddpm and process.timesteps == 1000)
    ]
    rows = [("trainer", "nats", "elsewhere", "its nearest setting")]
    for host in fitting:
        own = nearest(host, density)
        rows.append((host.name, f"{own.divergence:.4f}", f"{100 * own.moved:.1f} %", own.written))
    width = max(len(row[0]) for row in rows)
    lines = [
        labelled(f"{name:{width}}  {nats:>7}  {moved:>9}  ", setting) for name, nats, moved, setting in rows
    ]
    legend = (
        "The nearest of each trainer's own densities: how far it is (Kullback-Leibler divergence), and the "
        "share of draws that lie elsewhere."
    )
    return "\n".join([folded(legend), "", *lines])


def say(note: str) -> None:
    """Print beside the content, which may go into a file or a pipe."""
    print(note, file=sys.stderr)
