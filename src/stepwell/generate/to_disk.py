"""Any number of images to disk: shared by processes, resumed where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import WorkerGroup, meet, share
from stepwell.data.source import to_pixels
from stepwell.generate.images import Decode, Request, checked_route, generate, guided
from stepwell.generate.solvers import CATALOGUE
from stepwell.generate.write import FolderWriter, NpzWriter, SheetWriter, Writer, identity_of


@dataclass(frozen=True)
class ImageJob:
    """A network and what it shall make."""

    denoiser: nn.Module
    process: NoiseProcess
    request: Request
    decode: Decode = to_pixels

    @torch.no_grad()
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of the finished images, which a decoder may enlarge."""
        like = next(self.denoiser.parameters())
        channels, height, width = self.decode(like.new_zeros((1, *self.request.shape))).shape[1:]
        return channels, height, width


def write_images(
    job: ImageJob,
    out: Path,
    group: WorkerGroup,
    progress: Callable[[int, bool], None] = lambda count, made: None,
) -> int:
    """How many images this process made; `progress` hears of each batch, and whether it was made just now.

    Processes share whole batches, since a network rounds differently in another batch: so the files are
    the same bytes for any number of processes.
    """
    writer = writer_of(job, out, group)
    if group.rank == 0:
        identity = identity_of(job.denoiser, job.process, job.request, count=writer.holds_a_fixed_count)
        writer.prepare(identity)
    meet(group)
    todo = []
    for batch in share(job.request.batches(), group):
        if writer.has(batch):
            progress(len(batch), False)
        else:
            todo.append(batch)
    batches = generate(job.denoiser, job.process, job.request, job.decode, todo)
    for indices, images in zip(todo, batches, strict=True):
        writer.write(indices, images)
        progress(len(indices), True)
    meet(group)
    if group.rank == 0:
        writer.finish()
    return sum(map(len, todo))


def writer_of(job: ImageJob, out: Path, group: WorkerGroup) -> Writer:
    """The writer of an .npz, a .png or else a folder, of a request that can be met."""
    checked_route(job.denoiser, job.process, job.request)
    count = job.request.count
    if out.suffix == ".npz":
        return NpzWriter(out, count, job.image_shape(), job.request.labels_of(range(count)))
    if out.suffix == ".png":
        if group.world > 1:
            raise InvalidParameter(
                "a sheet is made by one process: start it without torchrun, or write a folder."
            )
        return SheetWriter(out, count, job.request.ground_truth)
    if out.suffix.lower() in (".jpg", ".jpeg", ".npy", ".zip", ".webp", ".gif"):
        raise InvalidParameter(
            f"{out.name}: images are written as a folder of PNGs, an .npz or a .png sheet."
        )
    return FolderWriter(out)


@dataclass(frozen=True)
class Cost:
    """Of a whole job."""

    evaluations: int
    """Of the network, for each image."""
    batch_seconds: float
    """Of one evaluation of one batch, with both halves of guidance."""
    seconds: float
    """In all, decoding included, writing not."""


@torch.no_grad()
def cost_of(job: ImageJob, processes: int) -> Cost:
    """Measured on one evaluation and one decoding of one batch."""
    request, solver = job.request, CATALOGUE[job.request.solver]
    like = next(job.denoiser.parameters())
    batch = request.batches()[0]
    x, time_told = like.new_zeros((len(batch), *request.shape)), like.new_zeros(len(batch))
    found = request.labels_of(batch)
    labels = None if found is None else torch.tensor(found, device=like.device)
    shown = request.channels_of(batch, like)
    network = _seconds(lambda: guided(job.denoiser, x, time_told, labels, request.guidance, shown))
    decoding = _seconds(lambda: job.decode(x))
    rounds = -(-len(request.batches()) // processes)
    return Cost(
        solver.evaluations(request.steps, guided=request.guidance != 1),
        network,
        rounds * (solver.evaluations(request.steps) * network + decoding),
    )


def _seconds(call: Callable[[], Tensor]) -> float:
    """Of the second call, up to a result on the host: the first one warms up."""
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        call().cpu()
        seconds = time.perf_counter() - begun
    return seconds
