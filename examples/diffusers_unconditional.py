"""A loop as diffusers' unconditional example has it: accelerate, a UNet2DModel, a DDPMScheduler, an EMA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler
from diffusers.training_utils import EMAModel
from diffusers_parts import held_out_loss, tiny_unconditional_unet
from fashion import Outcome, endless, images
from torch.utils.data import DataLoader


def main(steps: int = 200, save_to: str | None = None) -> Outcome:
    """Train for some updates of two micro-batches each."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = tiny_unconditional_unet()
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    dataloader = DataLoader(images(), batch_size=8, shuffle=True, drop_last=True)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    ema = EMAModel(model.parameters(), decay=0.99)

    held_out = images(128, held_out=True)
    before, losses = held_out_loss(model, scheduler, held_out), []
    for clean_images in endless(dataloader, 2 * steps):
        noise = torch.randn_like(clean_images)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (len(clean_images),))
        noisy_images = scheduler.add_noise(clean_images, noise, timesteps)
        with accelerator.accumulate(model):
            model_output = model(noisy_images, timesteps).sample
            loss = F.mse_loss(model_output, noise)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.step(model.parameters())
        losses.append(loss.item())
    if save_to is not None:
        accelerator.save_state(save_to)
    return Outcome(before, held_out_loss(model, scheduler, held_out), losses)


if __name__ == "__main__":
    print(main())
