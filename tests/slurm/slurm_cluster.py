"""A SLURM of one node on this machine: its own key, sockets, ports and folders, and nothing in /etc."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun")


def missing() -> str:
    """Why no cluster can be started here; empty if it can."""
    absent = [name for name in NEEDED if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"SLURM is not installed ({', '.join(absent)}): apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "starting SLURM's daemons needs root"


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Cluster:
    """The daemons of a cluster in a folder; clients find it by SLURM_CONF."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().partition(".")[0]
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start munge, the controller and the node; returns when the node is idle."""
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir()
        (self.folder / "munge" / "key").write_bytes(os.urandom(128))
        (self.folder / "munge" / "key").chmod(0o400)
        (self.folder / "slurm.conf").write_text(self._configuration())
        munge = self.folder / "munge"
        words = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._run("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *words)
        until(lambda: (munge / "socket").exists(), "munge's socket")
        self.start_controller()
        self._run("slurmd", "-D", "-N", self.host)
        until(lambda: self.ask("sinfo", "-h", "-o", "%T") == "idle", "an idle node")

    def start_controller(self) -> None:
        """Start the controller, which remembers its jobs."""
        self._run("slurmctld", "-D")
        until(lambda: self._call("scontrol", "ping").returncode == 0, "the controller")

    def stop_controller(self) -> None:
        """End the controller as a restart of its machine would; jobs go on."""
        self._end("slurmctld")

    def stop(self) -> None:
        """Cancel every job and end the daemons."""
        if "slurmctld" in self._daemons:
            self.empty()
        for name in reversed(list(self._daemons)):
            self._end(name)

    def start_again(self, job: str) -> None:
        """Wait until a job is back in the queue, and start it: SLURM itself would wait for two minutes."""
        until(lambda: self.jobs("PENDING") == [job], f"job {job} in the queue")
        # A node refuses what starts in the second in which the job ended: "job credential revoked".
        time.sleep(2.0)
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")

    def empty(self) -> None:
        """Cancel every job, and wait until they are gone."""
        self._call("scancel", "--user=root")
        until(lambda: self.ask("squeue", "-h") == "", "an empty queue")

    def ask(self, *command: str) -> str:
        """What a command of SLURM prints."""
        return self._call(*command).stdout.strip()

    def jobs(self, *states: str) -> list[str]:
        """The numbers of jobs, in some states."""
        chosen = [f"--states={','.join(states)}"] if states else []
        return self.ask("squeue", "-h", "-o", "%i", *chosen).split()

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)

    def _run(self, name: str, *words: str) -> None:
        log = (self.folder / f"{name}.output").open("ab")
        program = shutil.which(name, path=_PATH)
        assert program is not None
        # A session of its own: Ctrl-C in the tests' terminal is not for it.
        self._daemons[name] = subprocess.Popen(
            [program, *words], env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        log.close()

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _configuration(self) -> str:
        controller, node = _free_port(), _free_port()
        return f"""
ClusterName=local
SlurmctldHost={self.host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder / "munge" / "socket"}
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_delay=0
StateSaveLocation={self.folder / "state"}
SlurmdSpoolDir={self.folder / "spool"}
SlurmctldPidFile={self.folder / "slurmctld.pid"}
SlurmdPidFile={self.folder / "slurmd.pid"}
NodeName={self.host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={self.host} Default=YES MaxTime=INFINITE State=UP
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(true: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:.0f} s"
        time.sleep(0.1)
