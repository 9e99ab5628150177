"""The planted problem: ten bands of time with a linear denoiser each; two have something left to learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import stepwell
from stepwell.core.density import centres
from stepwell.core.tick import Tick
from stepwell.objective import Objective
from stepwell.pacer import Pacer

BANDS, SIZE, BATCH, LEARNING_RATE = 10, 16, 64, 2e-4


class BandDenoiser(nn.Module):
    """eps = W_band x_t: nothing is shared between bands."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, input: Tensor, time: Tensor, condition: None = None) -> Tensor:
        """[B, SIZE] at timesteps [B] of 1000."""
        band = (time.long() * BANDS) // 1000
        return torch.einsum("bij,bj->bi", self.weights[band], input)


@dataclass
class Planted:
    """Gaussian data of decaying variances, and denoisers that are optimal in all bands but some."""

    bands: Sequence[int]
    seed: int = 0

    def __post_init__(self) -> None:
        self.process = stepwell.process("linear")
        self.scales = torch.logspace(0, -1.5, SIZE)
        self.model = BandDenoiser(torch.stack([self._start(band) for band in range(BANDS)]))

    def _start(self, band: int) -> Tensor:
        if band in self.bands:
            return torch.zeros(SIZE, SIZE)
        u = centres(1000).view(BANDS, -1)[band]
        log_snr = self.process.log_snr(u)
        kept, noise = torch.sigmoid(log_snr), torch.sigmoid(-log_snr)
        # E[eps x_t] / E[x_t^2] for every coordinate: the least-squares denoiser of the whole band.
        second = kept[:, None] * self.scales.double().square() + noise[:, None]
        return torch.diag((noise.sqrt().mean() / second.mean(0)).float())

    def batch(self, step: int) -> Tensor:
        """[BATCH, SIZE] examples."""
        generator = Tick(self.seed, step).generator("data")
        return torch.randn(BATCH, SIZE, generator=generator) * self.scales


def share_of_draws(
    planted: Planted,
    sampler: str,
    steps: int = 2000,
    watch: Callable[[int, Pacer], None] = lambda step, pacer: None,
    **parameters: object,
) -> float:
    """Train with a sampler; the share of all its draws that fell into the planted bands."""
    objective = Objective(planted.process)
    optimizer = torch.optim.Adam(planted.model.parameters(), lr=LEARNING_RATE)

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: None) -> Tensor:
        return objective(planted.model, x0, noise, u, condition).plain

    built = stepwell.sampler(sampler, planted.process, **parameters)
    pacer = Pacer(built, planted.process, loss_at=loss_at, optimizer=optimizer, network=planted.model)
    inside = 0
    for step in range(steps):
        tick = Tick(planted.seed, step)
        x0 = planted.batch(step)
        pace = pacer.draw(x0, tick)
        noise = torch.randn(x0.shape, generator=tick.generator("noise"))
        losses = loss_at(x0, noise, pace.u, None)
        optimizer.zero_grad()
        (losses * pace.correction).mean().backward()
        pacer.observe(losses)
        pacer.before_update()
        optimizer.step()
        pacer.after_update()
        band = (pace.u * BANDS).long()
        inside += int(torch.isin(band, torch.tensor(planted.bands)).sum())
        watch(step, pacer)
    return inside / (steps * BATCH)
