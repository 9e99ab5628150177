"""Which ways to start several processes the trainer can take."""

from __future__ import annotations

import os

from stepwell.core.errors import Unsupported

_SHARDING = {
    "FSDP": "ACCELERATE_USE_FSDP",
    "DeepSpeed": "ACCELERATE_USE_DEEPSPEED",
    "Megatron-LM": "ACCELERATE_USE_MEGATRON_LM",
}
"""What splits a network over ranks, and the variable by which accelerate's launcher asks for it."""


def require_whole_networks() -> None:
    """Refuse launches that split the network: the average, checkpoints and evaluation need all of it.

    Left alone, a run under FSDP2 would end at its first evaluation: rank 0 cannot put the averaged weights in
    place, and the others report a lost connection. Before accelerate is asked, which fails here without GPUs.
    """
    for name, variable in _SHARDING.items():
        if os.environ.get(variable, "").lower() == "true":
            raise Unsupported(
                f"this launch asks for {name}, and `stepwell train` keeps the whole network on every GPU "
                "(DDP): launch without it (accelerate: --multi_gpu; torchrun as it is), with a smaller batch "
                "and more accumulate if memory is short. A network that fits no GPU trains in a loop of your "
                "own with stepwell.Pacer, which supports fully_shard: see docs/scale.md."
            )
