"""A loop as k-diffusion's train.py has it: a density of sigma, and a Denoiser that has the loss."""

from __future__ import annotations

import karras_protocol as karras
import torch
from fashion import Outcome, images
from small_network import SmallNetwork
from torch.utils.data import DataLoader

import stepwell.integrations.k_diffusion


def main(steps: int = 200) -> Outcome:
    """Train for some updates."""
    torch.manual_seed(0)
    model = karras.Denoiser(SmallNetwork())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    pacer = stepwell.Pacer("neyman", "edm", loss_at=stepwell.loss_at.edm(model)).attach(opt)
    sample_density = stepwell.integrations.k_diffusion.SampleDensity(pacer)
    model.weighting = sample_density.weighting
    loader = DataLoader(images(), batch_size=32, shuffle=True)

    before, kept = karras.held_out_loss(model, images(256, held_out=True)), []
    while len(kept) < steps:
        for reals in loader:
            noise = torch.randn_like(reals)
            sigma = sample_density(reals, device=reals.device)
            loss = model.loss(reals, noise, sigma).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            kept.append(loss.item())
            if len(kept) == steps:
                break
    return Outcome(before, karras.held_out_loss(model, images(256, held_out=True)), kept)


if __name__ == "__main__":
    print(main())
