"""A loop as DiT's train.py has it: one line draws timesteps, the next computes the loss."""

from __future__ import annotations

import torch
from fashion import Outcome, images, labels
from guided_protocol import GaussianDiffusion, held_out_loss
from small_network import SmallNetwork
from torch.utils.data import DataLoader, TensorDataset


def main(steps: int = 200) -> Outcome:
    """Train for some updates."""
    torch.manual_seed(0)
    model, diffusion = SmallNetwork(time_scale=1000, classes=10), GaussianDiffusion()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(images(), labels()), batch_size=32, shuffle=True)

    before, kept = held_out_loss(model, diffusion), []
    while len(kept) < steps:
        for x, y in loader:
            t = torch.randint(0, diffusion.num_timesteps, (x.shape[0],))
            loss_dict = diffusion.training_losses(model, x, t, {"y": y})
            loss = loss_dict["loss"].mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            kept.append(loss.item())
            if len(kept) == steps:
                break
    return Outcome(before, held_out_loss(model, diffusion), kept)


if __name__ == "__main__":
    print(main())
