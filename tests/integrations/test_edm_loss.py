"""EDM's loss with a pacer inside: their arguments, their pickles, their objective."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from protocols import Tiny, batch
from torch import Tensor

from stepwell.integrations.edm import PacedEDMLoss
from stepwell.pacer import CallOrderError


def edm_loss(**more: Any) -> tuple[PacedEDMLoss, Any, Any]:
    import karras_protocol as karras

    network = karras.EDMPrecond(Tiny())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    return PacedEDMLoss(**more).attach(network, optimizer), network, optimizer


def test_with_its_own_density_it_is_edms_loss() -> None:
    import karras_protocol as karras

    loss_fn, network, _ = edm_loss(sampler="reference")
    assert loss_fn.pacer is not None
    x, levels = batch(count=64), []
    own = loss_fn.pacer.draw
    loss_fn.pacer.draw = lambda *args, **kwargs: levels.append(own(*args, **kwargs)) or levels[-1]  # type: ignore[method-assign]
    torch.manual_seed(0)
    found = loss_fn(network, x, torch.zeros(64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(karras, "log_normal", lambda shape: levels[0].sigma.view(shape))
        torch.manual_seed(0)
        expected = karras.EDMLoss()(network, x, torch.zeros(64))
    assert found.shape == x.shape
    assert torch.equal(found, expected)


def test_augmentation_and_labels_reach_the_probes() -> None:
    loss_fn, network, optimizer = edm_loss(sampler="neyman:every_steps=16,images=16")
    labels, asked = torch.arange(8.0), []
    own = network.forward

    def forward(x: Tensor, sigma: Tensor, class_labels: Any = None, augment_labels: Any = None) -> Tensor:
        asked.append((len(x), class_labels, augment_labels))
        return own(x, sigma, class_labels)

    network.forward = forward
    for _ in range(5):
        for _ in range(4):
            loss_fn(network, batch(), labels, lambda x: (x.flip(3), labels[:, None])).sum().backward()
        optimizer.step()
    # Four micro-batches of 8 are an example each for two halves of 16.
    probes = [call for call in asked if call[0] != 8]
    assert probes
    for _, given, augmented in probes:
        assert torch.equal(given[:, None], augmented)


def test_edms_loss_is_pickled_without_its_network_and_continues() -> None:
    def run(steps: range, loss_fn: PacedEDMLoss, network: Any, optimizer: Any) -> list[Tensor]:
        losses = []
        for step in steps:
            torch.manual_seed(step)
            loss = loss_fn(network, batch(step, count=32))
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    torch.manual_seed(0)
    whole = edm_loss()
    expected = run(range(24), *whole)
    first = edm_loss()
    run(range(12), *first)
    snapshot = pickle.loads(pickle.dumps(first[0]))
    assert snapshot.pacer is None
    again = edm_loss()
    again[1].load_state_dict(first[1].state_dict())
    again[2].load_state_dict(copy.deepcopy(first[2].state_dict()))
    snapshot.attach(again[1], again[2])
    for one, two in zip(run(range(12, 24), snapshot, *again[1:]), expected[12:], strict=True):
        assert torch.equal(one, two)


@pytest.mark.full
def test_the_density_leaves_edms_own() -> None:
    import edm_loop_paced

    made: list[PacedEDMLoss] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edm_loop_paced, "LOSS", lambda: made.append(PacedEDMLoss()) or made[-1])
        edm_loop_paced.main(88)
    assert made[0].pacer is not None
    u = torch.linspace(0.1, 0.9, 17)
    moved = made[0].pacer.sampler.density(u) / made[0].process.reference.pdf(u)
    assert float(moved.max() / moved.min()) > 1.2


def test_mistakes_with_edms_loss_are_named() -> None:
    with pytest.raises(CallOrderError, match=r"loss_fn\.attach\(net, optimizer\)"):
        PacedEDMLoss()(Tiny(), batch())
    loss_fn, network, optimizer = edm_loss()
    with pytest.raises(CallOrderError, match="attached already"):
        loss_fn.attach(network, optimizer)
