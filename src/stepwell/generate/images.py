"""Batches of images from noise: seeded one by one, so that they do not depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.random import stream_key
from stepwell.data.source import to_pixels
from stepwell.generate.scheduler import scheduler_of
from stepwell.models.denoiser import Condition


@dataclass(frozen=True)
class Request:
    """What to generate."""

    count: int
    shape: tuple[int, int, int]
    """Channels, height, width."""
    solver: str = "ddim"
    steps: int = 50
    batch: int = 64
    seed: int = 0
    labels: tuple[int, ...] = ()
    """Classes to cycle through; none for an unconditional network, or for no class."""
    guidance: float = 1.0
    """1: none; above it, classifier-free guidance (Ho and Salimans 2022)."""
    eta: float = 0.0
    """DDIM's noise; 1 is as noisy as DDPM."""
    clip: bool = True
    """Keep the predicted x0 in [-1, 1], where images lie and latents do not."""

    def __post_init__(self) -> None:
        for name in ("count", "steps", "batch"):
            require.count(name, getattr(self, name))
        require.not_negative("guidance", self.guidance)
        require.between("eta", self.eta, 0, 1)


Decode = Callable[[Tensor], Tensor]
"""From what a network makes, float [B, c, h, w], to uint8 images [B, C, H, W]."""


@torch.no_grad()
def generate(
    denoiser: nn.Module, process: NoiseProcess, request: Request, decode: Decode = to_pixels
) -> Iterator[Tensor]:
    """Batches of uint8 images [B, C, H, W]; image i depends on the seed and i alone."""
    _check_labels(denoiser, request)
    if process.timesteps is not None and request.steps > process.timesteps:
        raise InvalidParameter(
            f"{request.steps} denoising steps are more than the process's {process.timesteps} timesteps."
        )
    device = next(denoiser.parameters()).device
    for start in range(0, request.count, request.batch):
        indices = range(start, min(start + request.batch, request.count))
        generators = [
            torch.Generator().manual_seed(stream_key(request.seed, "image", index)) for index in indices
        ]
        x = torch.stack([torch.randn(request.shape, generator=g) for g in generators]).to(device)
        labels = (
            [request.labels[index % len(request.labels)] for index in indices] if request.labels else None
        )
        condition = Condition(None if labels is None else torch.tensor(labels, device=device))
        yield decode(_denoised(denoiser, process, request, x, condition, generators))


def _denoised(
    denoiser: nn.Module,
    process: NoiseProcess,
    request: Request,
    x: Tensor,
    condition: Condition,
    generators: list[torch.Generator],
) -> Tensor:
    learned = bool(getattr(denoiser, "learned_variance", False))
    scheduler = scheduler_of(process, request.solver, learned, clip=request.clip)
    scheduler.set_timesteps(request.steps)
    extra = {"eta": request.eta} if request.solver == "ddim" else {}
    for time in scheduler.timesteps:
        times = torch.full((len(x),), int(time), device=x.device)
        output = denoiser(x, times, condition)
        if request.guidance != 1 and condition.labels is not None:
            plain = denoiser(x, times, Condition())
            output = plain + request.guidance * (output - plain)
        if learned and request.solver == "ddim":
            output = output[:, : x.shape[1]]
        x = scheduler.step(output, time, x, generator=generators, **extra).prev_sample
    return x


def _check_labels(denoiser: nn.Module, request: Request) -> None:
    classes = int(getattr(denoiser, "classes", 0))
    wrong = [label for label in request.labels if not 0 <= label < max(classes, 1)]
    if request.labels and classes == 0:
        raise InvalidParameter("the network was trained without labels: leave labels out.")
    if wrong:
        raise InvalidParameter(f"labels run from 0 to {classes - 1}, not {wrong[0]}.")
