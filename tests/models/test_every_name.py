"""Every network of the catalogue behind the same call, at full size on the meta device."""

from __future__ import annotations

import pytest
import torch
from cases import case

from stepwell.core.errors import InvalidParameter, UnknownName
from stepwell.models.denoiser import Condition, TextShape
from stepwell.models.registry import MODELS, build_model

SIZE = {"adm-imagenet256": 32}
"""Images that fit: five halvings need 32 pixels, all others fit 16."""
SMALLEST = ("small", "ddpm-cifar10", "adm-small", "uvit-tiny", "uvit-s", "dit-s-2")
"""Of every family that needs no text: `make test-all` builds the large ones."""


def text_of(name: str) -> TextShape | None:
    """The texts of networks that need some."""
    return TextShape(4, 8) if MODELS[name].takes_text else None


@pytest.mark.parametrize("name", [case(name, quick=name in (*SMALLEST, "text-tiny")) for name in MODELS])
def test_labels_extra_channels_and_learned_variance(name: str) -> None:
    size = SIZE.get(name, 16)
    with torch.device("meta"), torch.no_grad():
        network = build_model(
            name,
            channels=3,
            image_size=size,
            classes=4,
            extra_channels=2,
            learned_variance=True,
            label_dropout=0.1,
            text=text_of(name),
        )
        x, time = torch.empty(2, 3, size, size), torch.tensor([3, 700])
        condition = Condition(torch.tensor([0, 3]), torch.empty(2, 2, size, size))
        assert network(x, time, condition).shape == (2, 6, size, size)


@pytest.mark.parametrize("name", MODELS)
def test_small_latents_fit_or_the_error_says_which_sizes_would(name: str) -> None:
    with torch.device("meta"):
        if name != "adm-imagenet256":
            build_model(name, channels=32, image_size=8, text=text_of(name))
            return
        with pytest.raises(InvalidParameter, match="multiple of 32, not 8"):
            build_model(name, channels=32, image_size=8)


@pytest.mark.parametrize("name", SMALLEST)
def test_no_labels_and_times_between_the_steps(name: str) -> None:
    with torch.device("meta"), torch.no_grad():
        network = build_model(name, channels=32, image_size=8)
        assert network(torch.empty(2, 32, 8, 8), torch.tensor([0.25, 700.5])).shape == (2, 32, 8, 8)


@pytest.mark.parametrize("name", ["uvit-tiny", "dit-s-2"])
def test_images_must_be_whole_patches_and_of_the_size_it_was_built_for(name: str) -> None:
    with pytest.raises(InvalidParameter, match="must be a multiple of 2, not 9"):
        build_model(name, channels=1, image_size=9)
    with torch.device("meta"):
        network = build_model(name, channels=1, image_size=8)
        for shape in [(1, 8, 4), (1, 16, 16), (2, 8, 8)]:
            with pytest.raises(InvalidParameter, match=r"built for images of shape \(1, 8, 8\), not"):
                network(torch.empty(2, *shape), torch.tensor([1, 2]))


def test_mistakes_are_named() -> None:
    with pytest.raises(InvalidParameter, match="model text-tiny is told texts"):
        build_model("text-tiny", channels=1, image_size=8)
    with pytest.raises(InvalidParameter, match="micro cannot be told captions: take one of text-tiny"):
        build_model("micro", channels=1, image_size=8, text=TextShape(4, 8))
    with pytest.raises(UnknownName, match="'uvit-x' is not a known model"):
        build_model("uvit-x", channels=1, image_size=8)
    with pytest.raises(InvalidParameter, match="channels must be a whole number of at least 1, not 0"):
        build_model("micro", channels=0, image_size=8)
    with pytest.raises(InvalidParameter, match="dropout must lie between 0 and 1, not 2"):
        build_model("micro", channels=1, image_size=8, dropout=2)


@pytest.mark.parametrize("name", MODELS)
def test_an_entry_says_what_and_from_where(name: str) -> None:
    entry = MODELS[name]
    assert entry.family in ("unet", "text_unet", "uvit", "dit")
    assert entry.summary
    assert entry.source == "Stepwell" or entry.source[-4:].isdigit()
