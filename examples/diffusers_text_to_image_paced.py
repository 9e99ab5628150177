"""A loop as diffusers' text-to-image examples have it: latents, texts, v-prediction, Min-SNR, an EMA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler
from diffusers.training_utils import EMAModel, compute_snr
from diffusers_parts import held_out_loss, tiny_unet
from fashion import Outcome, TextEncoder, endless, images, labels, latents_of
from torch.utils.data import DataLoader, TensorDataset

from stepwell import Pacer, loss_at


def main(steps: int = 200, snr_gamma: float = 5.0) -> Outcome:
    """Train for some updates of two micro-batches each."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    unet, text_encoder = tiny_unet(), TextEncoder()
    scheduler = DDPMScheduler(beta_schedule="scaled_linear", prediction_type="v_prediction")
    optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-3)
    dataloader = DataLoader(TensorDataset(images(), labels()), batch_size=8, shuffle=True, drop_last=True)
    unet, optimizer, dataloader = accelerator.prepare(unet, optimizer, dataloader)
    pacer = Pacer("neyman", scheduler, host_weighting="min-snr", loss_at=loss_at.diffusers(unet, scheduler))
    accelerator.register_for_checkpointing(pacer.attach(optimizer))
    ema = EMAModel(unet.parameters(), decay=0.99)

    held_out = latents_of(images(128, held_out=True)), text_encoder(labels(128, held_out=True))
    before, losses = held_out_loss(unet, scheduler, *held_out), []
    for pixel_values, input_ids in endless(dataloader, 2 * steps):
        with accelerator.accumulate(unet):
            latents = latents_of(pixel_values)
            encoder_hidden_states = text_encoder(input_ids)
            noise = torch.randn_like(latents)
            timesteps = (pace := pacer.draw(latents, condition=encoder_hidden_states)).timesteps
            noisy_latents = scheduler.add_noise(latents, noise, timesteps)
            target = scheduler.get_velocity(latents, noise, timesteps)
            model_pred = unet(noisy_latents, timesteps, encoder_hidden_states).sample
            # Min-SNR on v, as these scripts have it.
            snr = compute_snr(scheduler, timesteps)
            weights = snr.clamp(max=snr_gamma) / (snr + 1)
            loss = F.mse_loss(model_pred, target, reduction="none").mean((1, 2, 3))
            loss = (loss * weights * pace.weight).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.step(unet.parameters())
        losses.append(loss.item())
    return Outcome(before, held_out_loss(unet, scheduler, *held_out), losses)


if __name__ == "__main__":
    print(main())
