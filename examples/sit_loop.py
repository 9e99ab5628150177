"""A loop as SiT's train.py has it: the Transport draws the times, hidden in its loss."""

from __future__ import annotations

import torch
from fashion import Outcome, images, labels
from sit_protocol import Transport, held_out_loss
from small_network import SmallNetwork
from torch.utils.data import DataLoader, TensorDataset


def main(steps: int = 200) -> Outcome:
    """Train for some updates."""
    torch.manual_seed(0)
    model, transport = SmallNetwork(classes=10), Transport()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(images(), labels()), batch_size=32, shuffle=True)

    before, kept = held_out_loss(model), []
    while len(kept) < steps:
        for x, y in loader:
            loss_dict = transport.training_losses(model, x, {"y": y})
            loss = loss_dict["loss"].mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            kept.append(loss.item())
            if len(kept) == steps:
                break
    return Outcome(before, held_out_loss(model), kept)


if __name__ == "__main__":
    print(main())
