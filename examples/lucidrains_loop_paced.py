"""A loop around denoising-diffusion-pytorch's GaussianDiffusion, which returns its own loss."""

from __future__ import annotations

import torch
from fashion import Outcome, images
from lucidrains_protocol import GaussianDiffusion
from small_network import SmallNetwork
from torch.utils.data import DataLoader

import stepwell
from stepwell.integrations import lucidrains


@torch.no_grad()
def held_out_loss(diffusion: GaussianDiffusion) -> float:
    """At fixed timesteps with fixed noise."""
    x, generator = images(256, held_out=True), torch.Generator().manual_seed(0)
    times, noise = torch.arange(256) * 1000 // 256, torch.randn(x.shape, generator=generator)
    return diffusion((x + 1) / 2, times=times, noise=noise).item()


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
