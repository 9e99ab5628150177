"""Generate images with a network: the request, classifier-free guidance, and the loop over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample
from stepwell.core.tick import stream_key
from stepwell.data.source import to_pixels
from stepwell.generate.own_solvers import Network, OwnSolver
from stepwell.generate.solvers import SOLVERS
from stepwell.generate.super_resolution import LowResolution
from stepwell.models.denoiser import Condition

if TYPE_CHECKING:
    from stepwell.generate.diffusers_solvers import DiffusersSolver


def guided(
    denoiser: nn.Module,
    x: Tensor,
    time: PerExample,
    labels: PerExample | None,
    guidance: float,
    channels: Tensor | None = None,
) -> Tensor:
    """The network's output [B, C or 2 C, H, W] with classifier-free guidance (Ho and Salimans 2022).

    The outputs with and without a class are one call; a learned variance is not guided. eps, v and x0 are
    each linear in the others at a given x, so that guiding one guides all.
    """
    if guidance == 1 or labels is None:
        plain: Tensor = denoiser(x, time, Condition(labels, channels))
        return plain
    no_class = torch.full_like(labels, int(getattr(denoiser, "classes", 0)))
    doubled = None if channels is None else torch.cat([channels, channels])
    condition = Condition(torch.cat([labels, no_class]), doubled)
    with_class, without = denoiser(torch.cat([x, x]), torch.cat([time, time]), condition).chunk(2)
    width = x.shape[1]
    mean = torch.lerp(without[:, :width], with_class[:, :width], guidance)
    return torch.cat([mean, with_class[:, width:]], dim=1)


def check_classes(denoiser: nn.Module, labels: tuple[int, ...], guidance: float) -> None:
    """Refuse labels that the network does not have, and guidance that it was not trained for."""
    classes = int(getattr(denoiser, "classes", 0))
    wrong = [label for label in labels if not 0 <= label < max(classes, 1)]
    if labels and classes == 0:
        raise InvalidParameter("the network was trained without labels: leave labels out.")
    if wrong:
        raise InvalidParameter(f"labels run from 0 to {classes - 1}, not {wrong[0]}.")
    if guidance == 1:
        return
    if not labels:
        raise InvalidParameter(
            f"guidance={guidance:g} needs labels to guide to: "
            + ("name some." if classes else "the network was trained without labels, so leave guidance at 1.")
        )
    if getattr(denoiser, "label_dropout", 1.0) == 0:
        raise InvalidParameter(
            f"guidance={guidance:g} needs a network that was also trained without labels, and this one had "
            "label_dropout=0: leave guidance at 1, or train with label_dropout=0.1."
        )


@dataclass(frozen=True)
class Request:
    """The images to generate, and how."""

    count: int
    shape: tuple[int, int, int]
    """Channels, height, width."""
    solver: str = "ddim"
    steps: int = 50
    batch: int = 64
    seed: int = 0
    labels: tuple[int, ...] = ()
    """Classes to cycle through; empty for an unconditional network, or for no class."""
    guidance: float = 1.0
    """1: none; above it, classifier-free guidance (Ho and Salimans 2022)."""
    eta: float = 0.0
    """DDIM's noise; 1 is as noisy as DDPM."""
    clip: float | None = 1.0
    """The largest value of a predicted x0: images lie in [-1, 1]. None: no limit."""
    prompts: tuple[str, ...] = ()
    """The texts that labels stand for, if they are not those of the data."""
    low_resolution: LowResolution | None = None
    """Super-resolution: what is enlarged."""

    def __post_init__(self) -> None:
        require.one_of("solver", self.solver, tuple(SOLVERS))
        for name in ("count", "steps", "batch"):
            require.count(name, getattr(self, name))
        require.not_negative("guidance", self.guidance)
        require.between("eta", self.eta, 0, 1)
        if self.eta and self.solver != "ddim":
            raise InvalidParameter(f"eta is DDIM's noise, and {self.solver} has none: leave it at 0.")

    def batches(self) -> list[range]:
        """The indices of the images of each batch."""
        starts = range(0, self.count, self.batch)
        return [range(start, min(start + self.batch, self.count)) for start in starts]

    def labels_of(self, indices: Sequence[int]) -> list[int] | None:
        """The classes of some images."""
        return [self.labels[index % len(self.labels)] for index in indices] if self.labels else None


Decode = Callable[[Tensor], Tensor]
"""From a network's examples, float [B, c, h, w], to uint8 images [B, C, H, W]."""


@torch.no_grad()
def generate(
    denoiser: nn.Module,
    process: NoiseProcess,
    request: Request,
    decode: Decode = to_pixels,
    batches: Sequence[range] | None = None,
) -> Iterator[Tensor]:
    """Uint8 images [B, C, H, W] of all batches or of some; image i depends on the seed and i alone."""
    solver = make_solver(denoiser, process, request)
    like = next(denoiser.parameters())
    for indices in request.batches() if batches is None else batches:
        generators = [Generator().manual_seed(stream_key(request.seed, "image", index)) for index in indices]
        noise = torch.stack([torch.randn(request.shape, generator=g) for g in generators]).to(like)
        network = conditioned(denoiser, request, indices, like)
        yield decode(solver.solve(network, noise, generators))


def conditioned(denoiser: nn.Module, request: Request, indices: Sequence[int], like: Tensor) -> Network:
    """The network with the labels, guidance and extra input of some images, on a tensor's device."""
    classes, small = request.labels_of(indices), request.low_resolution
    labels = None if classes is None else torch.tensor(classes, device=like.device)
    channels = None if small is None else small.channels(indices).to(like)
    return partial(guided, denoiser, labels=labels, guidance=request.guidance, channels=channels)


def make_solver(denoiser: nn.Module, process: NoiseProcess, request: Request) -> DiffusersSolver | OwnSolver:
    """The solver of a request, or an error that says why the request cannot be met."""
    check_classes(denoiser, request.labels, request.guidance)
    if not process.is_ddpm:
        return OwnSolver(process, request.solver, request.steps, request.clip)
    # diffusers' schedulers import scipy, which a training step does not need.
    from stepwell.generate.diffusers_solvers import DiffusersSolver

    learned = bool(getattr(denoiser, "learned_variance", False))
    return DiffusersSolver(
        process, request.solver, request.steps, learned_variance=learned, clip=request.clip, eta=request.eta
    )
