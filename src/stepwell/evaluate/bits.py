"""Bits per dimension of 8-bit images: the variational bound of a discrete process, all terms of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepwell.bound import VARIANCES, decoder_nll, prior_kl, step_kl
from stepwell.core import require
from stepwell.core.condition import select
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess, Problem
from stepwell.core.tensors import PerExample
from stepwell.core.tick import stream_key, uniforms
from stepwell.evaluate.bands import batches, fixed_generator, fixed_noise, float_images, on_target
from stepwell.objective import DenoiserFn

Term = Callable[[Tensor, Problem, Tensor, PerExample], PerExample]
"""(x0, problem, output, u) -> nats per example."""


class Bits(NamedTuple):
    """An upper bound on the negative log-likelihood, in bits per dimension, averaged over images."""

    decoder: float
    diffusion: float
    prior: float
    total: float


def bits_per_dimension(
    denoiser: DenoiserFn,
    process: NoiseProcess,
    x0: Tensor,
    condition: Any = None,
    *,
    variance: str = "fixed-large",
    timesteps: int | None = None,
    seed: int = 0,
    batch: int = 256,
    clip: bool = True,
) -> Bits:
    """The bound (Ho et al. 2020, Eq. 5) on 8-bit images x0 [N, ...] in [-1, 1], on fixed noise.

    `timesteps=None` evaluates every timestep of every image; n evaluates n of them, stratified over time and
    over images: unbiased, and as good as exact where there are many images. `clip` keeps the predicted x0 in
    [-1, 1], as published numbers do: without it cosine's last step alone costs c_999 = 499.5 per eps loss.
    """
    _require_bits(process)
    require.one_of("variance", variance, VARIANCES)
    batch = require.count("batch", batch)
    images = _Images(on_target(denoiser), process, _levels(x0), condition, seed, batch)

    def decode(x0: Tensor, problem: Problem, output: Tensor, _: PerExample) -> PerExample:
        return decoder_nll(process, x0, problem.xt, output, clip=clip)

    def step(x0: Tensor, problem: Problem, output: Tensor, u: PerExample) -> PerExample:
        return step_kl(process, x0, problem.xt, output, u, variance, clip=clip)

    steps = len(process.grid()) - 1
    rounds = list(_rounds(len(x0), steps, timesteps, seed))
    share = steps / max(len(rounds), 1)
    unit = 1 / (math.log(2) * x0[0].numel())
    decoder = unit * images.mean(decode, torch.zeros(len(x0), dtype=torch.int64), "decoder")
    diffusion = unit * share * sum(images.mean(step, index, key) for key, index in enumerate(rounds))
    prior = unit * float(prior_kl(process, images.x0).mean())
    return Bits(decoder, diffusion, prior, decoder + diffusion + prior)


@dataclass(frozen=True)
class _Images:
    """Images, and the network that is asked about them."""

    denoiser: DenoiserFn
    process: NoiseProcess
    x0: Tensor
    condition: Any
    seed: int
    batch: int

    def mean(self, term: Term, index: Tensor, key: int | str) -> float:
        """The mean over images of a term, each at its own timestep index [N]."""
        noise, total = fixed_noise(self.x0, self.seed, "bits", key), 0.0
        with torch.no_grad():
            for rows in batches(len(index), self.batch):
                x0, u = self.x0[rows], self.process.unit_time(index[rows]).to(self.x0.device)
                problem = self.process.corrupt(x0, noise[rows].to(x0), u)
                output = self.denoiser(problem.input, problem.time, select(self.condition, rows))
                total += float(term(x0, problem, output, u).sum())
        return total / len(index)


def _rounds(images: int, steps: int, wanted: int | None, seed: int) -> Iterator[Tensor]:
    """Timestep indices [images] from 1 to steps: all of them in turn, or one per stratum.

    Within a stratum each image is in a slot of its own, at a uniform place: any one image's index is uniform
    over the stratum, and all images together cover it evenly.
    """
    if wanted is None or require.count("timesteps", wanted) >= steps:
        yield from (torch.full((images,), index) for index in range(1, steps + 1))
        return
    for stratum in range(wanted):
        order = torch.randperm(images, generator=fixed_generator(seed, "bits", "order", stratum))
        within = uniforms(stream_key(seed, "bits", "within", stratum), images).double()
        place = (stratum + (order + within) / images) / wanted
        yield 1 + (place * steps).long().clamp_(max=steps - 1)


def _levels(x0: Tensor) -> Tensor:
    values = float_images(x0)
    largest = float(values.abs().max())
    if not largest <= 1 + 1e-6:
        raise InvalidParameter(
            f"bits per dimension are of 8-bit data in [-1, 1]: this x0 reaches {largest:.3g}."
        )
    return values


def _require_bits(process: NoiseProcess) -> None:
    if not process.is_ddpm:
        raise Unsupported(
            f"bits per dimension are the bound of DDPM's discrete chain, which {process} does not have: "
            "use a discrete process (linear, cosine, ...), or compare by held-out loss per band."
        )
    if process.prediction == "eps" and float(process.scales(process.grid()[-1:])[0]) == 0:
        raise Unsupported(
            "at zero terminal SNR an eps prediction says nothing about x0, so its bound is infinite: "
            "predict v or x0."
        )
