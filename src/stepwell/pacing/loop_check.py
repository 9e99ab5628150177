"""Does a host's own loop run time the other way? Seen from what the network is shown after a draw.

A loop's noise is not known, so an input tells less than a probe's: its part along x0, and the size of the
rest. That is enough for the one mistake that loops make, timesteps that are counted from the noise. It is
said only where the reversed time explains what was seen, and the drawn one does not: an input that has
nothing to do with x0 (another image, a latent of it) is explained by neither.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.shapes import PerExample
from stepwell.pacing.seen import listen, noisy

EXAMPLES = 128
"""Examples that are looked at, before it is decided once."""
APART = 0.5
"""Radians between the angles at u and 1 - u: examples in the middle of time tell nothing."""
NEAR = 0.12
"""Radians, root mean square, within which a time explains what was seen of examples with many numbers."""


class LoopCheck:
    """Listens to the first forward pass after each of the first draws."""

    def __init__(self, process: NoiseProcess, network: nn.Module) -> None:
        self._process, self._network = process, network
        self._drawn: tuple[Tensor, PerExample] | None = None
        self._found: list[Tensor] = []
        self._wanted = EXAMPLES
        self._handle: RemovableHandle | None = None

    def drew(self, x0: Tensor, u: PerExample) -> None:
        """The host is about to train on x0 [B, ...] at u [B]."""
        self.forget()
        if self._wanted > 0:
            self._drawn = (x0.detach(), u)
            # Not for longer than a forward pass: hosts copy and pickle their networks.
            self._handle = listen(self._network, self._hear)

    def forget(self) -> None:
        """What comes now is a probe's."""
        self._drawn = None
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def _hear(self, inputs: list[Tensor]) -> None:
        if self._drawn is None or not torch.is_grad_enabled():
            return
        x0, u = self._drawn
        self.forget()
        self._wanted -= len(x0)
        candidates = noisy(inputs, x0)
        if len(candidates) != 1 or x0[0].numel() < 16:
            # Of other coordinates than x0's, or of several inputs alike, nothing is known.
            self._wanted = 0
            return
        with torch.no_grad():
            self._found.append(self._errors(candidates[0], x0, u))
        if self._wanted <= 0:
            # The part along x0 is known to 1 / sqrt(D) only.
            self._decide(torch.cat(self._found, dim=1), near=NEAR**2 + 1 / x0[0].numel())

    def _errors(self, seen: Tensor, x0: Tensor, u: PerExample) -> Tensor:
        """[3, B]: squared radians from the angles at u and at 1 - u, and which is more noise (0: neither)."""
        z, x = (tensor.reshape(len(x0), -1).float() for tensor in (seen, x0))
        size, along = x.square().mean(1).sqrt(), (x * z).mean(1) / x.square().mean(1).clamp(min=1e-12)
        rest = (z - along[:, None] * x).square().mean(1).sqrt()
        angle = torch.atan2(rest, along.abs() * size)
        straight, reversed_ = (
            torch.atan2(s.float(), a.float() * size)
            for a, s in (self._process.scales(at) for at in (u, (1 - u).clamp(0, 1 - 2**-24)))
        )
        side = torch.where((straight - reversed_).abs() > APART, torch.sign(straight - reversed_), 0.0)
        return torch.stack([(angle - straight).square(), (angle - reversed_).square(), side])

    def _decide(self, found: Tensor, near: float) -> None:
        straight, reversed_, side = found.cpu()
        # Both ends of time must say it: an input of noise alone would be explained by one of them.
        for end in (side < 0, side > 0):
            if end.sum() < 2 or reversed_[end].mean() > near or straight[end].mean() < 4 * near:
                return
        raise InvalidParameter(
            "the network is shown the noise of 1 - u where the Pacer drew u, in all of the first examples: "
            "this host counts time from noise to data. Index scheduler.timesteps, which fall, with "
            "pace.indices; give networks pace.timesteps; where a flow's time 0 is noise (SiT) write "
            "1 - pace.sigma."
        )
