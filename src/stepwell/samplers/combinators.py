"""What every combinator passes on to the sampler inside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Density, Uniform, centres
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe import ProbeSpec
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import PerExample, precise
from stepwell.core.tick import Tick
from stepwell.samplers.static import Static


class Wrapped(TimestepSampler):
    """A sampler around another; a combinator says only what it changes. `label` guards the state dict."""

    def __init__(self, sampler: TimestepSampler, label: str) -> None:
        self.sampler, self.label = sampler, label
        self.learns, self.learns_from_losses = sampler.learns, sampler.learns_from_losses

    def __repr__(self) -> str:
        return f"{self.label}({self.sampler!r})"

    @property
    def probe(self) -> ProbeSpec | None:
        return self.sampler.probe

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.sampler.density(u, x0)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.sampler.cdf(u, x0)

    def support(self, u: Tensor) -> Tensor:
        return self.sampler.support(u)

    def diagnostics(self) -> Mapping[str, Tensor]:
        return self.sampler.diagnostics()

    def learn(self, feedback: Feedback) -> Metrics:
        return self.sampler.learn(feedback)

    def state_dict(self) -> State:
        return {"kind": self.label, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.sampler.load_state_dict(require_kind(state, self.label)["sampler"])


def uncorrected(sampler: TimestepSampler, outer: str) -> TimestepSampler:
    """`sampler`, unless it corrects already: a change of the density outside would make that wrong."""
    if sampler.reference is not None:
        raise Unsupported(
            f"{outer}({sampler!r}) would change the density after it was corrected for: "
            f"put unbiased outside, as in unbiased({outer}(...), reference)."
        )
    return sampler


def mix(sampler: TimestepSampler, other: TimestepSampler, share: float) -> TimestepSampler:
    """Draw a `share` of the examples from `other`; only `sampler` learns."""
    return Mix(uncorrected(sampler, "mix"), uncorrected(other, "mix"), require.between("share", share, 0, 1))


def mix_uniform(sampler: TimestepSampler, share: float, parameter: str) -> TimestepSampler:
    """Draw a `share` of the examples uniformly; `parameter` is what users call the share."""
    return mix(sampler, Static(Uniform(), "uniform"), require.between(parameter, share, 0, 1))


def mix_reference(
    sampler: TimestepSampler, reference: Density, share: float, parameter: str
) -> TimestepSampler:
    """Draw a `share` of the examples from the objective's own density: no correction is above 1 / share."""
    return mix(sampler, Static(reference, "reference"), require.between(parameter, share, 0, 1))


class Mix(Wrapped):
    """One uniform does both jobs, so that stratified draws stay stratified in each part."""

    def __init__(self, sampler: TimestepSampler, other: TimestepSampler, share: float) -> None:
        super().__init__(sampler, f"mix[{share:g}]")
        self._other, self._share = other, share

    def __repr__(self) -> str:
        return f"mix({self.sampler!r}, {self._other!r}, {self._share:g})"

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        from_other = v < self._share
        # v given its side of `share` is uniform again; each sampler also sees the other's v, unused.
        rest = ((v - self._share) / max(1 - self._share, 1e-6)).clamp(2**-24, 1 - 2**-24)
        part = (v / max(self._share, 1e-6)).clamp(2**-24, 1 - 2**-24)
        one, two = self.sampler.from_uniform(rest, x0, tick), self._other.from_uniform(part, x0, tick)
        u = torch.where(from_other, two.u, one.u)
        return Draw(u, self.density(u, x0).log(), torch.ones_like(u), one.action)

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
        self._other.load_state_dict(state["other"])


_GOLDEN = 0.6180339887498949


def stratified(sampler: TimestepSampler) -> TimestepSampler:
    """Spread a sampler's draws evenly over the batch, the ranks and the accumulation steps."""
    return Stratified(sampler)


class Stratified(Wrapped):
    """Replaces independent uniforms by one per stratum, before the inverse CDF.

    World x B strata are dealt to examples in turn, starting anywhere, so that each rank covers all of
    time and each example is by itself an ordinary draw. Micro-batches move through their strata by
    the golden ratio, which is even for any number of accumulation steps: nobody has to know it.
    """

    def __init__(self, sampler: TimestepSampler) -> None:
        super().__init__(sampler, "stratified")
        self.reference = sampler.reference

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        return self.sampler.from_uniform(_strata(v, tick), x0, tick)


def _strata(v: PerExample, tick: Tick) -> PerExample:
    """Uniforms [B] like v, one in each of this rank's strata."""
    count = len(v) * tick.world
    if count == 0:
        return v
    first = tick.shared().key("first stratum") % count
    index = (torch.arange(len(v), device=v.device) * tick.world + tick.rank + first) % count
    # All micro-batches of a step start from the same place in each stratum.
    inside = replace(tick, micro=0).uniform("strata", len(v), v.device).to(precise(v))
    inside = (inside + _GOLDEN * tick.micro) % 1
    return ((index + inside) / count).to(v).clamp(2**-24, 1 - 2**-24)


_CHECKED_POINTS = 4096


def unbiased(sampler: TimestepSampler, reference: Density) -> TimestepSampler:
    """Correct every loss by reference / density, so that its expectation is the reference's."""
    uncorrected(sampler, "unbiased")
    u = centres(_CHECKED_POINTS)
    missing = u[~sampler.support(u) & (reference.pdf(u) > 0)]
    if len(missing):
        raise Unsupported(
            f"{sampler!r} never draws u from {float(missing.min()):.4f} to {float(missing.max()):.4f}, where "
            "the objective has weight: no correction can restore that. Mix it with a floor first, "
            "mix(sampler, uniform, 0.1), or leave the objective changed (no unbiased)."
        )
    return Unbiased(sampler, reference)


class Unbiased(Wrapped):
    """The outermost combinator, but for `stratified`."""

    def __init__(self, sampler: TimestepSampler, reference: Density) -> None:
        super().__init__(sampler, "unbiased")
        self._objective = self.reference = reference

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        drawn = self.sampler.from_uniform(v, x0, tick)
        correction = self._objective.pdf(drawn.u) * (-drawn.log_prob).exp()
        return Draw(drawn.u, drawn.log_prob, correction, drawn.action)


def warm_up(sampler: TimestepSampler, steps: int) -> TimestepSampler:
    """Draw uniformly for the first `steps` optimizer steps; the sampler learns from the start."""
    return WarmUp(uncorrected(sampler, "warm_up"), require.count("steps", steps))


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
        self._step = state["step"]
