"""Nested state as tensors and JSON: what a checkpoint can hold without pickling anything."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch import distributed as dist

from stepwell.core import require
from stepwell.core.digest import weights_digest
from stepwell.core.errors import StepwellError
from stepwell.core.reading import Unreadable, regular_file
from stepwell.probes.gradients import is_sharded
from stepwell.runs.io import TEMPORARY, replacing, synchronise
from stepwell.train import shards

_TENSOR = "__tensor__"


def split(tree: Any, name: str = "") -> tuple[Any, dict[str, Tensor]]:
    """A tree of dicts, lists, numbers and tensors as a JSON tree that points into a dict of tensors."""
    if isinstance(tree, Tensor):
        return {_TENSOR: name}, {
            name: tree.detach() if is_sharded(tree) else tree.detach().cpu().contiguous()
        }
    tensors: dict[str, Tensor] = {}
    if isinstance(tree, dict):
        plain: Any = []
        for key, value in tree.items():
            branch, found = split(value, f"{name}/{key}" if name else str(key))
            # Pairs, not an object: optimizer states are keyed by integers, which JSON objects lose.
            plain.append([key, branch])
            tensors.update(found)
        return {"dict": plain}, tensors
    if isinstance(tree, (list, tuple)):
        parts = [split(value, f"{name}/{index}") for index, value in enumerate(tree)]
        for _, found in parts:
            tensors.update(found)
        return {"list": [branch for branch, _ in parts]}, tensors
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree, {}
    raise TypeError(f"{name} is a {type(tree).__name__}, which a checkpoint cannot hold")


def join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree that `split` took apart."""
    if not isinstance(plain, dict):
        return plain
    if _TENSOR in plain:
        return tensors[plain[_TENSOR]]
    if "dict" in plain:
        return {key: join(branch, tensors) for key, branch in plain["dict"]}
    return [join(branch, tensors) for branch in plain["list"]]


_NAME = re.compile(r"step-(\d{9})(?:\.safetensors)?")
_STATE = "state.safetensors"
"""In the folder of a sharded checkpoint: all but the network's tensors."""


class CheckpointError(StepwellError):
    """A checkpoint that cannot be written or read."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run was after `info["step"]` steps."""

    tree: Any
    """Model, EMA, optimizer, pacer."""
    info: dict[str, Any]
    """Numbers and strings: step, images, seconds, the length of metrics.jsonl, the world size."""


def save(folder: Path, checkpoint: Checkpoint, keep: int, losses: Mapping[int, float] | None = None) -> Path:
    """Write a checkpoint, then forget all but the newest `keep` and the one with the lowest of `losses`.

    `losses` are those of evaluations by step; steps without a checkpoint do not count. Of a sharded network,
    every rank has to call it.
    """
    plain, tensors = split(checkpoint.tree)
    parts = {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}
    name = f"step-{checkpoint.info['step']:09d}" + ("" if parts else ".safetensors")
    path, temporary = folder / name, folder / f".{name}{TEMPORARY}"
    try:
        body = {"tree": plain, "info": checkpoint.info}
        if parts:
            body["files"] = shards.write(temporary, parts)
            tensors = {name: tensor for name, tensor in tensors.items() if name not in parts}
            if dist.get_rank() == 0:
                _write_state(temporary / _STATE, body, tensors)
                synchronise(temporary / _STATE)
                synchronise(temporary)
                _forget(path)
                temporary.replace(path)
        else:
            with replacing(path) as unfinished:
                _write_state(unfinished, body, tensors)
        if not parts or dist.get_rank() == 0:
            synchronise(folder)
            _forget_old(folder, keep, losses or {})
    except (OSError, SafetensorError) as error:
        last = max(steps(folder), default=None)
        kept = "there is no earlier one" if last is None else f"the one of step {last} is kept"
        raise CheckpointError(f"could not write the checkpoint {path} ({error}); {kept}.") from error
    return path


def _write_state(path: Path, body: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    text = json.dumps(body)
    save_file(tensors, path, {"stepwell": text, "digest": _digest(text, tensors)})


def _forget_old(folder: Path, keep: int, losses: Mapping[int, float]) -> None:
    there = sorted(steps(folder))
    evaluated = {step: loss for step, loss in losses.items() if step in there}
    best = min(evaluated, key=evaluated.__getitem__, default=None)
    for step in there[:-keep]:
        if step != best:
            _forget(file(folder, step))


def _forget(path: Path) -> None:
    if path.is_dir():
        # First its name: a folder that has lost a part of its files must not look like a checkpoint.
        shutil.rmtree(path.rename(path.with_name(f".{path.name}.old{TEMPORARY}")))
    else:
        path.unlink(missing_ok=True)


def file(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is, if there is one: a file, or the folder of a sharded network."""
    sharded = folder / f"step-{step:09d}"
    return sharded if sharded.is_dir() else folder / f"{sharded.name}.safetensors"


def is_sharded_checkpoint(path: Path) -> bool:
    """Whether a path is the folder of a sharded network's checkpoint."""
    return (path / _STATE).is_file()


def load(path: Path, like: shards.Like | None = None) -> Checkpoint:
    """Read one checkpoint, or say what is wrong with it.

    With the tensors of a sharded network as `like`, each rank reads its own parts, and all have to call it.
    """
    sharded = path.is_dir()
    try:
        with safe_open(regular_file(path / _STATE if sharded else path), framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, Unreadable) as error:
        raise CheckpointError(f"{path} is truncated or not a checkpoint ({error}).") from error
    if "stepwell" not in metadata:
        raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of stepwell.")
    if _digest(metadata["stepwell"], tensors) != metadata.get("digest"):
        raise CheckpointError(f"{path} is corrupt: its contents do not match its checksum.")
    try:
        body = json.loads(metadata["stepwell"])
        if sharded:
            if wrong := shards.damage(path, body["files"], together=like is not None):
                raise CheckpointError(f"{path} is corrupt: {wrong}.")
            tensors |= shards.read(path, lambda name: name not in tensors, like)
        elif like is not None:
            tensors = shards.distributed(tensors, like)
        found = Checkpoint(join(body["tree"], tensors), body["info"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} was edited: its contents cannot be put together ({error!r})."
        ) from error
    if wrong := _not_a_checkpoint(found):
        raise CheckpointError(f"{path} was edited: {wrong}.")
    return found


_PARTS = ("model", "ema", "optimizer", "pacer")


def _not_a_checkpoint(found: Checkpoint) -> str:
    """What a checkpoint with a right checksum lacks, or nothing."""
    if not isinstance(found.tree, dict) or not all(part in found.tree for part in _PARTS):
        return f"it does not hold {', '.join(_PARTS)}"
    weights, averages = found.tree["model"], found.tree["ema"]
    if not isinstance(weights, dict) or not all(isinstance(one, Tensor) for one in weights.values()):
        return "its model holds more than tensors"
    if not isinstance(averages, list) or not all(isinstance(one, Tensor) for one in averages):
        return "its averages hold more than tensors"
    info = found.info if isinstance(found.info, dict) else {}
    counts = [info.get(key) for key in ("step", "data_images", "world")]
    if not all(type(count) is int and count >= 0 for count in counts) or not _is_time(info.get("seconds")):
        return "it does not say where the run was"
    return ""


def _is_time(seconds: Any) -> bool:
    return type(seconds) in (int, float) and require.is_finite(seconds) and seconds >= 0


def newest(folder: Path, like: shards.Like | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, and what is wrong with those that came after it."""
    wrong: list[str] = []
    for step in sorted(steps(folder), reverse=True):
        try:
            return load(file(folder, step), like), wrong
        except CheckpointError as error:
            wrong.append(str(error))
    return None, wrong


def steps(folder: Path) -> Iterator[int]:
    """The steps of the checkpoints in a folder, in no order."""
    for path in folder.iterdir() if folder.is_dir() else ():
        matched = _NAME.fullmatch(path.name)
        if matched:
            yield int(matched[1])


def _digest(body: str, tensors: dict[str, Tensor]) -> str:
    return weights_digest(tensors, blake2b(body.encode(), digest_size=16))
