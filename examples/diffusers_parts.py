"""What the diffusers examples have in pairs: small networks, and their held-out losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, SD3Transformer2DModel, UNet2DConditionModel, UNet2DModel
from fashion import images, labels, latents_of
from torch import Tensor, nn


def tiny_unconditional_unet() -> UNet2DModel:
    """For images [B, 1, 16, 16]."""
    return UNet2DModel(
        16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
    )


def tiny_unet() -> UNet2DConditionModel:
    """For latents [B, 4, 8, 8] and texts [B, 2, 16]."""
    return UNet2DConditionModel(
        8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )


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
    """The transformer's keyword arguments beside the time."""
    text = text_encoder(input_ids)
    return {"encoder_hidden_states": text, "pooled_projections": text.flatten(1)}


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
def held_out_loss(unet: nn.Module, scheduler: DDPMScheduler, x0: Tensor, *text: Tensor) -> float:
    """At fixed timesteps with fixed noise: random ones would show the timesteps, not the training."""
    timesteps = torch.arange(len(x0)) * 1000 // len(x0)
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    output = unet(scheduler.add_noise(x0, noise, timesteps), timesteps, *text).sample
    v = scheduler.config.prediction_type == "v_prediction"
    return F.mse_loss(output, scheduler.get_velocity(x0, noise, timesteps) if v else noise).item()


@torch.no_grad()
def held_out_flow_loss(transformer: nn.Module, text_encoder: nn.Module) -> float:
    """At fixed times with fixed noise, without weights."""
    x0, sigmas = latents_of(images(128, held_out=True)), (torch.arange(128) + 0.5) / 128
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    noisy = torch.lerp(x0, noise, sigmas.view(-1, 1, 1, 1))
    prompt = encode_prompt(text_encoder, labels(128, held_out=True))
    model_pred = transformer(noisy, timestep=1000 * sigmas, **prompt).sample
    loss: Tensor = (model_pred - (noise - x0)).square().mean()
    return loss.item()
