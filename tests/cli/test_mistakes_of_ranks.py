"""What two ranks of one command print when something is wrong, started as any launcher starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full


def _two_ranks(command: list[str]) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]


def test_a_mistake_of_all_ranks_is_told_by_rank_0(tmp_path: Path) -> None:
    zero, one = _two_ranks(["-m", "stepwell", "train", "fashion16", "methd=neyman"])
    said = zero.communicate(timeout=120)[1]
    # As launchers do when a process has failed.
    one.terminate()
    assert one.communicate(timeout=120)[1] == ""
    assert zero.returncode == 2
    assert said.startswith("stepwell train: 1 mistake in fashion16.toml")
    assert said.count("'methd' is not a known setting") == 1


@pytest.mark.timeout(300)
def test_a_mistake_of_one_rank_is_told_by_it_with_its_number(tmp_path: Path) -> None:
    zero, one = _two_ranks(["-m", "stepwell", "train", "fashion16", "methd=neyman"])
    zero.kill()
    zero.communicate()
    assert one.communicate(timeout=120)[1].startswith("stepwell train (rank 1): 1 mistake in")
    assert one.returncode == 2
