"""What a recipe will cost, before anybody pays: everything that can be counted on paper."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.catalogue import build as named
from stepwell.core.probe_spec import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.generate.solvers import CATALOGUE, solver_for
from stepwell.models.low_resolution import Conditioning
from stepwell.processes.discrete import DiscreteProcess
from stepwell.recipes.method import resolve
from stepwell.recipes.on_paper import Flops, NetworkCount, Shape, count, network_on_paper, shape_of
from stepwell.recipes.schema import Recipe

SAMPLES = 50_000
"""Images of an FID, as the field counts them."""
_FLOAT, _HALF = 4, 2
INCEPTION = Flops(11.4e9, 0.0)
"""Of one image at 299 pixels: 5.7 billion multiplications (Szegedy et al. 2016; torchvision's table)."""


@dataclass(frozen=True)
class Cost:
    """All that is known of a run before it starts; bytes and FLOPs of one process."""

    recipe: Recipe
    network: NetworkCount
    shape: Shape
    processes: int = 1
    data_images: int | None = None
    """None: the data are not here."""
    probe: Flops = field(default_factory=lambda: Flops(0.0, 0.0))
    """Of a step, on average: what the sampler's own measurements add."""

    @property
    def step(self) -> Flops:
        """Of an optimizer step."""
        return self.network.training * (self.recipe.batch * self.recipe.accumulate) + self.probe

    @property
    def training(self) -> Flops:
        """Of the whole run on one process; with `seconds` it may end earlier."""
        return self.step * self.recipe.steps

    @property
    def images(self) -> int:
        """Seen by all processes."""
        return self.recipe.steps * self.recipe.batch * self.recipe.accumulate * self.processes

    @property
    def evaluations(self) -> int:
        """Of the network, for one generated image."""
        guided = self.recipe.guidance != 1 and self.recipe.labels
        return CATALOGUE[self.solver].evaluations(self.recipe.sample_steps, guided)

    @property
    def solver(self) -> str:
        """Of generation."""
        process = named.as_process(self.recipe.process)
        return solver_for(self.recipe.solver, not isinstance(process, DiscreteProcess))

    @property
    def sampling(self) -> Flops:
        """Of 50,000 images; decoding of latents not counted."""
        return self.network.forward * (self.evaluations * SAMPLES)

    @property
    def held(self) -> dict[str, float]:
        """Bytes that do not depend on the batch."""
        every, learning = self.network.parameters, self.network.learning
        found = {"weights": _FLOAT * every}
        found |= {"gradients": _FLOAT * learning, "Adam": 2 * _FLOAT * learning, "EMA": _FLOAT * learning}
        if self.recipe.precision != "no":
            found["weights in half precision"] = _HALF * every
        return {name: float(size) for name, size in found.items()}

    @property
    def activations(self) -> tuple[float, float]:
        """Bytes of one example, from and to: mixed precision keeps between half and all in float32."""
        most = self.network.activations
        return (most if self.recipe.precision == "no" else most / 2), most

    @property
    def memory(self) -> tuple[float, float]:
        """Bytes on one GPU, from and to; what the allocator and the kernels need beside it not counted."""
        held, (low, high) = sum(self.held.values()), self.activations
        return held + self.recipe.batch * low, held + self.recipe.batch * high

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights, average and two moments."""
        return _FLOAT * (self.network.parameters + 3 * self.network.learning)


def cost_of(recipe: Recipe, shape: Shape | None = None, *, classes: int = 0, processes: int = 1) -> Cost:
    """Everything that can be counted on paper; `shape` and `classes` are the data's, where they are known."""
    seen = shape or shape_of(recipe)
    labels = (recipe.classes or classes or 1) if recipe.labels else 0
    extra = Conditioning(recipe.super_resolution).extra_channels(seen)
    network = count(network_on_paper(recipe, seen, labels), seen, labels, extra)
    return Cost(recipe, network, seen, processes, probe=probe_work(recipe, network, processes))


def probe_work(recipe: Recipe, network: NetworkCount, processes: int) -> Flops:
    """What a sampler's measurements add to a step of one process; the policy's own network is not counted."""
    chosen, settings = resolve(recipe.method).sampler
    spec = named.sampler(chosen, named.as_process(recipe.process), **settings).probe
    forwards, trainings = probe_images(spec, recipe.batch, processes)
    each = 1 if spec is None else spec.every_steps
    return network.forward * (forwards / each) + network.training * (trainings / each)


def probe_images(spec: ProbeSpec | None, batch: int, processes: int) -> tuple[int, int]:
    """Images of one measurement on one process: that go forward only, and that go back too."""
    if isinstance(spec, DecreaseSpec):
        # Before and after the update; the row over all of time is shared out in calls of a whole batch.
        share = -(-len(spec.grid) // processes)
        return 2 * batch * (len(spec.subset) + -(-share // batch)), 0
    if isinstance(spec, GradientSpec):
        return 0, 2 * -(-spec.images // processes)
    return 0, 0
