"""A loop as diffusers' SD3 and Flux examples have it: flow matching, timesteps in a falling list."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from diffusers import FlowMatchEulerDiscreteScheduler, training_utils
from diffusers_parts import encode_prompt, held_out_flow_loss, tiny_transformer
from fashion import Outcome, TextEncoder, endless, images, labels, latents_of
from torch.utils.data import DataLoader, TensorDataset

from stepwell import Pacer, loss_at


def main(steps: int = 300, weighting_scheme: str = "none") -> Outcome:
    """Train for some updates."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    transformer, text_encoder = tiny_transformer(), TextEncoder()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=3e-3)
    dataloader = DataLoader(TensorDataset(images(), labels()), batch_size=16, shuffle=True, drop_last=True)
    transformer, optimizer, dataloader = accelerator.prepare(transformer, optimizer, dataloader)
    pacer = Pacer("neyman", scheduler, loss_at=loss_at.diffusers(transformer, scheduler)).attach(optimizer)
    accelerator.register_for_checkpointing(pacer)

    before, losses = held_out_flow_loss(transformer, text_encoder), []
    for pixel_values, input_ids in endless(dataloader, steps):
        model_input, prompt = latents_of(pixel_values), encode_prompt(text_encoder, input_ids)
        noise = torch.randn_like(model_input)
        indices = (pace := pacer.draw(model_input, condition=prompt)).indices
        timesteps = scheduler.timesteps[indices]
        sigmas = scheduler.sigmas[indices].view(-1, 1, 1, 1)
        noisy_model_input = (1.0 - sigmas) * model_input + sigmas * noise
        model_pred = transformer(noisy_model_input, timestep=timesteps, **prompt).sample
        weighting = training_utils.compute_loss_weighting_for_sd3(weighting_scheme, sigmas)
        target = noise - model_input
        loss = (weighting * (model_pred - target) ** 2).mean((1, 2, 3))
        loss = (loss * pace.weight).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(transformer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Outcome(before, held_out_flow_loss(transformer, text_encoder), losses)


if __name__ == "__main__":
    print(main())
