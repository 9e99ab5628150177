"""A loop around denoising-diffusion-pytorch's GaussianDiffusion, which returns its own loss."""

from __future__ import annotations

import torch
from fashion import Outcome, images
from lucidrains_protocol import GaussianDiffusion, held_out_loss
from small_network import SmallNetwork
from torch.utils.data import DataLoader

import stepwell
from stepwell.integrations import lucidrains


def main(steps: int = 200) -> Outcome:
    """Train for some updates."""
    torch.manual_seed(0)
    diffusion = GaussianDiffusion(SmallNetwork(time_scale=1000))
    opt = torch.optim.Adam(diffusion.parameters(), lr=2e-3)
    pacer = stepwell.Pacer("neyman", diffusion, loss_at=lucidrains.loss_at(diffusion)).attach(opt)
    loader = DataLoader((images() + 1) / 2, batch_size=32, shuffle=True)

    before, kept = held_out_loss(diffusion), []
    while len(kept) < steps:
        for img in loader:
            pace = pacer.draw(img)
            loss = (diffusion(img, times=pace.timesteps, loss_reduction="none") * pace.weight).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            kept.append(loss.item())
            if len(kept) == steps:
                break
    return Outcome(before, held_out_loss(diffusion), kept)


if __name__ == "__main__":
    print(main())
