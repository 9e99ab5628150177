"""An example image on its way to noise, and the log-SNR there: the axis of pictures over unit time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepwell.core.density import centres
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import per_example

EXAMPLE = 2
"""A held-out image of fashion16."""


@dataclass(frozen=True)
class NoisedExample:
    """One image of fashion16 in the middles of equal bins of unit time, always with the same noise."""

    log_snr: tuple[float, ...]
    """[K]"""
    pixels: tuple[tuple[int, ...], ...]
    """[H][K W]: the images side by side, grey from 0 to 255."""


def noised_example(process: NoiseProcess, count: int) -> NoisedExample:
    """The example at `count` times, at equal brightness whatever the process adds."""
    # Only pictures need data, and with them numpy and PIL.
    from stepwell.data.load import load

    u = centres(count).float()
    x0 = load("fashion16").held_out.examples(torch.tensor([EXAMPLE]))[:, 0].expand(count, -1, -1)
    noise = torch.randn(x0.shape[1:], generator=torch.Generator().manual_seed(0))
    signal, level = (per_example(scale, x0) for scale in process.scales(u))
    noisy = (signal * x0 + level * noise) / (signal**2 + level**2).sqrt()
    grey = ((noisy / 3 + 0.5).clamp(0, 1) * 255).round().int()
    rows = torch.cat(list(grey), dim=1).tolist()
    return NoisedExample(tuple(process.log_snr(u).tolist()), tuple(map(tuple, rows)))
