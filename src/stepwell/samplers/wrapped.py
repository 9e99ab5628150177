"""What every combinator passes on to the sampler inside it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from stepwell.core.errors import Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe_spec import ProbeSpec
from stepwell.core.sampler import Metrics, State, TimestepSampler, matching


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

    def reaches(self, u: Tensor) -> Tensor:
        return self.sampler.reaches(u)

    def portrait(self) -> Mapping[str, Tensor]:
        return self.sampler.portrait()

    def learn(self, feedback: Feedback) -> Metrics:
        return self.sampler.learn(feedback)

    def state_dict(self) -> State:
        return {"kind": self.label, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.sampler.load_state_dict(matching(state, self.label)["sampler"])


def uncorrected(sampler: TimestepSampler, outer: str) -> TimestepSampler:
    """`sampler`, unless it corrects already: a change of the density outside would make that wrong."""
    if sampler.reference is not None:
        raise Unsupported(
            f"{outer}({sampler!r}) would change the density after it was corrected for: "
            f"put unbiased outside, as in unbiased({outer}(...), reference)."
        )
    return sampler
