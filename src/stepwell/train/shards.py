"""A sharded network's tensors on disk: each rank writes its part, and any number of ranks reads them.

torch.distributed.checkpoint does both. Its safetensors format is used, because its own needs pickle.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from stepwell.core.ranks import of_every_rank
from stepwell.probes.gradients import is_sharded

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Like = Callable[[str], "Tensor | None"]
"""The tensor of a training that a stored tensor of some name is for, if there is one."""


def write(folder: Path, parts: Mapping[str, DTensor]) -> dict[str, str]:
    """Write every rank's parts into a new folder, and return the digest of each file; all ranks call it."""
    # Not at the top: it takes a second to import, and most runs are not sharded.
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save  # type: ignore[attr-defined]
    from torch.distributed.checkpoint.api import CheckpointException

    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    dist.barrier()
    try:
        save(dict(parts), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        # On every rank, whichever failed: the message has their ranks and reasons.
        raise OSError(" ".join(str(error).split())[:300]) from error
    own = {path.name: _digest(path) for path in folder.glob(f"shard-{dist.get_rank() + 1:05d}-*")}
    return {name: digest for found in of_every_rank(own) for name, digest in found.items()}


def damage(folder: Path, files: Mapping[str, str], together: bool) -> str:
    """What is wrong with a folder's files, or nothing; `together` each rank reads some and all hear of it."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    wrong = [name for name in sorted(files)[rank::world] if not _intact(folder / name, files[name])]
    if together:
        wrong = [name for found in of_every_rank(wrong) for name in found]
    return f"{', '.join(wrong)} of it is missing or does not match its checksum" if wrong else ""


def read(folder: Path, named: Callable[[str], bool], like: Like | None) -> dict[str, Tensor]:
    """The tensors of some names: this rank's parts where `like` has parts, else whole ones."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader  # type: ignore[attr-defined]
    from torch.distributed.checkpoint import load as load_into  # type: ignore[attr-defined]

    reader = HuggingFaceStorageReader(str(folder))
    stored: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    tensors: dict[str, Tensor] = {}
    for name, of in ((name, of) for name, of in stored.items() if named(name)):
        template = None if like is None else like(name)
        if template is not None and is_sharded(template) and template.shape == of.size:
            tensors[name] = torch.empty_like(template.detach())
        else:
            tensors[name] = torch.empty(of.size, dtype=of.properties.dtype)
    with warnings.catch_warnings():
        # That a single process reads alone is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load_into(tensors, storage_reader=reader, no_dist=like is None)
    return tensors


def distributed(tensors: Mapping[str, Tensor], like: Like) -> dict[str, Tensor]:
    """Whole tensors with this rank's parts in their place, where `like` has parts."""
    from torch.distributed.tensor import distribute_tensor

    parts = dict(tensors)
    for name, tensor in tensors.items():
        template = like(name)
        if template is not None and is_sharded(template) and template.shape == tensor.shape:
            mesh, placements = template.device_mesh, template.placements
            # Every rank has read all of it: nothing is sent.
            parts[name] = distribute_tensor(tensor.to(template.device), mesh, placements, src_data_rank=None)
    return parts


def _intact(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def _digest(path: Path) -> str:
    total = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()
