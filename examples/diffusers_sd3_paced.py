"""A loop as diffusers' SD3 and Flux examples have it: flow matching, timesteps in a falling list."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, training_utils
from fashion import Outcome, TextEncoder, endless, images, labels, latents_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stepwell import Pacer, loss_at


def tiny_transformer() -> SD3Transformer2DModel:
    """For latents [B, 4, 8, 8] and texts [B, 2, 16]."""
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=16,
        caption_projection_dim=32,
        pooled_projection_dim=32,
        pos_embed_max_size=8,
    )


def encode_prompt(text_encoder: nn.Module, input_ids: Tensor) -> dict[str, Tensor]:
    """What the transformer is told beside the time."""
    text = text_encoder(input_ids)
    return {"encoder_hidden_states": text, "pooled_projections": text.flatten(1)}


@torch.no_grad()
def held_out_loss(transformer: nn.Module, text_encoder: nn.Module) -> float:
    """At fixed times with fixed noise, without weights."""
    x0, sigmas = latents_of(images(128, held_out=True)), (torch.arange(128) + 0.5) / 128
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    noisy = torch.lerp(x0, noise, sigmas.view(-1, 1, 1, 1))
    prompt = encode_prompt(text_encoder, labels(128, held_out=True))
    model_pred = transformer(noisy, timestep=1000 * sigmas, **prompt).sample
    return (model_pred - (noise - x0)).square().mean().item()


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

    before, losses = held_out_loss(transformer, text_encoder), []
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
    return Outcome(before, held_out_loss(transformer, text_encoder), losses)


if __name__ == "__main__":
    print(main())
