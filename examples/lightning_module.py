"""A LightningModule as people write it for diffusion: `training_step` draws, the Trainer does the rest."""

from __future__ import annotations

import warnings

import lightning
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler
from fashion import Outcome, images
from small_network import SmallNetwork, held_out_loss
from torch import Tensor
from torch.utils.data import DataLoader


class Diffusion(lightning.LightningModule):
    """Noise prediction on DDPM's schedule."""

    def __init__(self, ddpm: DDPMScheduler) -> None:
        super().__init__()
        self.net = SmallNetwork(time_scale=1000)
        self.ddpm = ddpm
        self.kept: list[float] = []

    def training_step(self, x0: Tensor, batch_idx: int) -> Tensor:
        noise = torch.randn_like(x0)
        timesteps = torch.randint(0, 1000, (len(x0),))
        output = self.net(self.ddpm.add_noise(x0, noise, timesteps), timesteps)
        loss = F.mse_loss(output, noise)
        self.kept.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=2e-3)


def main(steps: int = 200) -> Outcome:
    """Train for some updates of two micro-batches each."""
    torch.manual_seed(0)
    diffusion = Diffusion(DDPMScheduler())
    before = held_out_loss(diffusion.net, diffusion.ddpm)
    callbacks: list[lightning.Callback] = []
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning has opinions about workers of small data.
        trainer = lightning.Trainer(
            max_steps=steps,
            accumulate_grad_batches=2,
            accelerator="cpu",
            enable_model_summary=False,
            callbacks=callbacks,
            **quiet,
        )
        trainer.fit(diffusion, DataLoader(images(), batch_size=16, shuffle=True, drop_last=True))
    return Outcome(before, held_out_loss(diffusion.net, diffusion.ddpm), diffusion.kept)


if __name__ == "__main__":
    print(main())
