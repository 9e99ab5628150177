"""A TrainLoop as guided-diffusion has it: micro-batches, a schedule sampler, `mp_trainer.optimize`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import guided_protocol as guided
import torch
from fashion import Outcome, images, labels
from small_network import SmallNetwork
from torch import Tensor

import stepwell.integrations.schedule_sampler


class TrainLoop:
    """One update from micro-batches of 16."""

    def __init__(
        self, model: SmallNetwork, diffusion: guided.GaussianDiffusion, schedule_sampler: Any
    ) -> None:
        self.model, self.diffusion = model, diffusion
        self.schedule_sampler = schedule_sampler
        self.mp_trainer = guided.MixedPrecisionTrainer(model)
        self.opt = torch.optim.AdamW(self.mp_trainer.master_params, lr=2e-3)
        schedule_sampler.pacer.attach(self.opt)
        self.losses: list[float] = []

    def run_loop(self, data: Iterator[tuple[Tensor, dict[str, Tensor]]]) -> None:
        for batch, cond in data:
            self.forward_backward(batch, cond)
            self.mp_trainer.optimize(self.opt)

    def forward_backward(self, batch: Tensor, cond: dict[str, Tensor]) -> None:
        self.mp_trainer.zero_grad()
        for i in range(0, len(batch), 16):
            micro = batch[i : i + 16]
            micro_cond = {name: value[i : i + 16] for name, value in cond.items()}
            t, weights = self.schedule_sampler.sample(micro, micro.device, micro_cond)
            losses = self.diffusion.training_losses(self.model, micro, t, model_kwargs=micro_cond)
            if isinstance(self.schedule_sampler, guided.LossAwareSampler):
                self.schedule_sampler.update_with_local_losses(t, losses["loss"].detach())
            loss = (losses["loss"] * weights).mean()
            self.mp_trainer.backward(loss)
            self.losses.append(loss.item())


def batches(steps: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """32 images and their labels, some times over."""
    x, y = images(), labels()
    for step in range(steps):
        rows = torch.arange(32 * step, 32 * step + 32) % len(x)
        yield x[rows], {"y": y[rows]}


def main(steps: int = 200) -> Outcome:
    """Train for some updates of two micro-batches each."""
    torch.manual_seed(0)
    model, diffusion = SmallNetwork(time_scale=1000, classes=10), guided.GaussianDiffusion()
    before = guided.held_out_loss(model, diffusion)
    pacer = stepwell.Pacer("neyman", diffusion, loss_at=stepwell.loss_at.guided_diffusion(diffusion, model))
    schedule_sampler = stepwell.integrations.schedule_sampler.PacedScheduleSampler(pacer)
    loop = TrainLoop(model, diffusion, schedule_sampler)
    loop.run_loop(batches(steps))
    return Outcome(before, guided.held_out_loss(model, diffusion), loop.losses)


if __name__ == "__main__":
    print(main())
