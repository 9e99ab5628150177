"""What a plan will cost: memory, FLOPs and hours on named GPUs, counted without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.generate.solvers import SOLVERS
from stepwell.models.denoiser import Conditioning
from stepwell.recipes.experiment import Shape
from stepwell.recipes.meta_flops import Flops, NetworkCount, count, meta_network, shape_of
from stepwell.recipes.plan import Plan
from stepwell.recipes.schema import Recipe

UTILISATION = (0.2, 0.4)
"""Assumed share of the peak, from and to: training of diffusion models rarely gets more, small ones less."""


@dataclass(frozen=True)
class Gpu:
    """Dense peaks in TFLOPS, without sparsity, sums in float32."""

    name: str
    gigabytes: int
    bf16: float
    tf32: float
    fp32: float

    def seconds(self, work: Flops, precision: str, utilisation: float) -> float:
        """How long some work takes at a share of the peak.

        In float32 torch runs convolutions in TF32 and matrix products in full, unless it is told otherwise.
        """
        if precision == "no":
            ideal = work.convolution / self.tf32 + work.other / self.fp32
        else:
            ideal = work.total / self.bf16
        return ideal / 1e12 / utilisation

    def hours(self, work: Flops, precision: str) -> tuple[float, float]:
        """Estimated hours, from and to."""
        slow, fast = (self.seconds(work, precision, share) / 3600 for share in UTILISATION)
        return fast, slow


GPUS = (
    # NVIDIA's data sheets: A100 (2021), H100 SXM (2023; published with sparsity, halved here).
    Gpu("A100-80GB", 80, bf16=312, tf32=156, fp32=19.5),
    Gpu("H100-80GB", 80, bf16=989, tf32=495, fp32=67),
    # NVIDIA's architecture white papers: Ada (2022), Ampere GA102 (2020).
    Gpu("RTX 4090", 24, bf16=165, tf32=82.6, fp32=82.6),
    Gpu("RTX 3090", 24, bf16=71, tf32=35.6, fp32=35.6),
)


SAMPLES = 50_000
"""Images of an FID, as the field counts them."""
_FLOAT, _HALF = 4, 2
INCEPTION = Flops(11.4e9, 0.0)
"""FLOPs of one image at 299 pixels: 5.7 billion multiplications (Szegedy et al. 2016; torchvision)."""


@dataclass(frozen=True)
class Cost:
    """What is known of a run before it starts; bytes and FLOPs of one process."""

    plan: Plan
    network: NetworkCount
    shape: Shape
    processes: int = 1
    data_images: int | None = None
    """None: the data are not here."""
    probe: Flops = field(default_factory=lambda: Flops(0.0, 0.0))
    """FLOPs that the sampler's probe adds to a step, on average."""
    keeps_weights: bool = False
    """Whether the probe measures with the weights of before an update after it."""

    @property
    def recipe(self) -> Recipe:
        """The plan's settings."""
        return self.plan.recipe

    @property
    def step(self) -> Flops:
        """FLOPs of an optimizer step."""
        return self.network.training * (self.recipe.batch * self.recipe.accumulate) + self.probe

    @property
    def training(self) -> Flops:
        """FLOPs of the whole run on one process; with `seconds` it may end earlier."""
        return self.step * self.recipe.steps

    @property
    def images(self) -> int:
        """Images seen by all processes."""
        return self.recipe.steps * self.recipe.batch * self.recipe.accumulate * self.processes

    @property
    def evaluations(self) -> int:
        """Network evaluations for one generated image."""
        guided = self.recipe.guidance != 1 and self.recipe.conditional
        return SOLVERS[self.plan.solver].evaluations(self.recipe.sample_steps, guided)

    @property
    def sampling(self) -> Flops:
        """FLOPs of generating 50,000 images; decoding of latents not counted."""
        return self.network.forward * (self.evaluations * SAMPLES)

    @property
    def held(self) -> dict[str, float]:
        """Bytes that do not depend on the batch."""
        every, learning = self.network.parameters, self.network.learning
        sizes = {"weights": _FLOAT * every}
        sizes |= {"gradients": _FLOAT * learning, "Adam": 2 * _FLOAT * learning, "EMA": _FLOAT * learning}
        if self.recipe.precision != "no":
            sizes["weights in half precision"] = _HALF * every
        if self.keeps_weights:
            sizes["weights before an update"] = _FLOAT * learning
        return {name: float(size) for name, size in sizes.items()}

    @property
    def activations(self) -> tuple[float, float]:
        """Bytes of one example's activations, from and to: mixed precision halves some of them."""
        most = self.network.activations
        return (most if self.recipe.precision == "no" else most / 2), most

    @property
    def memory(self) -> tuple[float, float]:
        """Bytes on one GPU, from and to, without the allocator's and the kernels' own."""
        held, (low, high) = sum(self.held.values()), self.activations
        return held + self.recipe.batch * low, held + self.recipe.batch * high

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights, average and two moments."""
        return _FLOAT * (self.network.parameters + 3 * self.network.learning)


def cost_of(plan: Plan, shape: Shape | None = None, *, classes: int = 0, processes: int = 1) -> Cost:
    """The cost of a plan; `shape` and `classes` are those of the data, where they are known."""
    recipe = plan.recipe
    shape = shape or shape_of(recipe)
    labels = (recipe.classes or classes or 1) if recipe.conditional else 0
    extra = Conditioning(recipe.super_resolution).extra_channels(shape)
    network = count(meta_network(recipe, shape, labels), shape, labels, extra)
    spec = plan.sampler().probe
    return Cost(
        plan,
        network,
        shape,
        processes,
        probe=probe_work(plan, network, processes),
        keeps_weights=isinstance(spec, DecreaseSpec) and spec.late,
    )


def probe_work(plan: Plan, network: NetworkCount, processes: int) -> Flops:
    """What the sampler's probe adds to a step of one process; the policy's own network is not counted."""
    spec = plan.sampler().probe
    if spec is not None:
        spec = spec.for_run(plan.recipe.batch * processes, plan.recipe.steps)
    forwards, trainings = probe_images(spec, plan.recipe.batch, processes)
    each = 1 if spec is None else spec.every_steps
    return network.forward * (forwards / each) + network.training * (trainings / each)


def probe_images(spec: ProbeSpec | None, batch: int, processes: int) -> tuple[int, int]:
    """Images of one measurement on one process: forward passes only, and forward with backward."""
    if isinstance(spec, DecreaseSpec):
        # Before and after the update; the row over all of time is shared out in calls of a whole batch.
        share = -(-len(spec.grid) // processes)
        return 2 * batch * (len(spec.subset) + -(-share // batch)), 0
    if isinstance(spec, GradientSpec):
        return 0, 2 * -(-spec.images // processes)
    return 0, 0


_FILLED = 0.9
"""Share of a GPU's memory that can be filled: the rest is for the allocator and the kernels."""


def text(cost: Cost) -> str:
    """The cost in words: what `stepwell train --dry-run` prints below the recipe."""
    return "\n".join([*_network(cost), *_memory(cost), *_work(cost), *_hours(cost)])


def _network(cost: Cost) -> Iterator[str]:
    recipe, shape = cost.recipe, "x".join(map(str, cost.shape))
    learning = f", {cost.network.learning:,} of them trained (rank {recipe.lora})" if recipe.lora else ""
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
        f"multiplications), {_flops(network.training)} with backward"
    )
    share = cost.probe.total / (step.total - cost.probe.total)
    extra = f", {100 * share:.1f} % of it for the probe of {cost.recipe.method}" if share else ""
    yield f"one step of one process: {_flops(step)}{extra}"
    whole = cost.training * cost.processes
    yield f"training: {_flops(whole)}" + (f" on {cost.processes} processes" if cost.processes > 1 else "")
    yield (
        f"{SAMPLES:,} images by {cost.plan.solver}, {cost.evaluations} evaluations each: "
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
