"""The difference of two halves in one pass is that of two passes."""

from __future__ import annotations

from dataclasses import replace

import torch
from small_context import Seen, examples, network

from stepwell.core.feedback import GradientSignal
from stepwell.core.probe import GradientSpec
from stepwell.core.tick import Tick
from stepwell.probes.gradients import Gradients

SPEC = GradientSpec(1, borders=(0.0, 0.25, 0.5, 1.0), images=4)


def measured(spec: GradientSpec) -> tuple[GradientSignal, int]:
    """The signal, and how often the network was asked."""
    seen, probe, (x0, condition) = Seen(network(dropout=0.0)), Gradients(), examples(8)
    probe.add_batch(x0, condition, spec, 1)
    signal = probe.after(seen.view(x0, condition, Tick(seed=5, step=7)), spec)
    assert signal is not None
    return signal, len(seen.calls)


def test_one_pass_gives_the_difference_of_two() -> None:
    (two, calls), (one, fewer) = measured(SPEC), measured(replace(SPEC, difference_only=True))
    assert (calls, fewer) == (2, 1)
    difference = two.halves[0] - two.halves[1]
    assert torch.allclose(one.halves[0] - one.halves[1], difference, rtol=1e-4, atol=1e-6)
    assert difference.norm() > 0
    assert one.images == two.images
