"""Imported before torchvision: its Python runs without the compiled part, which has no CPU build here.

Importing torchvision registers fakes for two operators that only the compiled part declares.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")
for _operator in ("nms", "qnms"):
    _LIBRARY.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
