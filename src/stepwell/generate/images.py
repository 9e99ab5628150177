"""Batches of images from noise: seeded one by one, so that they do not depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor, nn

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.random import stream_key
from stepwell.data.source import to_pixels
from stepwell.generate.continuous import ContinuousRoute, continuous_route
from stepwell.generate.guidance import check_classes, guided
from stepwell.generate.originals import Originals
from stepwell.generate.route import Route, route_of
from stepwell.processes.discrete import DiscreteProcess


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
    clip: float | None = 1.0
    """The largest value of a predicted x0: images lie in [-1, 1]. None: whatever the network says."""
    originals: Originals | None = None
    """Of super-resolution: the images whose low-resolution companions are enlarged."""

    def __post_init__(self) -> None:
        for name in ("count", "steps", "batch"):
            require.count(name, getattr(self, name))
        require.not_negative("guidance", self.guidance)
        require.between("eta", self.eta, 0, 1)
        if self.eta and self.solver != "ddim":
            raise InvalidParameter(f"eta is DDIM's noise, and {self.solver} has none: leave it at 0.")

    def batches(self) -> list[range]:
        """The numbers of the images, batch by batch."""
        starts = range(0, self.count, self.batch)
        return [range(start, min(start + self.batch, self.count)) for start in starts]

    def labels_of(self, indices: Sequence[int]) -> list[int] | None:
        """The classes of some images."""
        return [self.labels[index % len(self.labels)] for index in indices] if self.labels else None

    def channels_of(self, indices: Sequence[int], like: Tensor) -> Tensor | None:
        """The extra input [B, E, H, W] of some images, on a tensor's device."""
        found = None if self.originals is None else self.originals.channels(indices)
        return None if found is None else found.to(like)


Decode = Callable[[Tensor], Tensor]
"""From what a network makes, float [B, c, h, w], to uint8 images [B, C, H, W]."""


@torch.no_grad()
def generate(
    denoiser: nn.Module,
    process: NoiseProcess,
    request: Request,
    decode: Decode = to_pixels,
    batches: Sequence[range] | None = None,
) -> Iterator[Tensor]:
    """Uint8 images [B, C, H, W] of all batches or of some; image i depends on the seed and i alone."""
    route = checked_route(denoiser, process, request)
    like = next(denoiser.parameters())
    for indices in request.batches() if batches is None else batches:
        generators = [Generator().manual_seed(stream_key(request.seed, "image", index)) for index in indices]
        noise = torch.stack([torch.randn(request.shape, generator=g) for g in generators]).to(like)
        labels = request.labels_of(indices)
        told = None if labels is None else torch.tensor(labels, device=like.device)
        shown = request.channels_of(indices, like)
        network = partial(guided, denoiser, labels=told, guidance=request.guidance, channels=shown)
        yield decode(route.follow(network, noise, generators))


def checked_route(denoiser: nn.Module, process: NoiseProcess, request: Request) -> Route | ContinuousRoute:
    """The way to the images, or an error if the request cannot be met."""
    check_classes(denoiser, request.labels, request.guidance)
    if not isinstance(process, DiscreteProcess):
        return continuous_route(process, request.solver, request.steps, request.clip)
    return route_of(
        process,
        request.solver,
        request.steps,
        learned_variance=bool(getattr(denoiser, "learned_variance", False)),
        clip=request.clip,
        eta=request.eta,
    )
