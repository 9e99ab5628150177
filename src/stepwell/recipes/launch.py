"""Which ways to start several processes the trainer can take."""

from __future__ import annotations

import os

from accelerate import Accelerator

from stepwell.core.errors import Unsupported

_SHARDING = {
    "FSDP": "ACCELERATE_USE_FSDP",
    "DEEPSPEED": "ACCELERATE_USE_DEEPSPEED",
    "MEGATRON_LM": "ACCELERATE_USE_MEGATRON_LM",
}
"""What splits a network over ranks, by accelerate's name, and the variable that its launcher sets."""


def require_whole_networks(accelerator: Accelerator) -> None:
    """Refuse launches that split the network: the average, checkpoints and evaluation need all of it.

    Left alone, a run under FSDP2 would end at its first evaluation: rank 0 cannot put the averaged weights in
    place, and the others report a lost connection. On CPUs accelerate would ignore the request silently.
    """
    # An accelerate launch sets the variable to "true"; a later "false" is no request.
    asked = {name for name, variable in _SHARDING.items() if os.environ.get(variable, "").lower() == "true"}
    kind = accelerator.distributed_type.name
    for name in sorted(asked | ({kind} & _SHARDING.keys())):
        raise Unsupported(
            f"this launch asks for {name}, and `stepwell train` keeps the whole network on every GPU (DDP): "
            "launch without it (accelerate: --multi_gpu; torchrun as it is), with a smaller batch and more "
            "accumulate if memory is short. A network that fits no GPU trains in a loop of your own with "
            "stepwell.Pacer, which supports fully_shard: see docs/scale.md."
        )
