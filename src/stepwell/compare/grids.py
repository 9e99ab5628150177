"""Images of several methods from the same noise, side by side in one picture (Kim et al. 2025, Fig. 8)."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from stepwell.compare.views import Summary, Workload
from stepwell.core.errors import StepwellError
from stepwell.runs.io import replacing

_GAP, _CAPTION, _ACROSS = 12, 22, 4
_BACKGROUND, _INK = (255, 255, 255), (30, 30, 30)


def save_grids(summary: Summary, path: Path) -> None:
    """Save one row per workload, with each method's images under its name."""
    rows = [_row(workload) for workload in summary.workloads]
    shown = [row for row in rows if row is not None]
    if not shown:
        raise StepwellError(
            "there are no images to show side by side: thin records have none, and runs generate them at "
            "their end with samples=64."
        )
    width = max(row.width for row in shown)
    canvas = Image.new("RGB", (width, sum(row.height for row in shown)), _BACKGROUND)
    top = 0
    for row in shown:
        canvas.paste(row, (0, top))
        top += row.height
    try:
        with replacing(path) as temporary:
            canvas.save(temporary, format=path.suffix[1:])
    except (OSError, ValueError, KeyError) as error:
        raise StepwellError(f"could not write {path}: {error}.") from error


def _row(workload: Workload) -> Image.Image | None:
    sheets = [(method.name, _picture(method.sheet.uri)) for method in workload.methods if method.sheet]
    if not sheets:
        return None
    wide, high = (max(size) for size in zip(*(picture.size for _, picture in sheets), strict=True))
    down = -(-len(sheets) // _ACROSS)
    size = (min(len(sheets), _ACROSS) * (wide + _GAP) + _GAP, down * (high + _CAPTION + _GAP) + _CAPTION)
    canvas = Image.new("RGB", size, _BACKGROUND)
    ink, font = ImageDraw.Draw(canvas), ImageFont.load_default(14)
    ink.text((_GAP, 4), workload.name, fill=_INK, font=font)
    for place, (name, picture) in enumerate(sheets):
        left = _GAP + (place % _ACROSS) * (wide + _GAP)
        top = _CAPTION + (place // _ACROSS) * (high + _CAPTION + _GAP)
        ink.text((left, top + 4), name, fill=_INK, font=font)
        canvas.paste(picture, (left, top + _CAPTION))
    return canvas


def _picture(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
