"""One training step, top to bottom."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from stepwell.core.sampler import Metrics
from stepwell.core.tick import Tick
from stepwell.data.batches import Batch, Batches, Prefetched
from stepwell.models.denoiser import LABELS_ONLY, Condition, Conditioning
from stepwell.objective import Objective
from stepwell.pacer import Pacer
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import LearningRate


@dataclass
class Training:
    """Everything that a step needs."""

    accelerator: Accelerator
    denoiser: nn.Module
    objective: Objective
    pacer: Pacer
    batches: Batches | Prefetched
    optimizer: Any
    learning_rate: LearningRate
    ema: Ema
    seed: int
    accumulate: int = 1
    clip: float | None = 1.0
    channels_last: bool = False
    conditioning: Conditioning = LABELS_ONLY

    @property
    def network(self) -> nn.Module:
        """The bare network, without DDP's or the compiler's wrapping."""
        bare: nn.Module = self.accelerator.unwrap_model(self.denoiser, keep_torch_compile=False)
        return bare

    def encode(self, batch: Batch) -> tuple[Tensor, Condition]:
        """Examples and conditions on the device."""
        device = self.accelerator.device
        x0 = batch.x0.to(device, non_blocking=True)
        if self.channels_last:
            x0 = x0.contiguous(memory_format=torch.channels_last)
        labels = None if batch.labels is None else batch.labels.to(device, non_blocking=True)
        return x0, self.conditioning.of(x0, labels)

    def synchronised(self, last: bool) -> Any:
        """Gradients are synchronised over ranks in the last micro-batch only."""
        return nullcontext() if last else self.accelerator.no_sync(self.denoiser)


@dataclass(frozen=True)
class StepReport:
    """What one step did; tensors stay on the device until they are read."""

    loss: Tensor
    plain: Tensor
    gradient_norm: Tensor
    u: Tensor
    """[accumulate * B]: unit times of this rank."""
    losses: Tensor
    """[accumulate * B]: plain losses."""
    sampler: Metrics

    def progress(self) -> dict[str, float]:
        """What a progress line shows."""
        return {"loss": float(self.plain), "median u": float(self.u.median())}


def seed_dropout(tick: Tick, device: torch.device) -> None:
    """Dropout draws from torch's own generators: seeded by the step, it resumes exactly too."""
    # torch.manual_seed visits every kind of device there is, which takes longer than a draw.
    torch.default_generator.manual_seed(tick.key("dropout"))
    if device.type != "cpu":
        torch.manual_seed(tick.key("dropout"))


def optimizer_step(t: Training) -> bool:
    """Step, and return whether fp16's gradient scaler skipped it, which lowers its scale.

    accelerate's `step_was_skipped` is False for fused optimizers: a scaler calls them in any case.
    """
    scaler = t.accelerator.scaler
    if scaler is None:
        t.optimizer.step()
        return False
    before = scaler.get_scale()
    t.optimizer.step()
    return bool(scaler.get_scale() < before)


def train_step(t: Training, step: int) -> StepReport:
    """Draw timesteps, denoise, update, learn."""
    rank, world = t.accelerator.process_index, t.accelerator.num_processes
    seed_dropout(Tick(t.seed, step, 0, rank, world), t.accelerator.device)
    total = torch.zeros((), device=t.accelerator.device)
    times: list[Tensor] = []
    plains: list[Tensor] = []
    for micro in range(t.accumulate):
        tick = Tick(t.seed, step, micro, rank, world)
        x0, condition = t.encode(t.batches.at(tick, t.accumulate))
        pace = t.pacer.draw(x0, tick, condition)
        with t.synchronised(last=micro == t.accumulate - 1):
            losses = t.objective(t.denoiser, x0, pace.noise_like(x0), pace.u, condition)
            loss = (losses.total * pace.correction).mean() / t.accumulate
            t.accelerator.backward(loss)
        t.pacer.observe(losses.plain)
        total = total + loss.detach()
        times.append(pace.u)
        plains.append(losses.plain.detach())
    norm = t.accelerator.clip_grad_norm_(t.denoiser.parameters(), t.clip or torch.inf)
    t.pacer.before_update()
    t.learning_rate.apply(t.optimizer, step)
    skipped = optimizer_step(t)
    t.optimizer.zero_grad()
    t.ema.step(step)
    metrics = t.pacer.after_update(skipped)
    u, plain = torch.cat(times), torch.cat(plains)
    return StepReport(total, plain.mean(), norm, u, plain, metrics)
