"""Bits per dimension of 8-bit images: all terms of the variational bound of DDPM's chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepwell.bound import VARIANCES, decoder_nll, learned_variance_bound, prior_kl, step_kl
from stepwell.core import require
from stepwell.core.condition import select
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample
from stepwell.core.tick import stream_key, uniforms
from stepwell.evaluate.bands import batches, fixed_generator, fixed_noise, float_images
from stepwell.objective import DenoiserFn, split_output

Term = Callable[[Tensor, Tensor, Tensor, PerExample], PerExample]
"""(x0, xt, prediction, u) -> nats per example, with a fixed variance."""


LEARNED = "learned"
"""The reverse variance that the network predicts beside the mean."""


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
    variance: str | None = None,
    timesteps: int | None = None,
    seed: int = 0,
    batch: int = 256,
    clip: bool = True,
) -> Bits:
    """The bound (Ho et al. 2020, Eq. 5) on 8-bit images x0 [N, ...] in [-1, 1], on fixed noise.

    `variance` of the reverse step: learned, fixed-large or fixed-small; None is the learned one if the
    network has one (twice the channels), else fixed-large. A learned one is the decoder's too, as Nichol and
    Dhariwal evaluate; with a fixed one the decoder has the posterior's of t = 1.

    `timesteps=None` evaluates every timestep of every image; n evaluates n of them, stratified over time and
    over images: unbiased, and as good as exact where there are many images. `clip` keeps the predicted x0 in
    [-1, 1], as published numbers do: without it cosine's last step alone costs c_999 = 499.5 per eps loss.
    """
    _require_bits(process)
    if variance is not None:
        require.one_of("variance", variance, (*VARIANCES, LEARNED))
    size, images = require.count("batch", batch), _checked(x0)

    def decode(x0: Tensor, xt: Tensor, prediction: Tensor, _: PerExample) -> PerExample:
        return decoder_nll(process, x0, xt, prediction, clip=clip)

    def step(x0: Tensor, xt: Tensor, prediction: Tensor, u: PerExample) -> PerExample:
        return step_kl(process, x0, xt, prediction, u, variance or VARIANCES[0], clip=clip)

    def mean(fixed: Term, index: Tensor, key: int | str) -> float:
        """The mean over images of a term in nats, each image at its own timestep index [N]."""
        noise, nats = fixed_noise(images, seed, "bits", key), 0.0
        for rows in batches(len(index), size):
            x0, u = images[rows], process.unit_time(index[rows]).to(images.device)
            problem = process.corrupt(x0, noise[rows].to(x0), u)
            output = denoiser(problem.input, problem.time, select(condition, rows))
            prediction, fraction = _reverse_step(output, x0, variance)
            if fraction is None:
                nats += float(fixed(x0, problem.xt, prediction, u).sum())
            else:
                terms = learned_variance_bound(process, x0, problem.xt, prediction, fraction, u, clip=clip)
                nats += float(terms.sum())
        return nats / len(index)

    steps = len(process.grid()) - 1
    rounds = list(_rounds(len(x0), steps, timesteps, seed))
    share = steps / max(len(rounds), 1)
    unit = 1 / (math.log(2) * x0[0].numel())
    with torch.no_grad():
        decoder = unit * mean(decode, torch.zeros(len(x0), dtype=torch.int64), "decoder")
        diffusion = unit * share * sum(mean(step, index, key) for key, index in enumerate(rounds))
        prior = unit * float(prior_kl(process, images).mean())
    return Bits(decoder, diffusion, prior, decoder + diffusion + prior)


def _reverse_step(output: Tensor, x0: Tensor, variance: str | None) -> tuple[Tensor, Tensor | None]:
    """The prediction, and the fraction of the learned variance unless the variance is a fixed one."""
    prediction, fraction = split_output(output, x0)
    if variance in VARIANCES:
        return prediction, None
    if variance == LEARNED and fraction is None:
        raise InvalidParameter(
            "variance=learned needs a network that predicts one, with twice the channels in its output: use "
            f"{' or '.join(VARIANCES)}."
        )
    return prediction, fraction


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


def _checked(x0: Tensor) -> Tensor:
    """Images as floats in [-1, 1]."""
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
