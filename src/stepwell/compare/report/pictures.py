"""Images on the page: only data: addresses of pictures, and those of few pixels with sharp edges."""

from __future__ import annotations

import base64
import re
import struct
from html import escape

from stepwell.compare.samples import Sheet

_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/=]+)")
_SHARP_BELOW = 400
"""Sheets of fewer pixels across are enlarged: then pixels are shown as squares."""


def sheet_image(sheet: Sheet, alt: str) -> str:
    """An img element; empty if the address is not that of a picture inside the page."""
    found = _PICTURE.fullmatch(sheet.uri)
    if found is None:
        return ""
    width, height = _size(found[2])
    sharp = ' class="sharp"' if width < _SHARP_BELOW else ""
    size = f' width="{width}" height="{height}"' if width and height else ""
    return f'<img src="{escape(sheet.uri)}"{sharp}{size} alt="{escape(alt)}">'


def _size(data: str) -> tuple[int, int]:
    """Width and height of a PNG; 0 of anything else."""
    head = base64.b64decode(data[:32])
    if len(head) < 24 or head[12:16] != b"IHDR":
        return 0, 0
    width, height = struct.unpack(">II", head[16:24])
    return width, height
