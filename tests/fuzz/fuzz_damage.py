"""Ways in which a file can be damaged: its bytes, its kind, its values, its announcements."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

Damage = Callable[[Path, Random], None]

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3.5, 1e308, -1e308, 10**400, "", "x", "nan", [], {}, [[]], [None], ["x"],
    {"a": None}, {"": []}, float("nan"), float("inf"), 2**63, "\u0000", "../..", "~nosuchuser", "a" * 5000,
)  # fmt: skip
"""Values that JSON can hold and no file of ours has."""
ODD_TOML = (
    "nan", "inf", "-inf", "true", "false", "0", "-1", "3.5", "1e999", "9" * 400, '""', '"x"', "[]", "{}",
    "[[]]", '["x"]', "[1, 2]", "[nan]", "1979-05-27", "12:00:00", '"\\u0000"', "{a = 1}", '"~nosuchuser"',
    "[" * 2000 + "]" * 2000, '"' + "a" * 3000 + '"', "0x10", '"nan"', "[{}]", "1_000",
)  # fmt: skip


def bytes_of(path: Path, draw: Random) -> None:
    """Cut, flipped, doubled, emptied or replaced bytes."""
    content = bytearray(path.read_bytes())
    match draw.randrange(7):
        case 0:
            content = content[: draw.randrange(len(content) + 1)]
        case 1:
            for _ in range(draw.choice((1, 1, 3, 50))):
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        case 2:
            start = draw.randrange(len(content))
            content[start : start + draw.randrange(200)] = draw.randbytes(draw.randrange(200))
        case 3:
            content = bytearray()
        case 4:
            content = bytearray(draw.randbytes(draw.choice((1, 100, 5000))))
        case 5:
            content = content + content
        case _:
            content = bytearray(len(content))
    _replace(path, bytes(content))


def encoding_of(path: Path, draw: Random) -> None:
    """The same text in another encoding, or text that is deep, or none."""
    text = path.read_bytes().decode("utf-8", "replace")
    options = (
        text.encode("utf-16"),
        text.encode("utf-8-sig"),
        text.encode("utf-32"),
        b"\xff\xfe" + text.encode(),
        ("[" * 100_000).encode(),
        ('{"a":' * 50_000).encode(),
        b"a = " + b"[" * 5000 + b"]" * 5000,
        b"\0" * 100,
        b"x" * 1_000_000,
        b"# only a comment\n",
        b"null",
        b"[]",
        b"5",
        b'"text"',
        b"{}",
        text.replace("\n", "\r").encode(),
    )
    _replace(path, draw.choice(options))


def kind_of(path: Path, draw: Random) -> None:
    """Something else in the place of a file: a folder, a link, a pipe, nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    match draw.randrange(8):
        case 0:
            path.mkdir()
        case 1:
            path.symlink_to(path.name)
        case 2:
            path.symlink_to("/nosuch/file")
        case 3:
            os.mkfifo(path)
        case 4:
            path.symlink_to("/dev/zero")
        case 5:
            path.symlink_to("/dev/null")
        case 6:
            path.symlink_to("..")
        case _:
            pass


def json_values(path: Path, draw: Random) -> None:
    """Values of a JSON file, or of one line of a JSON-lines file, changed, renamed or dropped."""
    text = path.read_text()
    if path.suffix != ".jsonl":
        _replace(path, json.dumps(changed(json.loads(text), draw)).encode())
        return
    lines = text.splitlines()
    place = draw.choice([row for row, line in enumerate(lines) if '"evaluation"' in line] or [0])
    lines[place] = json.dumps(changed(json.loads(lines[place]), draw))
    _replace(path, "".join(f"{line}\n" for line in lines).encode())


def changed(value: Any, draw: Random) -> Any:
    """A JSON value with one to three of its parts changed."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        value = _changed(value, draw)
    return value


def _changed(value: Any, draw: Random) -> Any:
    deeper = isinstance(value, (dict, list)) and value and draw.random() < 0.9
    if not deeper:
        return draw.choice(ODD_VALUES)
    if isinstance(value, list):
        row = draw.randrange(len(value))
        return [*value[:row], _changed(value[row], draw), *value[row + 1 :]]
    key = draw.choice(sorted(value, key=str))
    if draw.random() < 0.15:
        return {name: one for name, one in value.items() if name != key}
    if draw.random() < 0.05:
        return {**value, draw.choice(["", "nosuch", "name", "self"]): draw.choice(ODD_VALUES)}
    return {**value, key: _changed(value[key], draw)}


def toml_line(path: Path, draw: Random) -> None:
    """One line of a TOML file with another value, under another key, or in another section."""
    lines = path.read_text().splitlines()
    places = [row for row, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    row = draw.choice(places)
    key = lines[row].partition("=")[0]
    match draw.randrange(4):
        case 0 | 1:
            lines[row] = f"{key}= {draw.choice(ODD_TOML)}"
        case 2:
            lines.insert(row, f"{draw.choice(['nosuch', 'Name', 'kind', 'a.b.c', key.strip() + 's'])} = 1")
        case _:
            lines.append(draw.choice(["[samplr]", "[[sampler]]", "[tune.x]", "[x]", "[settings.y]", "[[x]]"]))
            lines.append("a = 1")
    _replace(path, "\n".join(lines).encode())


def npz_of(path: Path, draw: Random) -> None:
    """An .npz that announces something else than it holds, or holds what cannot be used."""
    name = draw.choice(["images", "x", "labels", "mu", "sigma", "arr_0", "held_out_images", "count"])
    plain = np.zeros((4, 16, 16), np.uint8)
    header = draw.choice(
        [
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (999999999, 999999, 99), }",
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 16, 16), }",
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (4, 16), }",
            b"{'descr': '|O', 'fortran_order': False, 'shape': (4, 16, 16), }",
            b"{'descr': 5, 'fortran_order': False, 'shape': (4, 16, 16), }",
            b"{'descr': '|u1', 'fortran_order': 'x', 'shape': 'y', }",
            b"{'descr': '|S99999999999', 'fortran_order': False, 'shape': (4, 16, 16), }",
            b"{'descr': '|u1', 'shape': (4,",
            b"[" * 5000,
            b"{[]: 1}",
            b"",
        ]
    )
    packed = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + plain.tobytes()
    arrays: list[Any] = [
        np.zeros((0, 16, 16), np.uint8), np.zeros((4, 16, 16), np.float64), np.zeros(4), np.array(5),
        np.zeros((4, 16, 16, 7), np.uint8), np.array(["a", "b"]), np.zeros((4, 0, 16), np.uint8),
        np.full(64, np.nan), np.full((64, 64), np.nan), -np.eye(64), np.zeros((64, 64), complex), np.eye(3),
        np.array([2**63], np.uint64), np.zeros((1, 1, 1, 1, 1, 1), np.uint8), np.full(40, -1), np.zeros((2,
        1)),
        np.arange(64 * 64.0).reshape(64, 64), np.full((64, 64), 1e200), np.full(40, 10**12),
    ]  # fmt: skip
    stored = {key: value for key, value in _arrays(path).items() if key != name or draw.random() < 0.2}
    mode = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", mode) as archive:
        for key, value in stored.items():
            archive.writestr(f"{key}.npy", _npy(value))
        if draw.random() < 0.5:
            archive.writestr(f"{name}.npy", packed)
        else:
            archive.writestr(f"{name}.npy", _npy(draw.choice(arrays)))
        if draw.random() < 0.1:
            archive.writestr("../escape.npy", b"")
    _replace(path, content.getvalue())


def bomb(path: Path, draw: Random) -> None:
    """A few hundred kB that would fill gigabytes."""
    rows = draw.choice((1_000, 3_000))
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (rows, 1024, 1024)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as stream:
            stream.write(head.getvalue())
        packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    # The entry's own sizes are written by hand: deflating gigabytes of zeros takes seconds.
    block = packed.compress(head.getvalue() + bytes(1 << 20)) + packed.flush()
    _zip_by_hand(path, "images.npy", block, len(head.getvalue()) + (rows << 20))


def _zip_by_hand(path: Path, name: str, block: bytes, announced: int) -> None:
    """A ZIP with one deflated entry that announces a size."""
    encoded, size = name.encode(), min(announced, 0xFFFFFFFE)
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(block), size, len(encoded), 0)
    local = b"PK\3\4" + fields + encoded + block
    central = b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + encoded
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    _replace(path, local + central + end)


def picture(path: Path, draw: Random) -> None:
    """A PNG that announces a size it does not have."""
    width, height = draw.choice(
        [(12_000, 12_000), (30_000, 30_000), (0, 5), (2**31 - 1, 2**31 - 1), (1, 9999)]
    )
    body = struct.pack(">IIBBBBB", width, height, draw.choice((8, 16, 1)), draw.choice((0, 2, 3, 9)), 0, 0, 0)
    chunk = struct.pack(">I", len(body)) + b"IHDR" + body + struct.pack(">I", zlib.crc32(b"IHDR" + body))
    data = zlib.compress(bytes(10_000))
    more = struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))
    _replace(path, b"\x89PNG\r\n\x1a\n" + chunk + more + struct.pack(">I", 0) + b"IEND\xaeB`\x82")


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as stored:
        return dict(stored)


def _npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
    return content.getvalue()


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)
