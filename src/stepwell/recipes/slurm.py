"""SLURM: what a job asks for, which jobs are queued, and how a stopped job goes back into the queue."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from stepwell.core.errors import InvalidParameter, StepwellError

NOTICE = 120
"""Seconds before its time limit at which a job is told to save."""
STOPS = (signal.SIGUSR1, signal.SIGTERM)
"""What a job is told to save by: SLURM's notice before a time limit, and preemption."""


class ControllerAway(StepwellError):
    """SLURM does not answer; jobs go on meanwhile."""


@dataclass(frozen=True)
class Job:
    """What a job asks SLURM for."""

    partition: str = ""
    time: str = "4:00:00"
    """In any form that sbatch takes. Runs that need longer save, and go back into the queue."""
    memory: str = ""
    """Of each node."""
    gpus: int = 1
    """Of each node."""
    nodes: int = 1
    processes: int = 0
    """On each node; 0: one for each GPU, or one."""
    more: tuple[str, ...] = ()
    """Any other option of sbatch, as KEY=VALUE."""

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.nodes < 1 or self.processes < 0:
            raise InvalidParameter(
                f"--nodes {self.nodes} --gpus {self.gpus} --processes {self.processes}: a job needs at least "
                "one node, and none of these can be negative."
            )
        wrong = [word for word in self.more if not word.partition("=")[2] or word.startswith("-")]
        if wrong:
            raise InvalidParameter(
                f"--sbatch {wrong[0]}: write KEY=VALUE without dashes, as in account=mine."
            )

    def flags(self, name: str) -> dict[str, str]:
        """Options of sbatch for the job of this name, of which SLURM runs one at a time."""
        flags = {
            "job-name": name,
            "nodes": str(self.nodes),
            "ntasks-per-node": "1",
            "time": self.time,
            "signal": f"USR1@{NOTICE}",
            "dependency": "singleton",
            "open-mode": "append",
        }
        flags |= {"partition": self.partition} if self.partition else {}
        flags |= {"mem": self.memory} if self.memory else {}
        flags |= {"gpus-per-node": str(self.gpus)} if self.gpus else {}
        return flags | dict(word.split("=", 1) for word in self.more)


def job_name(out: Path) -> str:
    """The name of the job that writes a run directory: the same whenever and wherever it is asked for."""
    place = out.resolve()
    digest = hashlib.sha256(str(place).encode()).hexdigest()[:12]
    return f"stepwell-{re.sub(r'[^a-zA-Z0-9.]+', '-', '-'.join(place.parts[-3:])).strip('-')}-{digest}"


def queued() -> dict[str, str]:
    """This user's jobs that wait, run or are ending: their numbers by their names."""
    lines = _asked("squeue", "--me", "--noheader", "--format=%i|%j").splitlines()
    return {name: number for number, _, name in (line.partition("|") for line in lines)}


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise StepwellError(
            f"there is no {command[0]} on this machine: run this where SLURM's commands are, or take "
            "--launcher local."
        ) from None
    except subprocess.TimeoutExpired:
        raise ControllerAway(f"{command[0]} does not answer.") from None
    if done.returncode:
        raise ControllerAway(f"{command[0]}: {' '.join(done.stderr.split())}")
    return done.stdout


class Stopped(BaseException):
    """The job was told to save and end; like KeyboardInterrupt, nothing but its handler may catch it."""


@contextmanager
def requeueing() -> Iterator[None]:
    """Inside, a signal to stop ends the work and puts the job back into the queue.

    Training has its own handler, which saves first, and returns unfinished: raise `Stopped` then.
    """
    before = {number: signal.signal(number, _stop) for number in STOPS}
    try:
        yield
    except Stopped:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        _put_back()
        raise SystemExit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped


def _put_back() -> None:
    """Put this job back into the queue, unless SLURM is ending it."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(10)  # a rank that left would end the others before rank 0 has said it
        return
    job = os.environ["SLURM_JOB_ID"]
    # Preempted jobs SLURM puts back by itself, and cancelled ones shall not come back.
    if _asked("squeue", "--noheader", "--jobs", job, "--format=%T").strip() == "RUNNING":
        _asked("scontrol", "requeue", job)


def torchrun_script(words: Sequence[str], job: Job, name: str, log: Path) -> str:
    """The batch script that runs `stepwell WORDS` on all nodes of a job, a process for each GPU."""
    flags = {**job.flags(name), "output": str(log)}
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={job.nodes}"]
    launch += [f"--nproc-per-node={job.processes or job.gpus or 1}"]
    command = shlex.join(["-m", "stepwell", *words])
    meeting = "--standalone"
    if job.nodes > 1:
        meeting = '--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:$port"'
    return f"""#!/bin/bash
{_lines(flags)}
#SBATCH --requeue

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
# The notice before the time limit is for the training processes, which save: torchrun ignores it.
srun --kill-on-bad-exit=1 bash -c 'trap "" USR1; exec "$@"' torchrun \\
  {shlex.join(launch)} \\
  {meeting} \\
  {command}
"""


def _lines(flags: Mapping[str, str]) -> str:
    return "\n".join(f"#SBATCH --{key}={shlex.quote(value)}" for key, value in flags.items())


def submit(script: Path) -> str:
    """Submit a batch script; returns the number of its job."""
    try:
        return _asked("sbatch", "--parsable", str(script)).strip().partition(";")[0]
    except ControllerAway as error:
        raise StepwellError(f"the job was not submitted: {error}") from error
