"""Parameters that FSDP keeps in parts (DTensor), known without importing what takes a second."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

from stepwell.core.errors import Unsupported

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this rank may hold only a part of it: where such tensors are, their module is loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def held(parameter: Tensor) -> tuple[int, int]:
    """The range of flat coordinates that this rank holds: rows, as FSDP shards them."""
    if not is_sharded(parameter):
        return 0, parameter.numel()
    from torch.distributed.tensor import Shard

    (placement, *more) = parameter.placements
    if more or not isinstance(placement, Shard) or placement.dim != 0:
        raise Unsupported(
            f"a parameter is placed as {parameter.placements}: gradient probes know parameters that are "
            "whole or sharded along their first dimension over one mesh dimension (fully_shard's default)."
        )
    rows, world = parameter.shape[0], parameter.device_mesh.size()
    each = -(-rows // world)
    low = min(rows, each * parameter.device_mesh.get_local_rank())
    width = parameter.numel() // max(rows, 1)
    return low * width, min(rows, low + each) * width
