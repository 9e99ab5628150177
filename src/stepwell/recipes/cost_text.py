"""A cost in words: what `stepwell train --dry-run` prints below the recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stepwell.recipes.cost import INCEPTION, SAMPLES, Cost
from stepwell.recipes.gpus import GPUS, UTILISATION, Gpu
from stepwell.recipes.on_paper import Flops

_FILLED = 0.9
"""Of a GPU's memory: the rest is for the allocator and the kernels."""


def text(cost: Cost) -> str:
    """All that is counted, and the estimates."""
    return "\n".join([*_network(cost), *_memory(cost), *_work(cost), *_hours(cost)])


def _network(cost: Cost) -> Iterator[str]:
    recipe, shape = cost.recipe, "x".join(map(str, cost.shape))
    learning = f", {cost.network.learning:,} of them learn (rank {recipe.lora})" if recipe.lora else ""
    yield f"{recipe.model}: {cost.network.parameters:,} parameters{learning}, examples {shape}"
    seen = f"{cost.images:,} images seen"
    if cost.data_images:
        seen += f" ({cost.images / cost.data_images:.1f} times the data's {cost.data_images:,})"
    yield f"{recipe.steps:,} steps of {cost.images // recipe.steps:,}: {seen}"
    disk = f"{recipe.keep} kept: {_bytes(recipe.keep * cost.checkpoint)}"
    yield f"{_bytes(cost.checkpoint)} a checkpoint, {disk}"


def _memory(cost: Cost) -> Iterator[str]:
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in cost.held.items())
    each, total = (_range(pair, _bytes) for pair in (cost.activations, cost.memory))
    yield f"memory: {parts}; activations {each} an example"
    yield f"memory of one process at batch {cost.recipe.batch}: about {total}; kernels need more beside it"


def _work(cost: Cost) -> Iterator[str]:
    network, step = cost.network, cost.step
    yield (
        f"one example: {_flops(network.forward)} forward ({network.forward.total / 2e9:.2f} billion "
        f"multiplications), {_flops(network.training)} with the way back"
    )
    share = cost.probe.total / (step.total - cost.probe.total)
    extra = f", of which {cost.recipe.method} measures with {100 * share:.1f} % on top" if share else ""
    yield f"one step of one process: {_flops(step)}{extra}"
    whole = cost.training * cost.processes
    yield f"training: {_flops(whole)}" + (f" on {cost.processes} processes" if cost.processes > 1 else "")
    yield (
        f"{SAMPLES:,} images by {cost.solver}, {cost.evaluations} evaluations each: "
        f"{_flops(cost.sampling)}, {100 * cost.sampling.total / whole.total:.0f} % of training; "
        f"Inception's features for FID: {_flops(INCEPTION * SAMPLES)}"
    )


def _hours(cost: Cost) -> Iterator[str]:
    low, high = (f"{100 * share:.0f}" for share in UTILISATION)
    kind = "float32" if cost.recipe.precision == "no" else cost.recipe.precision
    each = f" with {cost.processes} of them" if cost.processes > 1 else " with one of them"
    yield (
        f"estimated, not measured, at {low} to {high} % of the published peak{each}: training in {kind}, "
        "images in float32, where convolutions use TF32"
    )
    for gpu in GPUS:
        train = _range(gpu.hours(cost.training, cost.recipe.precision), _hour)
        sample = _range(gpu.hours(cost.sampling * (1 / cost.processes), "no"), _hour)
        yield f"  {gpu.name:10} training {train}, {SAMPLES:,} images {sample}{_room(cost, gpu)}"


def _room(cost: Cost, gpu: Gpu) -> str:
    low, high = (size / 1e9 for size in cost.memory)
    if high < _FILLED * gpu.gigabytes:
        return ""
    verdict = "may not fit" if low < _FILLED * gpu.gigabytes else "does not fit"
    return f" ({verdict} at batch {cost.recipe.batch}: take less, with more accumulate)"


def _range(ends: tuple[float, float], shown: Callable[[float], str]) -> str:
    low, high = map(shown, ends)
    return low if low == high else f"{low} to {high}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _flops(work: Flops) -> str:
    for size, name in ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if work.total >= size:
            return f"{work.total / size:.3g} {name}"
    return f"{work.total / 1e6:.3g} MFLOP"


def _hour(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.0f} min" if hours > 1 / 60 else "a minute"
    return f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h"
