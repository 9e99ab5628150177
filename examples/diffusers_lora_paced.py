"""A LoRA as diffusers' examples train it: peft's adapter on a frozen UNet that has seen other images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler
from diffusers_parts import held_out_loss, pretrained
from fashion import Outcome, TextEncoder, endless, images, labels, latents_of
from peft import LoraConfig
from torch.utils.data import DataLoader, TensorDataset

from stepwell import Pacer, loss_at


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

    held_out = latents_of(-images(128, held_out=True)), text_encoder(labels(128, held_out=True))
    before, losses = held_out_loss(unet, scheduler, *held_out), []
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
    return Outcome(before, held_out_loss(unet, scheduler, *held_out), losses)


if __name__ == "__main__":
    print(main())
