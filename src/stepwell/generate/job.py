"""Any number of images to disk: shared among ranks, resumed where it stopped; and what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.core.digest import weights_digest
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import WorkerGroup, meet, share
from stepwell.data.source import to_pixels
from stepwell.generate.images import Decode, Request, conditioned, generate, make_solver
from stepwell.generate.solvers import SOLVERS
from stepwell.generate.writers import FolderWriter, NpzWriter, SheetWriter, Writer


@dataclass(frozen=True)
class ImageJob:
    """A network, its process and the images it is to make."""

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

    def record(self, count: bool) -> dict[str, Any]:
        """All that a pixel depends on, so not the batch size; with the `count` of images if asked for."""
        request = self.request
        names = ["shape", "solver", "steps", "seed", "labels", "guidance", "eta", "clip"] + ["count"] * count
        values = {name: getattr(request, name) for name in names}
        values |= {"process": repr(self.process), "weights": weights_digest(self.denoiser.state_dict())}
        if request.prompts:
            values["prompts"] = request.prompts
        if request.low_resolution is not None:
            values["originals"] = str(request.low_resolution)
        return values


def write_images(
    job: ImageJob,
    out: Path,
    group: WorkerGroup,
    progress: Callable[[int, bool], None] = lambda count, new: None,
) -> int:
    """Write the images and return how many this rank made; `progress(count, new)` follows every batch.

    Ranks share whole batches, since a network rounds differently in another batch: so the files are the same
    bytes for any number of ranks.
    """
    writer = make_writer(job, out, group)
    if group.rank == 0:
        writer.prepare(job.record(count=writer.fixed_count))
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


def make_writer(job: ImageJob, out: Path, group: WorkerGroup) -> Writer:
    """The writer of an .npz, a .png or else a folder, if the request can be met."""
    make_solver(job.denoiser, job.process, job.request)
    count = job.request.count
    if out.suffix == ".npz":
        return NpzWriter(out, count, job.image_shape(), job.request.labels_of(range(count)))
    if out.suffix == ".png":
        if group.world > 1:
            raise InvalidParameter(
                "a sheet is made by one process: start it without torchrun, or write a folder."
            )
        return SheetWriter(out, count, job.request.low_resolution)
    if out.suffix.lower() in (".jpg", ".jpeg", ".npy", ".zip", ".webp", ".gif"):
        raise InvalidParameter(
            f"{out.name}: images are written as a folder of PNGs, an .npz or a .png sheet."
        )
    return FolderWriter(out)


@dataclass(frozen=True)
class GenerationCost:
    """The network evaluations and the time of a whole job."""

    evaluations: int
    """Per image."""
    batch_seconds: float
    """Seconds of one evaluation of one batch, guidance included."""
    seconds: float
    """Seconds of all images, decoding included, writing not."""


@torch.no_grad()
def cost_of(job: ImageJob, processes: int) -> GenerationCost:
    """The cost with so many ranks, measured on one evaluation and one decoding of one batch."""
    request, solver = job.request, SOLVERS[job.request.solver]
    like = next(job.denoiser.parameters())
    batch = request.batches()[0]
    x, times = like.new_zeros((len(batch), *request.shape)), like.new_zeros(len(batch))
    network = conditioned(job.denoiser, request, batch, like)
    evaluation = _seconds(lambda: network(x, times))
    decoding = _seconds(lambda: job.decode(x))
    rounds = -(-len(request.batches()) // processes)
    return GenerationCost(
        solver.evaluations(request.steps, guided=request.guidance != 1),
        evaluation,
        rounds * (solver.evaluations(request.steps) * evaluation + decoding),
    )


def _seconds(call: Callable[[], Tensor]) -> float:
    """How long a call takes, up to its result on the host; the first of two warms up."""
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        call().cpu()
        seconds = time.perf_counter() - begun
    return seconds
