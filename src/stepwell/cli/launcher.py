"""Options of commands that can send their work to SLURM."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.recipes.slurm import Job

LOCAL, SLURM = "local", "slurm"


def add_launcher(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add --launcher and what a job asks SLURM for; None where it is not given."""
    group = parser.add_argument_group("on a cluster")
    group.add_argument(
        "--launcher", choices=(LOCAL, SLURM), default=LOCAL, help="this machine (default), or jobs of SLURM"
    )
    group.add_argument("--partition", help="SLURM's partition")
    group.add_argument(
        "--time", help="limit of a job, as sbatch takes it (4:00:00); longer runs are requeued"
    )
    group.add_argument("--memory", metavar="SIZE", help="of each node, such as 16G")
    group.add_argument("--gpus", type=int, help="of each node; 0: none (1)")
    group.add_argument(
        "--sbatch", action="append", metavar="KEY=VALUE", help="any other option of sbatch; several times"
    )
    return group


_ASKED = ("partition", "time", "memory", "gpus", "nodes", "processes")


def job_of(options: argparse.Namespace) -> Job:
    """What the options ask SLURM for."""
    from stepwell.recipes.slurm import Job

    given = {name: getattr(options, name, None) for name in _ASKED}
    more = tuple(options.sbatch or ())
    return Job(more=more, **{name: value for name, value in given.items() if value is not None})


def require_no_job(options: argparse.Namespace) -> None:
    """Refuse what only a job can have, where none is submitted."""
    given = [name for name in (*_ASKED, "sbatch") if getattr(options, name, None) is not None]
    if given:
        raise StepwellError(f"--{given[0]} is for jobs on a cluster: add --launcher slurm, or leave it out.")


def require_submitit() -> None:
    """Raise StepwellError without the package that submits jobs."""
    if find_spec("submitit") is None:
        raise StepwellError("--launcher slurm needs submitit: pip install 'stepwell[slurm]'.")
