"""Networks behind one call: conditions, hidden labels, sizes that do not fit."""

from __future__ import annotations

import pytest
import torch

from stepwell.core.errors import InvalidParameter
from stepwell.models.denoiser import Condition
from stepwell.models.registry import build_model


@pytest.mark.parametrize("name", ["micro", "tiny", "small", "adm-small", "uvit-tiny"])
def test_shapes_conditions_and_learned_variance(name: str) -> None:
    network = build_model(name, channels=3, image_size=16, classes=4, extra_channels=2, learned_variance=True)
    x, time = torch.randn(2, 3, 16, 16), torch.tensor([3, 700])
    output = network(x, time, Condition(torch.tensor([0, 3]), torch.randn(2, 2, 16, 16)))
    assert output.shape == (2, 6, 16, 16)


def test_hidden_labels_are_the_label_of_no_class() -> None:
    network = build_model("micro", channels=1, image_size=8, classes=4, label_dropout=0.5)
    labels = torch.arange(4).repeat(1000)
    network.train()
    x = torch.zeros(4000, 1, 8, 8)
    dropped = network._labels(labels, x)
    hidden = float((dropped == 4).float().mean())
    # 4,000 fair coins: six standard errors are 0.047, a failure rate of 2e-9.
    assert abs(hidden - 0.5) < 0.047
    assert torch.equal(dropped[dropped != 4], labels[dropped != 4])
    network.eval()
    assert torch.equal(network._labels(labels, x), labels)
    assert network._labels(None, x[:3]).tolist() == [4, 4, 4]


def test_sizes_that_do_not_fit_say_what_would() -> None:
    with pytest.raises(InvalidParameter, match="multiple of 4, not 18"):
        build_model("tiny", channels=1, image_size=18)
    with pytest.raises(InvalidParameter, match="2 examples need 2 labels"):
        build_model("micro", channels=1, image_size=8, classes=2)(
            torch.zeros(2, 1, 8, 8), torch.zeros(2), Condition(torch.zeros(3, dtype=torch.long))
        )


@pytest.mark.parametrize("name", ["micro", "uvit-tiny"])
def test_the_label_of_no_class_is_a_label_of_its_own(name: str) -> None:
    torch.manual_seed(0)
    network = build_model(name, channels=1, image_size=8, classes=2).eval()
    x, time = torch.randn(1, 1, 8, 8).expand(3, -1, -1, -1), torch.full((3,), 10)
    dropped = network(x, time, Condition(torch.tensor([0, 1, 2])))
    torch.testing.assert_close(network(x[:1], time[:1]), dropped[2:])
    assert (dropped[2] - dropped[0]).abs().max() > 1e-6
    assert (dropped[2] - dropped[1]).abs().max() > 1e-6
