"""Captions are read from files beside images, numbered like classes, and missing ones are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from text_encoders import CAPTIONS, captioned_images

from stepwell.data.captions import captions_digest
from stepwell.data.load import load
from stepwell.data.source import BadData


@pytest.mark.parametrize("metadata", [False, True])
def test_each_image_has_its_own_caption(metadata: bool, tmp_path: Path) -> None:
    data = load(str(captioned_images(tmp_path / "data", metadata=metadata)), captions=True, strict=True)
    assert data.captions == CAPTIONS
    for source in (data.train, data.held_out):
        assert source.labels is not None
        light = source.examples(torch.arange(len(source))).mean((1, 2, 3)) > 0
        assert torch.equal(source.labels, light.long())
        assert source.classes == 2


def test_without_captions_their_files_are_skipped_as_before(tmp_path: Path) -> None:
    data = load(str(captioned_images(tmp_path / "data")))
    assert data.train.labels is None
    assert "skipped 24 of 48 files" in data.notes[0]


def test_a_text_beside_an_image_fills_a_gap_of_the_metadata(tmp_path: Path) -> None:
    folder = captioned_images(tmp_path / "data", metadata=True)
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    (folder / "metadata.jsonl").write_text("\n".join(lines[1:]))
    (folder / "part" / "000.txt").write_text("the\nfirst  one\n")
    assert "the first one" in load(str(folder), captions=True).captions


def test_missing_captions_are_counted_and_named(tmp_path: Path) -> None:
    folder = captioned_images(tmp_path / "data")
    for number in range(7):
        (folder / "part" / f"{number:03d}.txt").unlink()
    with pytest.raises(BadData, match=r"7 of 24 images have no caption: part/000.png, .*004.png, \.\.\.\."):
        load(str(folder), captions=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is no JSON object"),
        ("[1]", "line 1 is no JSON object"),
        ('{"file_name": "a.png", "caption": "x"}', "line 1 has no text, only 'file_name, caption'"),
        ('{"file_name": 3, "text": "x"}', "line 1 has no file_name"),
    ],
)
def test_a_bad_line_of_metadata_is_named(line: str, said: str, tmp_path: Path) -> None:
    folder = captioned_images(tmp_path / "data", metadata=True)
    (folder / "metadata.jsonl").write_text(f"{line}\n")
    with pytest.raises(BadData, match=said):
        load(str(folder), captions=True)


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    folder = captioned_images(tmp_path / "data", metadata=True)
    (folder / "metadata.jsonl").write_bytes(b'{"text": "\xff"}')
    with pytest.raises(BadData, match=r"metadata.jsonl is not UTF-8"):
        load(str(folder), captions=True)


def test_captions_are_for_folders_and_instead_of_classes(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="data=fashion16 has no captions"):
        load("fashion16", captions=True)
    with pytest.raises(BadData, match="captions or classes"):
        load(str(captioned_images(tmp_path / "data")), captions=True, labels=True)


def test_the_digest_knows_texts_and_their_order() -> None:
    assert len({captions_digest(texts) for texts in (("a", "b"), ("b", "a"), ("ab",), ())}) == 4
