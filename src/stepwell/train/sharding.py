"""Networks in parts over the ranks: FSDP2's fully_shard, of each block of a network and of what is left."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stepwell.core.errors import Unsupported


def shard(network: nn.Module, device: str, world: int) -> None:
    """Leave on each rank a part of every parameter; a block's are whole only while it computes."""
    if world == 1:
        raise Unsupported(
            "sharding=full keeps a part of the network on each rank, and there is one process only: start "
            "several, torchrun --nproc_per_node N -m stepwell train ..., or leave sharding out."
        )
    mesh = init_device_mesh(device, (world,))
    # The outermost too is put away after its forward pass (by default it waits for a backward pass): averaged
    # weights are put in place between passes, and would be missed otherwise.
    for part in (*_blocks(network), network):
        fully_shard(part, mesh=mesh, reshard_after_forward=True)


def _blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost lists: blocks of transformers, levels of U-Nets."""
    for child in network.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child.children() if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)
