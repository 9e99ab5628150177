"""Trials as jobs of SLURM, submitted through submitit; the queue is the memory of what was submitted.

A job has the name of its run directory, and of one name SLURM runs one job at a time (`singleton`). So a
study that was killed, or started twice, finds its jobs again and runs no trial twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepwell.compare.pool import Event
from stepwell.compare.run_study import Launch
from stepwell.compare.slurm_job import run_job
from stepwell.compare.trials import Trial
from stepwell.core.errors import StepwellError
from stepwell.recipes.slurm import ControllerAway, Job, job_name, queued

QUEUED = 100
"""Jobs of a study in the queue at the same time, unless --workers says otherwise."""
SETTLING = 10.0
"""Seconds after the end of a job in which its files may still come, where storage is shared."""
_SOONEST, _LATEST = 1.0, 30.0
"""Seconds between two looks at the queue: few at first, more while nothing happens."""


def on_slurm(job: Job, folder: Path) -> Launch:
    """A launcher whose jobs ask for `job`, with their logs in `folder`, which all nodes see."""

    def launch(trials: Sequence[Trial], effort: dict[str, int], workers: int) -> Iterator[Event]:
        return Jobs(trials, effort, job, folder).run(workers)

    return launch


class Jobs:
    """The jobs of some trials, each waiting to be submitted, in the queue, or ended."""

    def __init__(self, trials: Sequence[Trial], effort: dict[str, int], job: Job, folder: Path) -> None:
        self._effort, self._job, self._folder = effort, job, folder.absolute()
        self._waiting = {job_name(Path(trial.recipe.out)): trial for trial in trials}
        self._active: dict[str, Trial] = {}
        self._numbers: dict[str, str] = {}
        self._ended: dict[str, float] = {}
        """When a job was first missing in the queue."""

    def run(self, workers: int) -> Iterator[Event]:
        """Submit what is missing, and tell of each trial how it ended."""
        queued()  # where there is no SLURM, this says so
        pause = _SOONEST
        while self._waiting or self._active:
            events = list(self._look(workers))
            yield from events
            pause = _SOONEST if events else min(1.3 * pause, _LATEST)
            if self._waiting or self._active:
                time.sleep(pause)

    def _look(self, workers: int) -> Iterator[Event]:
        try:
            queue = queued()
        except ControllerAway:
            return  # a restart, say: jobs go on, and so does the study when it is back
        for name in [name for name in self._waiting if name in queue]:
            self._active[name] = self._waiting.pop(name)
        self._numbers |= {name: number for name, number in queue.items() if name in self._active}
        for name, trial in list(self._active.items()):
            event = None if name in queue else self._ending(name, trial)
            if event is not None:
                del self._active[name]
                yield event
        for name in list(self._waiting)[: max(0, workers - len(self._active))]:
            try:
                self._numbers[name] = self._submit(name, self._waiting[name])
            except ControllerAway as error:
                if not self._active:
                    raise StepwellError(f"no job could be submitted: {error}") from error
                return  # too many jobs, perhaps: when others have ended, it is tried again
            self._active[name] = self._waiting.pop(name)

    def _submit(self, name: str, trial: Trial) -> str:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError

        self._note(name).unlink(missing_ok=True)
        executor = SlurmExecutor(self._folder)
        # With underscores, as submitit writes its own defaults, which these replace.
        flags = {key.replace("-", "_"): value for key, value in self._job.flags(name).items()}
        executor.update_parameters(additional_parameters={**flags, "requeue": True})
        try:
            job = executor.submit(
                run_job, trial.recipe.values(), trial.scored, self._effort, self._note(name)
            )
        except FailedJobError as error:
            raise ControllerAway(" ".join(str(error).split())[-300:]) from error
        return str(job.job_id)

    def _ending(self, name: str, trial: Trial) -> Event | None:
        """How a job that left the queue ended; None while its files may still come."""
        if trial.outcome() is not None:
            self._tidy(name)
            return Event(trial, "done", 1.0)
        if self._note(name).exists():
            return Event(trial, "failed", 1.0, self._note(name).read_text(encoding="utf-8").strip())
        if time.monotonic() - self._ended.setdefault(name, time.monotonic()) < SETTLING:
            return None
        number = self._numbers.get(name, "")
        return Event(
            trial,
            "failed",
            message=f"its job {number} ended without a result: it was cancelled, or died of what "
            f"{self._folder / f'{number}_0_log.err'} says; run the same command again to go on.",
        )

    def _note(self, name: str) -> Path:
        """Where a job writes why it failed."""
        return self._folder / f"{name}.failed"

    def _tidy(self, name: str) -> None:
        """Remove the files of a job that ended well: a large study would leave five for each run."""
        from submitit.core.utils import JobPaths

        if name in self._numbers:
            paths = JobPaths(self._folder, self._numbers[name], 0)
            for path in (
                paths.submission_file, paths.submitted_pickle, paths.result_pickle, paths.stdout, paths.stderr
            ):  # fmt: skip
                path.unlink(missing_ok=True)
            for link in self._folder.glob(".submission_file_*"):
                if not link.exists():  # submitit links to the batch script, which is gone
                    link.unlink(missing_ok=True)
