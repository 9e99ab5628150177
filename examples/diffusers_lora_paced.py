"""A LoRA as diffusers' examples train it: peft's adapter on a frozen UNet that has seen other images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers_text_to_image import tiny_unet
from fashion import Outcome, TextEncoder, endless, images, labels, latents_of
from peft import LoraConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepwell import Pacer, loss_at


def pretrained(text_encoder: nn.Module, scheduler: DDPMScheduler, steps: int = 32) -> UNet2DConditionModel:
    """The base: a UNet that was trained a little on the images as they are."""
    unet, latents, texts = tiny_unet(), latents_of(images()), text_encoder(labels())
    optimizer = torch.optim.AdamW(unet.parameters(), lr=3e-3)
    for step in range(steps):
        batch, timesteps = slice(16 * step, 16 * step + 16), torch.arange(16) * 1000 // 16 + step % 62
        noise = torch.randn_like(latents[batch])
        noisy_latents = scheduler.add_noise(latents[batch], noise, timesteps)
        F.mse_loss(unet(noisy_latents, timesteps, texts[batch]).sample, noise).backward()
        optimizer.step()
        optimizer.zero_grad()
    return unet


@torch.no_grad()
def held_out_loss(unet: nn.Module, text_encoder: nn.Module, scheduler: DDPMScheduler) -> float:
    """On negatives that were not trained on, at fixed timesteps with fixed noise."""
    latents, timesteps = latents_of(-images(128, held_out=True)), torch.arange(128) * 1000 // 128
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(0))
    noisy_latents, text = (
        scheduler.add_noise(latents, noise, timesteps),
        text_encoder(labels(128, held_out=True)),
    )
    return F.mse_loss(unet(noisy_latents, timesteps, text).sample, noise).item()


def main(steps: int = 200) -> Outcome:
    """Train an adapter on the negatives of the images that the base knows."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    text_encoder, scheduler = TextEncoder(), DDPMScheduler(beta_schedule="scaled_linear")
    unet = pretrained(text_encoder, scheduler)
    unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=8, lora_alpha=8, target_modules=["to_q", "to_k", "to_v", "conv1"]))
    trained = [parameter for parameter in unet.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    dataloader = DataLoader(TensorDataset(-images(), labels()), batch_size=8, shuffle=True, drop_last=True)
    unet, optimizer, dataloader = accelerator.prepare(unet, optimizer, dataloader)
    pacer = Pacer("neyman", scheduler, loss_at=loss_at.diffusers(unet, scheduler)).attach(optimizer)
    accelerator.register_for_checkpointing(pacer)

    before, losses = held_out_loss(unet, text_encoder, scheduler), []
    for pixel_values, input_ids in endless(dataloader, steps):
        latents = latents_of(pixel_values)
        encoder_hidden_states = text_encoder(input_ids)
        noise = torch.randn_like(latents)
        timesteps = (pace := pacer.draw(latents, condition=encoder_hidden_states)).timesteps
        noisy_latents = scheduler.add_noise(latents, noise, timesteps)
        model_pred = unet(noisy_latents, timesteps, encoder_hidden_states).sample
        loss = (F.mse_loss(model_pred, noise, reduction="none") * pace.weight.view(-1, 1, 1, 1)).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Outcome(before, held_out_loss(unet, text_encoder, scheduler), losses)


if __name__ == "__main__":
    print(main())
