"""What a recipe costs on paper, against published counts, closed forms and a real run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from stepwell.core.probe import DecreaseSpec, GradientSpec
from stepwell.models.registry import build_model
from stepwell.recipes.cost import GPUS, Cost, Gpu, cost_of, probe_images, text
from stepwell.recipes.meta_flops import (
    Flops,
    LiveBytes,
    NetworkCount,
    Uncountable,
    count,
    meta_network,
    shape_of,
)
from stepwell.recipes.plan import resolve
from stepwell.recipes.schema import Recipe


def counted(model: str, classes: int = 0) -> NetworkCount:
    recipe = Recipe(model=model, labels=bool(classes))
    shape = shape_of(recipe)
    return count(meta_network(recipe, shape, classes), shape, classes)


def test_ddpm_on_cifar10_has_its_published_multiplications() -> None:
    # Fang et al. 2023 (Diff-Pruning, Tab. 1): 35.7 M parameters and 6.1 G multiplications, counted layer by
    # layer, so without the products of attention, which are 0.17 G here.
    found = counted("ddpm-cifar10")
    assert found.parameters == 35_746_307
    assert found.forward.total / 2e9 == pytest.approx(6.1, rel=0.03)
    assert found.forward.convolution / 2e9 == pytest.approx(5.711, rel=1e-3)


@pytest.mark.full
def test_dit_xl_2_has_its_published_flops() -> None:
    # Peebles and Xie 2023, Tab. 4: 118.6 "Gflops", which are multiplications; 675 M parameters.
    found = counted("dit-xl-2", classes=1000)
    assert found.parameters == pytest.approx(675e6, rel=2e-3)
    assert found.forward.total / 2e9 == pytest.approx(118.6, rel=0.01)


def test_uvit_has_the_multiplications_of_its_formula() -> None:
    width, blocks, tokens = 1152, 13, 16 * 16 + 2
    block = 12 * width**2 * tokens + 2 * width * tokens**2
    joins = (blocks // 2) * 2 * width**2 * tokens
    found = counted("uvit-imagenet", classes=1000)
    # Patches, the last layer and the time's embedding are what the formula leaves out.
    assert found.forward.total / 2 == pytest.approx(blocks * block + joins, rel=2e-3)
    # Backward: twice the forward, and attention's scores once more.
    extra = blocks * width * tokens**2
    assert found.training.total == pytest.approx(3 * found.forward.total + 2 * extra, rel=5e-3)


class _Layers(nn.Module):
    """A convolution and a linear layer, whose counts are known."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.linear = nn.Linear(8 * 16, 3 * 16)

    def forward(self, x: Tensor, time: Tensor, condition: Any = None) -> Tensor:
        return self.linear(self.convolution(x).flatten(1)).view_as(x)


def test_flops_of_known_layers() -> None:
    found = count(_Layers().to("meta"), (3, 4, 4))
    assert found.forward == Flops(2 * 8 * 3 * 9 * 16, 2 * 8 * 16 * 3 * 16)
    # The gradient of the input is not needed in the first layer.
    assert found.training == Flops(2 * found.forward.convolution, 3 * found.forward.other)


class _Reads(nn.Module):
    """A network that looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, time: Tensor, condition: Any = None) -> Tensor:
        return x * self.weight * float(time.sum())


def test_a_network_that_looks_at_values_is_told_and_not_run() -> None:
    with pytest.raises(Uncountable, match="only be measured where the data are"):
        count(_Reads().to("meta"), (3, 4, 4))


def _allocated(events: Any) -> Iterator[int]:
    """Bytes in use over time, as torch's own allocator told the profiler."""
    now = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            yield now


@pytest.mark.parametrize("model", ["small", "uvit-tiny"])
def test_memory_on_paper_is_that_of_a_real_run(model: str) -> None:
    size, batch = 16, 16
    plan = resolve({"model": model, "size": size, "channels": 1, "batch": batch})
    cost = cost_of(plan)
    network = build_model(model, channels=1, image_size=size)
    x, time = torch.randn(batch, 1, size, size), torch.zeros(batch, dtype=torch.int64)
    network(x, time).square().mean().backward()
    network.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        network(x, time).square().mean().backward()
    peak = max(_allocated(seen.profiler.kineto_results.events()))
    # A peak lies between what is kept at the end of forward, and that with all gradients and some buffers.
    kept = batch * cost.activations[1]
    gradients = cost.held["gradients"]
    assert 0.95 * kept < peak < 1.25 * (kept + gradients)


def test_live_bytes_forget_what_is_gone() -> None:
    known = torch.zeros(100)
    with LiveBytes([known]) as live:
        made = known + 1
        view = made[:10]
        assert live.now == 400, "a view is no new memory"
        del made
        assert live.now == 400, "which its view keeps"
        del view
        assert live.now == 0
    assert live.peak == 400


def test_what_probes_add() -> None:
    decrease = DecreaseSpec(40, "vlb", (0.1, 0.5, 0.9), tuple(k / 1000 for k in range(1000)))
    # Kim et al. 2025, Sec. 9: 2 |S| + 2 T / B = 21.6 batches, the last of T / B not full; here it is.
    assert probe_images(decrease, 128, 1) == (2 * 128 * (3 + 8), 0)
    assert probe_images(decrease, 32, 4) == (2 * 32 * (3 + 8), 0), "the grid is shared by the ranks"
    gradient = GradientSpec(16, None, tuple(k / 20 for k in range(21)), images=16)
    assert probe_images(gradient, 128, 1) == (0, 32)
    assert probe_images(gradient, 128, 8) == (0, 4)
    assert probe_images(None, 128, 1) == (0, 0)


def example(**changes: Any) -> Cost:
    """A cost with round numbers."""
    plan = resolve({"steps": 1000, "batch": 10, "solver": "ddpm"}).with_settings(**changes)
    return Cost(plan, NetworkCount(1_000_000, 1_000_000, Flops(1e9, 1e9), Flops(3e9, 3e9), 2e6), (3, 32, 32))


def test_the_arithmetic_of_a_run() -> None:
    cost = example(accumulate=2, sample_steps=100)
    assert cost.step.total == 20 * 6e9
    assert cost.training.total == 1000 * 20 * 6e9
    assert cost.images == 20_000
    assert cost.evaluations == 100
    assert cost.sampling.total == 50_000 * 100 * 2e9
    assert sum(cost.held.values()) == 20e6, "weights, gradients, two moments, average"
    assert cost.memory == (40e6, 40e6), "micro-batches are held one at a time"
    assert cost.checkpoint == 16e6


def test_solvers_guidance_and_precision_count() -> None:
    assert example(solver="heun", sample_steps=50).evaluations == 99
    assert example(guidance=2.0, labels=True, sample_steps=50).evaluations == 100
    assert example(guidance=2.0, sample_steps=50).evaluations == 50, "nothing to guide without labels"
    low, high = example(precision="bf16").memory
    assert (low, high) == (22e6 + 10e6, 22e6 + 20e6)


def test_hours_on_a_gpu() -> None:
    gpu = Gpu("x", 10, bf16=100, tf32=50, fp32=10)
    work = Flops(50e12, 10e12)
    assert gpu.seconds(work, "no", 1.0) == pytest.approx(2.0), "convolutions in TF32, products in full"
    assert gpu.seconds(work, "bf16", 1.0) == pytest.approx(0.6)
    fast, slow = gpu.hours(work, "no")
    assert (fast, slow) == pytest.approx((2 / 0.4 / 3600, 2 / 0.2 / 3600))


def test_words_name_gpus_and_call_an_estimate_one() -> None:
    said = text(example())
    for gpu in GPUS:
        assert gpu.name in said
    assert "estimated, not measured, at 20 to 40 % of the published peak" in said
    big = SimpleNamespace(name="tiny", gigabytes=0.03, hours=GPUS[0].hours)
    from stepwell.recipes.cost import _room

    assert "does not fit at batch 10" in _room(example(), big)  # type: ignore[arg-type]


def test_a_shape_comes_from_the_recipe_or_from_what_the_network_was_made_for() -> None:
    assert shape_of(Recipe(model="tiny", size=8, channels=1)) == (1, 8, 8)
    assert shape_of(Recipe(model="ldm-celebahq")) == (3, 64, 64)
    with pytest.raises(Uncountable, match="give size=N channels=C"):
        shape_of(Recipe(model="tiny", data="PATH"))


def test_what_a_method_measures_is_added() -> None:
    plain, measuring = (
        cost_of(resolve({"model": "tiny", "size": 16, "channels": 1, "batch": 64, "method": method}))
        for method in ("uniform", "neyman")
    )
    assert plain.probe.total == 0
    # 32 images forward and back, once in 16 steps of 64.
    assert measuring.step.total / plain.step.total == pytest.approx(1 + 32 / 64 / 16)


def test_weights_that_a_probe_keeps_during_an_update_are_counted() -> None:
    # Algorithm 2 pays at times that are chosen after the update: with the weights of before it.
    kept = {}
    for method in ("beta-policy", "beta-policy:paper=true"):
        cost = cost_of(resolve({"model": "tiny", "method": method}), (1, 16, 16))
        kept[method] = cost.held.get("weights before an update", 0)
    assert kept["beta-policy"] == 0
    assert kept["beta-policy:paper=true"] == 4 * cost.network.parameters
