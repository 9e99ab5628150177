"""One training step, top to bottom."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from stepwell.core.errors import StepwellError
from stepwell.core.sampler import Metrics
from stepwell.core.tick import Tick
from stepwell.data.batches import Batch, Batches, Prefetched
from stepwell.models.denoiser import LABELS_ONLY, Condition, Conditioning
from stepwell.objective import Objective
from stepwell.pacer import Pacer
from stepwell.probes.gradients import is_sharded
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import LearningRate


class TrainingStopped(StepwellError):
    """Training cannot go on; what was saved is still good."""


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
    sharded: bool = False
    """Whether each rank holds a part of every tensor (FSDP): then all take part in each forward pass."""

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
        """Gradients are synchronised over ranks in the last micro-batch only; parts of them in each."""
        # Until they are synchronised, FSDP would hold whole gradients, which is what sharding avoids.
        return nullcontext() if last or self.sharded else self.accelerator.no_sync(self.denoiser)


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


def require_finite(t: Training, step: int, finite: Tensor, u: Tensor, losses: Tensor) -> None:
    """Stop at a loss or gradient of this rank that is not `finite`, naming the timesteps of its losses."""
    if bool(finite):
        return
    bad = ~torch.isfinite(losses)
    u = u[bad] if bool(bad.any()) else u
    times = [f"{time:g}" for time in t.objective.process.time(u[:8]).tolist()]
    shown = ", ".join(times + ["..."] * (len(u) > 8))
    raise TrainingStopped(
        f"the loss or its gradient is not finite at step {step} (timesteps {shown}). Checkpoints before it "
        "are good: go on from there with a lower lr=, more warm_up_steps= or clip=."
    )


def clipped_norm(t: Training) -> Tensor:
    """The gradient's norm over all parameters, which is clipped to `clip`."""
    norm: Tensor = t.accelerator.clip_grad_norm_(t.denoiser.parameters(), t.clip or torch.inf)
    return norm.full_tensor() if is_sharded(norm) else norm


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
    u, plain = torch.cat(times), torch.cat(plains)
    # Before anything is learned from all ranks' losses, so that the rank whose loss it is speaks. On a GPU
    # reading it would wait for the device in every step: the loop does it where it records.
    if total.device.type == "cpu":
        require_finite(t, step + 1, total.isfinite(), u, plain)
    norm = clipped_norm(t)
    t.pacer.before_update()
    t.learning_rate.apply(t.optimizer, step)
    skipped = optimizer_step(t)
    t.optimizer.zero_grad()
    t.ema.step(step)
    metrics = t.pacer.after_update(skipped)
    return StepReport(total, plain.mean(), norm, u, plain, metrics)
