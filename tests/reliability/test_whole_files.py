"""Files are written whole or not at all, wherever they are written."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path

import pytest

import stepwell
from stepwell.runs.io import remove_leftovers, replacing, write_atomic

SOURCE = Path(stepwell.__file__).parent
# Written by hand: the stream of metrics, locks, rows of an .npz in progress, a download that is checked
# before it is renamed, standard streams, why a job failed, parts of a checkpoint, the atomic writer itself.
BY_HAND = {
    "runs/metrics_file.py", "runs/lock.py", "runs/io.py", "generate/writers.py", "evaluate/weights.py",
    "cli/streams.py", "compare/slurm_job.py", "train/checkpoint.py",
}  # fmt: skip
_WRITES = re.compile(
    r"\.write_(?:text|bytes)\(|\bopen\([^)]*[\"'](?:[wax]b?|r\+b)[\"']|NamedTemporaryFile|json\.dump\(|savefig\(path"
    r"|\.save\((?:self\._)?path|save_file\([^)]*path"
)


def test_every_other_file_is_written_by_one_function() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for line in path.read_text().splitlines()
        if _WRITES.search(line)
    }
    assert found <= BY_HAND


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, ValueError])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"before")

    def fails() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        fails()
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a.json", b"before")]


def test_a_link_stays_one_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "latest").symlink_to("there/file")
    for content in (b"one", b"two"):
        write_atomic(tmp_path / "latest", content)
        assert (tmp_path / "latest").is_symlink()
        assert (tmp_path / "there/file").read_bytes() == content


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Nor is /dev/null, which root could."""
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_atomic(tmp_path / "pipe", b"content")
    reader.join(10)
    assert read == [b"content"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_leftovers_of_a_killed_process_are_removed_by_name(tmp_path: Path) -> None:
    for name in (".a.json.12.tmp", ".a.jsonl.12.tmp", "a.json", ".lock"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, "a.json")
    assert {path.name for path in tmp_path.iterdir()} == {".a.jsonl.12.tmp", "a.json", ".lock"}
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", ".lock"}
