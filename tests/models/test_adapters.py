"""Adapters fit every network of the catalogue, and leave its names behind when they are added to it."""

from __future__ import annotations

import pytest
import torch

from stepwell.models import lora
from stepwell.models.denoiser import TextShape
from stepwell.models.registry import MODELS, build_model

QUICK = ("micro", "text-tiny", "small", "ddpm-cifar10", "adm-small", "uvit-tiny", "dit-s-2")
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]


@pytest.mark.parametrize("name", ALL)
def test_every_network(name: str) -> None:
    with torch.device("meta"):
        size, text = 64 if name.startswith("adm") else 32, TextShape(4, 8) if name[:4] == "text" else None
        network = build_model(name, channels=3, image_size=size, text=text).network
        plain = {key: tensor.shape for key, tensor in network.state_dict().items()}
        names = [key for key, _ in network.named_parameters()]
        assert list(plain) == names, "averages are kept in the order of parameters"
        lora.inject(network, 4)
    learned = {key for key, parameter in network.named_parameters() if parameter.requires_grad}
    assert learned == {key for key in network.state_dict() if lora.is_adapter(key)}
    assert len(learned) >= 20
    found = lora.merged(network.state_dict())
    assert {key: tensor.shape for key, tensor in found.items()} == plain


def test_a_network_with_new_adapters_answers_as_before() -> None:
    network = build_model("small", channels=1, image_size=16).network.eval()
    x, time = torch.randn(2, 1, 16, 16), torch.tensor([5, 700])
    with torch.no_grad():
        before = network(x, time).sample
        lora.inject(network, 2)
        after = network.eval()(x, time).sample
    torch.testing.assert_close(before, after)
