"""Draws that change while training runs: `over_steps` has a sampler for each stage of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.density import Density, centres
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe import ProbeSpec
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.combinators import Mix

BLENDS = ("switch", "linear")


def over_steps(stages: Mapping[int, TimestepSampler], blend: str = "switch") -> TimestepSampler:
    """Draw from each stage's sampler from its optimizer step on; the first stage begins at step 0.

    `switch` changes at the step; `linear` moves draws over from one stage to the next between their steps.
    Samplers that learn do so all the time, also from other stages' draws.
    """
    require.one_of("blend", blend, BLENDS)
    if not isinstance(stages, Mapping) or not stages:
        raise InvalidParameter(f"over_steps needs stages {{step: sampler}}, not {stages!r}.")
    for step in stages:
        require.count("the step of a stage", step, least=0)
    ordered = dict(sorted(stages.items()))
    if 0 not in ordered:
        raise InvalidParameter(
            f"the first stage begins at step {next(iter(ordered))}, and nothing says what to draw before: "
            "add a stage at step 0."
        )
    references = [sampler.reference for sampler in ordered.values() if sampler.reference is not None]
    if blend == "linear" and references:
        raise Unsupported(
            "blend=linear mixes the draws of two stages, whose corrections would then be wrong: give the "
            "stages unbiased=false, and over_steps unbiased=true if the objective shall be kept."
        )
    if references:
        _require_one_objective(ordered, references[0])
    if sum(sampler.probe is not None for sampler in ordered.values()) > 1:
        raise Unsupported("two stages measure gradients, and a run has one probe: leave one of them.")
    return OverSteps(ordered, blend, references[0] if references else None)


def _require_one_objective(stages: Mapping[int, TimestepSampler], reference: Density) -> None:
    """Where one stage is corrected, the others must be too, or draw the reference itself."""
    u = centres(1000)
    for step, sampler in stages.items():
        same = sampler.reference is not None or torch.allclose(sampler.density(u), reference.pdf(u))
        if not same:
            raise Unsupported(
                f"the stage at step {step} changes the objective, and another one corrects its draws so that "
                "the objective is kept: give all of them unbiased=true, or all unbiased=false."
            )


class OverSteps(TimestepSampler):
    """`density` is that of the step last drawn for."""

    def __init__(
        self, stages: dict[int, TimestepSampler], blend: str, reference: Density | None = None
    ) -> None:
        self._steps, self._samplers, self._blend = list(stages), list(stages.values()), blend
        self._step, self.reference = 0, reference
        self.label = f"over_steps[{blend}, {', '.join(map(str, self._steps))}]"
        self.learns = any(sampler.learns for sampler in self._samplers)
        self.learns_from_losses = any(one.learns and one.learns_from_losses for one in self._samplers)

    def __repr__(self) -> str:
        inside = ", ".join(f"{step}: {one!r}" for step, one in self._stages())
        return f"over_steps({{{inside}}}, {self._blend})"

    def _stages(self) -> list[tuple[int, TimestepSampler]]:
        return list(zip(self._steps, self._samplers, strict=True))

    @property
    def probe(self) -> ProbeSpec | None:
        specs = (sampler.probe for sampler in self._samplers)
        return next((spec for spec in specs if spec is not None), None)

    def _now(self) -> TimestepSampler:
        """The sampler of the current step."""
        place = bisect_right(self._steps, self._step) - 1
        own, last = self._samplers[place], place == len(self._steps) - 1
        if self._blend == "switch" or last:
            return own
        since, until = self._steps[place], self._steps[place + 1]
        return Mix(own, self._samplers[place + 1], (self._step - since) / (until - since))

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        self._step = tick.step
        return self._now().from_uniform(v, x0, tick)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._now().density(u, x0)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._now().cdf(u, x0)

    def support(self, u: Tensor) -> Tensor:
        """What every stage can draw: a correction needs it at all times."""
        return torch.stack([sampler.support(u) for sampler in self._samplers]).all(0)

    def diagnostics(self) -> Mapping[str, Tensor]:
        return self._now().diagnostics()

    def learn(self, feedback: Feedback) -> Metrics:
        metrics: dict[str, Tensor] = {}
        for sampler in self._samplers:
            if sampler.learns:
                metrics |= sampler.learn(feedback)
        return metrics

    def state_dict(self) -> State:
        stages = {f"from {step}": one.state_dict() for step, one in self._stages()}
        return {"kind": self.label, "step": self._step, **stages}

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self.label)
        for step, sampler in self._stages():
            sampler.load_state_dict(saved_state.part(state, f"from {step}", self))
        self._step = saved_state.count(state, "step", self)
