"""Samplers made from samplers: `mix`, `shift`, `within`, `warm_up`, `stratified` and `unbiased`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.density import Density, Shift, Squeeze, Uniform, Warp, centres, inside
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import DecreaseSignal, Feedback
from stepwell.core.loss_curve import LossCurve
from stepwell.core.probe import ProbeSpec, Times
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import PerExample, few, per_example, precise
from stepwell.core.tick import Tick, uniforms_one_by_one
from stepwell.samplers.one_density import Static


class Wrapped(TimestepSampler):
    """A sampler around another, which does everything that a combinator does not override."""

    def __init__(self, sampler: TimestepSampler, label: str) -> None:
        self.sampler, self.label = sampler, label
        self.learns, self.learns_from_losses = sampler.learns, sampler.learns_from_losses

    def __repr__(self) -> str:
        return f"{self.label}({self.sampler!r})"

    def __str__(self) -> str:
        return self.written or f"{self.label}({self.sampler})"

    @property
    def probe(self) -> ProbeSpec | None:
        return self.sampler.probe

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.sampler.density(u, x0)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.sampler.cdf(u, x0)

    def support(self, u: Tensor) -> Tensor:
        return self.sampler.support(u)

    def loss_curve(self, borders: Tensor) -> LossCurve | None:
        return self.sampler.loss_curve(borders)

    def diagnostics(self) -> Mapping[str, Tensor]:
        return self.sampler.diagnostics()

    def learn(self, feedback: Feedback) -> Metrics:
        return self.sampler.learn(feedback)

    def state_dict(self) -> State:
        return {"kind": self.label, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.sampler.load_state_dict(saved_state.part(require_kind(state, self.label), "sampler", self))


def _uncorrected(sampler: TimestepSampler, outer: str) -> TimestepSampler:
    """`sampler`, unless it is `unbiased` already: changing its density afterwards would make that wrong."""
    if sampler.reference is not None:
        raise Unsupported(
            f"{outer}({sampler}) would change the density after it was corrected for: "
            f"put unbiased outside, as in unbiased({outer}(...), reference)."
        )
    return sampler


def mix(sampler: TimestepSampler, other: TimestepSampler, share: float) -> TimestepSampler:
    """Draw a `share` of the examples from `other`; only `sampler` learns."""
    share = require.between("share", share, 0, 1)
    return Mix(_uncorrected(sampler, "mix"), _uncorrected(other, "mix"), share)


def mix_uniform(sampler: TimestepSampler, share: float, parameter: str) -> TimestepSampler:
    """Draw a `share` of the examples uniformly; `parameter` is what the user calls the share."""
    return mix(sampler, Static(Uniform(), "uniform"), require.between(parameter, share, 0, 1))


def mix_reference(
    sampler: TimestepSampler, reference: Density, share: float, parameter: str
) -> TimestepSampler:
    """Draw a `share` of the examples from the objective's own density: no correction is above 1 / share."""
    return mix(sampler, Static(reference, "reference"), require.between(parameter, share, 0, 1))


class Mix(Wrapped):
    """One uniform chooses the sampler and the draw, so that stratified draws stay stratified in each part."""

    def __init__(self, sampler: TimestepSampler, other: TimestepSampler, share: float) -> None:
        super().__init__(sampler, f"mix[{share:g}]")
        self._other, self._share = other, share

    def __repr__(self) -> str:
        return f"mix({self.sampler!r}, {self._other!r}, {self._share:g})"

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        from_other = v < self._share
        # Below and above `share`, v is uniform again; each sampler also maps the other's v, unused.
        rest = ((v - self._share) / max(1 - self._share, 1e-6)).clamp(2**-24, 1 - 2**-24)
        part = (v / max(self._share, 1e-6)).clamp(2**-24, 1 - 2**-24)
        one, two = self.sampler.from_uniform(rest, x0, tick), self._other.from_uniform(part, x0, tick)
        u = torch.where(from_other, two.u, one.u)
        action = None if one.action is None else _without(one.action, from_other)
        return Draw(u, self.density(u, x0).log(), torch.ones_like(u), action)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.lerp(self.sampler.density(u, x0), self._other.density(u, x0), self._share)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.lerp(self.sampler.cdf(u, x0), self._other.cdf(u, x0), self._share)

    def support(self, u: Tensor) -> Tensor:
        if self._share in (0, 1):
            return (self._other if self._share else self.sampler).support(u)
        return self.sampler.support(u) | self._other.support(u)

    def state_dict(self) -> State:
        return {**super().state_dict(), "other": self._other.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._other.load_state_dict(saved_state.part(state, "other", self))


def _without(action: Tensor, others: Tensor) -> Tensor:
    """NaN in the rows of actions [B, ...] that were not taken: another sampler drew for these examples."""
    return torch.where(per_example(others, action), torch.nan, action)


def within(sampler: TimestepSampler, low: float, high: float) -> TimestepSampler:
    """The sampler's whole density inside [low, high) of unit time."""
    return Warped(_uncorrected(sampler, "within"), Squeeze(low, high), f"within[{low:g}, {high:g}]")


def shift(sampler: TimestepSampler, factor: float, process: NoiseProcess) -> TimestepSampler:
    """SD3's resolution shift, u -> s u / (1 + (s - 1) u), unless the process has it already.

    On a chain that counts its timesteps it moves these, as OneTrainer does.
    """
    if process.shift != 1 and factor != 1:
        raise Unsupported(
            f"{process} already shifts its timesteps by {process.shift:g}; shifting by {factor:g} as well "
            f"would shift by {process.shift * factor:g}. Leave out shift, or build the process without it."
        )
    return Warped(_uncorrected(sampler, "shift"), Shift(factor), f"shift[{factor:g}]")


class Warped(Wrapped):
    """A sampler that draws, learns and is probed in its own unit time, mapped to the process's by a warp."""

    def __init__(self, sampler: TimestepSampler, warp: Warp, label: str) -> None:
        super().__init__(sampler, label)
        self._warp = warp

    @property
    def probe(self) -> ProbeSpec | None:
        spec = self.sampler.probe
        return None if spec is None else spec.mapped(self._forward)

    def loss_curve(self, borders: Tensor) -> LossCurve | None:
        return None  # it is over the inner sampler's own time

    def _forward(self, times: Times) -> Times:
        return tuple(self._warp.forward(torch.tensor(times, dtype=torch.float64)).tolist())

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        inner = self.sampler.from_uniform(v, x0, tick)
        log_prob = inner.log_prob - self._warp.rate(inner.u).log()
        return Draw(inside(self._warp.forward(inner.u), 0.0, 1.0), log_prob, inner.correction, inner.action)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        inner = self._warp.inverse(u)
        height = self.sampler.density(inner, x0) / self._warp.rate(inner)
        return torch.where(self._warp.inside(u), height, 0.0)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.sampler.cdf(self._warp.inverse(u), x0)

    def support(self, u: Tensor) -> Tensor:
        return self._warp.inside(u) & self.sampler.support(self._warp.inverse(u))

    def learn(self, feedback: Feedback) -> Metrics:
        u = inside(self._warp.inverse(feedback.u), 0.0, 1.0)
        # A floor or a warm-up around this also draws outside of the range, where these losses do not count.
        counts = self._warp.inside(feedback.u)
        if feedback.counts is not None:
            counts = counts & feedback.counts
        signal = feedback.signal
        if isinstance(signal, DecreaseSignal):
            signal = signal.mapped(self._forward)
        return self.sampler.learn(replace(feedback, u=u, counts=counts, signal=signal))


def warm_up(sampler: TimestepSampler, steps: int) -> TimestepSampler:
    """Draw uniformly for the first `steps` optimizer steps; the sampler learns from the start."""
    return WarmUp(_uncorrected(sampler, "warm_up"), require.count("steps", steps))


class WarmUp(Wrapped):
    """`density` is that of the step last drawn for."""

    def __init__(self, sampler: TimestepSampler, steps: int) -> None:
        super().__init__(sampler, f"warm_up[{steps}]")
        self._steps, self._step = steps, 0
        self._uniform = Static(Uniform(), "uniform")

    def _now(self) -> TimestepSampler:
        return self._uniform if self._step < self._steps else self.sampler

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        self._step = tick.step
        return self._now().from_uniform(v, x0, tick)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._now().density(u, x0)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._now().cdf(u, x0)

    def state_dict(self) -> State:
        return {**super().state_dict(), "step": self._step}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._step = saved_state.count(state, "step", self)


def stratified(sampler: TimestepSampler) -> TimestepSampler:
    """Spread a sampler's draws evenly over batch, ranks and accumulation steps (Kingma et al. 2021, VDM)."""
    return Stratified(sampler)


_GOLDEN = 0.6180339887498949


class Stratified(Wrapped):
    """Replaces independent uniforms by one per stratum, before the inverse CDF.

    World x B strata are dealt to examples in turn from a random first one, so that each rank covers all of
    time and each example by itself is an ordinary draw. Micro-batches move through their strata by the
    golden ratio, which is even for any number of accumulation steps.
    """

    def __init__(self, sampler: TimestepSampler) -> None:
        super().__init__(sampler, "stratified")
        self.reference = sampler.reference

    def draw(self, x0: Tensor, tick: Tick) -> Draw:
        # Without the independent uniforms, which nothing would use.
        return self.sampler.from_uniform(_strata(len(x0), x0.device, tick), x0, tick)

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        return self.sampler.from_uniform(_strata(len(v), v.device, tick).to(v), x0, tick)


def _strata(examples: int, device: torch.device, tick: Tick) -> PerExample:
    """Uniforms [B], one in each of this rank's strata."""
    count = examples * tick.world
    # All micro-batches of a step start from the same point of each stratum.
    start = replace(tick, micro=0) if tick.micro else tick
    if count == 0:
        return start.uniform("strata", 0, device)
    first = tick.rank + tick.shared_key("first stratum") % count
    moved = _GOLDEN * tick.micro
    least, most = 2**-24, 1 - 2**-24
    if few(examples, device):
        offsets = uniforms_one_by_one(start.key("strata"), examples)
        places = range(first, first + count, tick.world)
        exact = (
            (place % count + (offset + moved) % 1) / count
            for place, offset in zip(places, offsets, strict=True)
        )
        return torch.tensor([min(max(v, least), most) for v in exact], dtype=torch.float32)
    offset = start.uniform("strata", examples, device)
    dtype = precise(offset)
    index = torch.arange(first, first + count, tick.world, device=device, dtype=dtype).remainder_(count)
    if tick.micro:
        offset = (offset.to(dtype) + moved) % 1
    return index.add_(offset).div_(count).float().clamp_(least, most)


_CHECKED_POINTS = 4096


def unbiased(sampler: TimestepSampler, reference: Density) -> TimestepSampler:
    """Multiply every loss by reference / density, so that its expectation is the reference's."""
    _uncorrected(sampler, "unbiased")
    u = centres(_CHECKED_POINTS)
    missing = u[~sampler.support(u) & (reference.pdf(u) > 0)]
    if len(missing):
        raise Unsupported(
            f"{sampler} never draws u from {float(missing.min()):.4f} to {float(missing.max()):.4f}, where "
            "the objective has weight: no correction can restore that. Mix it with a floor first, "
            "mix(sampler, uniform, 0.1), or leave the objective changed (no unbiased)."
        )
    return Unbiased(sampler, reference)


class Unbiased(Wrapped):
    """The outermost combinator, except for `stratified`."""

    def __init__(self, sampler: TimestepSampler, reference: Density) -> None:
        super().__init__(sampler, "unbiased")
        self._objective = self.reference = reference

    def draw(self, x0: Tensor, tick: Tick) -> Draw:
        return self._corrected(self.sampler.draw(x0, tick))

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        return self._corrected(self.sampler.from_uniform(v, x0, tick))

    def _corrected(self, drawn: Draw) -> Draw:
        correction = (-drawn.log_prob).exp()
        if not isinstance(self._objective, Uniform):
            correction = self._objective.pdf(drawn.u) * correction
        return Draw(drawn.u, drawn.log_prob, correction, drawn.action)
