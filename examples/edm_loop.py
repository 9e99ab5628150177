"""A loop as EDM's training_loop has it: loss and optimizer made from options, accumulation in rounds."""

from __future__ import annotations

from itertools import cycle

import karras_protocol as karras
import torch
from fashion import Outcome, images, labels
from small_network import SmallNetwork
from torch.utils.data import DataLoader, TensorDataset

LOSS = karras.EDMLoss


def main(steps: int = 200) -> Outcome:
    """Train for some updates of two rounds each."""
    torch.manual_seed(0)
    net = karras.EDMPrecond(SmallNetwork(classes=10))
    loss_fn = LOSS()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loader = cycle(DataLoader(TensorDataset(images(), labels()), batch_size=16))
    held_out = images(256, held_out=True), labels(256, held_out=True)

    before, kept = karras.held_out_loss(net, *held_out), []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            x, y = next(loader)
            loss = loss_fn(net=net, images=x, labels=y, augment_pipe=None)
            loss.sum().mul(1 / 32 / x[0].numel()).backward()
            kept.append(loss.mean().item())
        optimizer.step()
    return Outcome(before, karras.held_out_loss(net, *held_out), kept)


if __name__ == "__main__":
    print(main())
