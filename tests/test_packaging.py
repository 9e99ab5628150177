"""The wheel, installed where there is torch and nothing else."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bare_install_has_torch_and_no_numpy(tmp_path: Path) -> None:
    from test_public_face import EXERCISE

    venv.create(tmp_path / "bare", with_pip=True)
    python = tmp_path / "bare" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "-c", PROJECT / "constraints.txt", PROJECT], check=True
    )
    listed = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert "torch" in listed
    assert "numpy" not in listed
    done = subprocess.run(
        [python, "-W", "ignore", "-c", EXERCISE], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'stepwell[report]'" in done.stderr
    version = subprocess.run(
        [tmp_path / "bare" / "bin" / "stepwell", "--version"], capture_output=True, text=True
    )
    assert version.stdout.startswith("stepwell ")
    assert sys.version_info >= (3, 11)
