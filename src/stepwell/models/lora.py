"""LoRA (Hu et al. 2022): a frozen network, and a product of two thin matrices learned beside each layer.

The adapters are peft's. They sit on every convolution and linear layer: attention's projections alone, the
usual choice, would leave our small U-Nets without any. alpha is the rank, so the product is added as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core import require
from stepwell.core.errors import Unsupported

_BASE, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def inject(network: nn.Module, rank: int) -> None:
    """Freeze a network and add adapters that start at 0; the random half follows torch's generator."""
    require.count("lora", rank)
    if find_spec("peft") is None:
        raise Unsupported(f"lora={rank} needs peft, which is not installed: pip install 'stepwell[lora]'.")
    from peft import LoraConfig, inject_adapter_in_model

    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=layers), network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def save_adapters(network: nn.Module, out: Path) -> None:
    """Write the adapters of `inject` as `PeftModel.from_pretrained` reads them."""
    from peft import get_peft_model_state_dict

    out.mkdir(parents=True, exist_ok=True)
    config = network.peft_config["default"]  # type: ignore[index]
    config.save_pretrained(out)  # type: ignore[union-attr]
    adapters = get_peft_model_state_dict(network)
    tensors = {f"base_model.model.{name}": value.contiguous() for name, value in adapters.items()}
    save_file(tensors, out / "adapter_model.safetensors", {"format": "pt"})


def is_adapter(name: str) -> bool:
    """Whether a tensor of this name belongs to an adapter."""
    return name.endswith((_DOWN, _UP))


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A network's tensors with adapters added to their layers, named as in a network without adapters."""
    plain = {}
    for name, tensor in tensors.items():
        if is_adapter(name):
            continue
        layer, _, last = name.partition(_BASE)
        down, up = tensors.get(f"{layer}{_DOWN}"), tensors.get(f"{layer}{_UP}")
        if last == "weight" and down is not None and up is not None:
            tensor = tensor + _product(down, up)
        plain[f"{layer}.{last}" if last else name] = tensor
    return plain


@torch.no_grad()
def _product(down: Tensor, up: Tensor) -> Tensor:
    """The weights that an adapter adds to a layer: up x down, or two convolutions [r, C, h, w] as one."""
    if down.dim() == 2:
        return up @ down
    return F.conv2d(down.transpose(0, 1), up).transpose(0, 1)
