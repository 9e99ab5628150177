"""Losses that wait: not for too many updates, not too many of them, and in their order."""

from __future__ import annotations

import torch

from stepwell.core.pending import MOST, TOGETHER, Pending


def test_it_is_full_after_some_batches_or_after_many_losses() -> None:
    small, large = Pending("u"), Pending("u")
    for batch in range(1, TOGETHER + 1):
        small.add(torch.zeros(4))
        assert small.full == (batch == TOGETHER)
    for batch in range(1, 5):
        large.add(torch.zeros(MOST // 4))
        assert large.full == (batch == 4)
    large.clear()
    assert not large.full
    assert not large


def test_a_state_has_all_that_waits_and_how_much_that_is() -> None:
    one, other = Pending("u", "loss"), Pending("u", "loss")
    other.add(torch.zeros(MOST), torch.zeros(MOST))
    for batch in range(3):
        one.add(torch.arange(4.0) + 4 * batch, torch.arange(4.0) - 4 * batch)
    other.load_state_dict(one.state_dict())
    assert not other.full, "what it held before is gone"
    for mine, theirs in zip(one.joined(), other.joined(), strict=True):
        assert torch.equal(mine, theirs)
    assert one.joined()[0].tolist() == list(range(12))
