"""The images that ship with the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch

from stepwell.data.load import load

ANKLE_BOOT = 9


def test_balanced_small_and_square() -> None:
    data = load("fashion16", labels=True)
    assert (len(data.train), len(data.held_out)) == (12_000, 2000)
    assert data.train.shape == data.held_out.shape == (1, 16, 16)
    assert data.train.classes == data.held_out.classes == 10
    assert data.train.labels is not None
    assert data.held_out.labels is not None
    assert data.train.labels.bincount().tolist() == [1200] * 10
    assert data.held_out.labels.bincount().tolist() == [200] * 10
    assert set(data.train.labels[:100].tolist()) == set(range(10)), "classes are not in blocks"
    assert not data.train.flips
    assert data.notes == ()


def test_without_labels_unless_asked() -> None:
    assert load("fashion16").train.labels is None


def test_no_image_occurs_twice() -> None:
    data = load("fashion16")
    train, held_out = (
        {image.numpy().tobytes() for image in part.fetch(torch.arange(len(part)))}
        for part in (data.train, data.held_out)
    )
    assert len(train) == 12_000
    assert len(held_out) == 2000
    assert not train & held_out


def test_shoes_point_to_the_left() -> None:
    data = load("fashion16", labels=True)
    assert data.train.labels is not None
    boots = data.train.fetch((data.train.labels == ANKLE_BOOT).nonzero()[:, 0]).float()
    top = boots[:, 0, 3:7].mean((0, 1))
    assert top[8:].sum() > 2 * top[:8].sum(), "legs leave boots at the back, which is on the right"


def test_small_enough_to_ship_and_its_licence_inside() -> None:
    file = files("stepwell.data") / "fashion16.npz"
    assert len(file.read_bytes()) < 3_000_000
    with file.open("rb") as stream:
        licence = bytes(np.load(stream)["licence"]).decode()
    assert "Copyright © 2017 Zalando SE" in licence
    assert "Permission is hereby granted" in licence


def test_other_sizes_and_colour() -> None:
    assert load("fashion16", size=8, channels=3).train.shape == (3, 8, 8)
