"""What a run shows in TensorBoard, Weights & Biases and the other trackers of accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

NO_TRACKER = "none"


class Tracking:
    """Numbers at every record, and pictures where the tracker takes them; nothing without a tracker."""

    def __init__(self, accelerator: Accelerator, tracker: str, config: Mapping[str, Any]) -> None:
        self._accelerator, self._tracker = accelerator, tracker
        self._densities: list[Tensor] = []
        if self:
            accelerator.init_trackers("stepwell", config={name: str(value) for name, value in config.items()})

    def __bool__(self) -> bool:
        return self._tracker != NO_TRACKER

    @property
    def hint(self) -> str:
        """How to look at it; empty where a service tells that itself."""
        place = Path(str(self._accelerator.project_dir)).absolute()
        return f"tensorboard --logdir {place}" if self._tracker == "tensorboard" else ""

    def values(self, values: Mapping[str, Any], step: int) -> None:
        """The numbers of a record or an evaluation; of an evaluation also losses by time, and the density."""
        if not self:
            return
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        bands = values.get("bands", [])
        for band, loss in enumerate(bands):
            numbers[f"held_out_loss/u {band / len(bands):.2f}-{(band + 1) / len(bands):.2f}"] = loss
        self._accelerator.log(numbers, step=step)
        if "density" in values:
            self._densities.append(torch.tensor(values["density"]))
            self.picture("timesteps drawn", self._drawn(), step)

    def picture(self, name: str, picture: Tensor, step: int) -> None:
        """A picture, uint8 [3, H, W], if the tracker shows pictures."""
        for tracker in self._accelerator.trackers if self else ():
            if tracker.name == "tensorboard":
                tracker.log_images({name: picture[None]}, step=step)
            elif tracker.name == "wandb":
                array = picture.permute(1, 2, 0).numpy()
                tracker.log_images({name: [array]}, step=step)

    def _drawn(self) -> Tensor:
        """A row for each evaluation, the newest below, time to the right: bright where draws are dense."""
        heights = torch.stack(self._densities)
        bright = (255 * heights / heights.max().clamp(min=1e-9)).clamp(0, 255).to(torch.uint8)
        return bright.repeat_interleave(8, 0).repeat_interleave(8, 1).expand(3, -1, -1).contiguous()

    def close(self) -> None:
        """Write what is left."""
        if self:
            self._accelerator.end_training()
