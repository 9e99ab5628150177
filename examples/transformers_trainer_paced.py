"""A diffusion model in Hugging Face's Trainer: the loss is what `forward` returns."""

from __future__ import annotations

import tempfile

import torch
import torch.nn.functional as F
import transformers
from diffusers import DDPMScheduler
from fashion import Outcome, images
from small_network import SmallNetwork, held_out_loss
from torch import Tensor, nn

import stepwell.integrations.transformers


class Diffusion(nn.Module):
    """Noise prediction on DDPM's schedule."""

    def __init__(self, ddpm: DDPMScheduler) -> None:
        super().__init__()
        self.net = SmallNetwork(time_scale=1000)
        self.ddpm = ddpm
        self.pacer = stepwell.Pacer("neyman", ddpm, loss_at=stepwell.loss_at.diffusers(self.net, ddpm))
        self.kept: list[float] = []

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        noise = torch.randn_like(pixel_values)
        timesteps = (pace := self.pacer.draw(pixel_values)).timesteps
        output = self.net(self.ddpm.add_noise(pixel_values, noise, timesteps), timesteps)
        loss = (F.mse_loss(output, noise, reduction="none") * pace.weight.view(-1, 1, 1, 1)).mean()
        self.kept.append(loss.item())
        return {"loss": loss}


def main(steps: int = 200) -> Outcome:
    """Train for some updates of two micro-batches each."""
    torch.manual_seed(0)
    diffusion = Diffusion(DDPMScheduler())
    before = held_out_loss(diffusion.net, diffusion.ddpm)
    callbacks = [stepwell.integrations.transformers.PacerCallback(diffusion.pacer)]
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_pin_memory=False,
        )
        data = [{"pixel_values": image} for image in images()]
        transformers.Trainer(diffusion, args, train_dataset=data, callbacks=callbacks).train()
    return Outcome(before, held_out_loss(diffusion.net, diffusion.ddpm), diffusion.kept)


if __name__ == "__main__":
    print(main())
