"""One flipped bit of a checkpoint is noticed, or changes nothing of what is read."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from fuzz_home import make_home

from stepwell.train import checkpoint


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = make_home(tmp_path_factory.mktemp("bits") / "home")
    return max((home / "run" / "checkpoints").glob("*.safetensors"))


def same(one: Any, other: Any) -> bool:
    """Whether two trees hold the same bits."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and bool(torch.equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


@pytest.mark.parametrize(
    "count", [pytest.param(50, marks=pytest.mark.full), pytest.param(500, marks=pytest.mark.slow)]
)
def test_a_flipped_bit_is_refused_or_changes_nothing(file: Path, tmp_path: Path, count: int) -> None:
    before, content, draw = checkpoint.load(file), file.read_bytes(), Random(18)
    header = 8 + int.from_bytes(content[:8], "little")
    # Half of them in the header, which is where sizes and names are.
    ends = [header if number % 2 else len(content) for number in range(count)]
    refused, damaged = 0, tmp_path / file.name
    for end in ends:
        place = draw.randrange(8 * end)
        damaged.write_bytes(flipped(content, place))
        try:
            after = checkpoint.load(damaged)
        except checkpoint.CheckpointError:
            refused += 1
            continue
        assert same(before.tree, after.tree), f"bit {place}"
        assert before.info == after.info, f"bit {place}"
    print(f"{count} flipped: {refused} refused, {count - refused} read the same")
    assert refused > 0.9 * count
