"""Does a host's `loss_at` add the noise that the process has at a time? Least squares on what it shows.

A network's input is k (a x0 + s eps), and a probe knows x0 and eps: two coefficients per example explain
all of it, or it is something else, and nothing is said. Of k nothing is assumed: the angle between the two
parts is compared. A reversed time, another schedule, another number of timesteps turn the angle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.shapes import PerExample
from stepwell.pacing.seen import listen, noisy

CALLS = 24
"""Calls that are looked at: a round over the strata, so that every part of time has been seen."""
UNEXPLAINED = 1e-3
"""The share of an input's square that rounding to bfloat16 may leave; noise of the host's own leaves more."""
TURN = 0.05
"""Radians between the angle that is found and the expected ones."""
_NONE = 1e-4


class Mix(NamedTuple):
    """input = a x0 + s eps, per example [B]."""

    a: PerExample
    s: PerExample
    unexplained: PerExample
    """The share of the input's square that is neither."""


class NoiseCheck:
    """Looks at the first calls of a loss, and refuses a network input of other noise than the process's."""

    def __init__(self, process: NoiseProcess, network: nn.Module) -> None:
        self._process, self._network = process, network
        self._calls = 0

    @contextmanager
    def watching(self, x0: Tensor, noise: Tensor, u: PerExample) -> Iterator[None]:
        """While the host computes its losses of x0 [B, ...] at u [B] with this noise."""
        if self._calls >= CALLS or x0.shape != noise.shape:
            yield
            return
        self._calls += 1
        shown: list[Tensor] = []
        handle = listen(self._network, shown.extend)
        try:
            yield
        finally:
            handle.remove()
        with torch.no_grad():
            self._judge(shown, x0, noise, u)

    def _judge(self, shown: list[Tensor], x0: Tensor, noise: Tensor, u: PerExample) -> None:
        """Complain of the first mix of both, unless another input is as it should be."""
        sizes = _size(x0), _size(noise)
        mixes = [mix(seen, x0, noise) for seen in noisy(shown, x0)]
        # A clean image may be shown beside the noisy one, or noise alone.
        mixes = [found for found in mixes if _is_a_mix(found, x0) and not _is_pure(found, sizes)]
        turns = [self._turn(found, sizes, u) for found in mixes]
        if not turns or any(float(turn.max()) <= TURN for turn in turns):
            return
        if any(self._has_right_noise(found, u) for found in mixes):
            return
        worst = int(turns[0].argmax())
        expected = self._process.scales(u)
        raise InvalidParameter(
            f"loss_at shows the network other noise than {self._process!r} has: at u = {float(u[worst]):.3f} "
            f"noise is {_share(mixes[0].a[worst], mixes[0].s[worst])} of the input's variance, and should be "
            f"{_share(expected[0][worst], expected[1][worst])}. u is 0 at data and 1 at noise: where the "
            "host's time runs the other way write 1 - u. Else give the Pacer the scheduler that adds the "
            "noise there, or stepwell.process_from(scheduler), and take the time from process.time(u)."
        )

    def _turn(self, found: Mix, sizes: tuple[Tensor, Tensor], u: PerExample) -> Tensor:
        """[B]: radians from the angles at u and one timestep around: some hosts round, some count from 1."""
        step = 0.0 if self._process.timesteps is None else 1 / self._process.timesteps
        around = [(u + by).clamp(0, 1 - 2**-24) for by in (-step, 0.0, step)]
        expected = torch.stack([_angle(*self._process.scales(at), *sizes) for at in around])
        angle = _angle(found.a, found.s, *sizes)
        return torch.maximum(expected.amin(0) - angle, angle - expected.amax(0))

    def _has_right_noise(self, found: Mix, u: PerExample) -> bool:
        """The data may be scaled inside loss_at (a VAE's factor): then the noise alone is as it should be."""
        s = self._process.scales(u)[1]
        scales = (torch.ones_like(u), self._process.input_scale(u))
        return any(torch.allclose(found.s.abs().to(s), k * s, rtol=TURN, atol=TURN / 4) for k in scales)


def mix(seen: Tensor, x0: Tensor, noise: Tensor) -> Mix:
    """Least squares of each example of `seen` [B, ...] on x0 and noise."""
    z, x, e = (tensor.detach().reshape(len(x0), -1).float() for tensor in (seen, x0, noise))
    xx, ee, xe = (x * x).sum(1), (e * e).sum(1), (x * e).sum(1)
    xz, ez, zz = (x * z).sum(1), (e * z).sum(1), (z * z).sum(1)
    determinant = xx * ee - xe * xe
    # An example that is all zero, or all noise, has no coefficient of its own, and needs none.
    apart = determinant > 1e-3 * xx * ee
    a = torch.where(apart, (xz * ee - ez * xe) / determinant, 0.0)
    s = torch.where(apart, (ez * xx - xz * xe) / determinant, ez / ee)
    left = (z - a[:, None] * x - s[:, None] * e).square().sum(1)
    return Mix(a, s, left / zz.clamp(min=1e-12))


def _is_a_mix(found: Mix, x0: Tensor) -> bool:
    """Whether two coefficients explain every example, where they could have failed to."""
    spare = len(x0) * (x0[0].numel() - 2)
    return spare >= 16 and bool((found.unexplained < UNEXPLAINED).all())


def _is_pure(found: Mix, sizes: tuple[Tensor, Tensor]) -> bool:
    parts = (found.a.abs() * sizes[0]).max(), (found.s.abs() * sizes[1]).max()
    return min(float(part) for part in parts) < _NONE


def _size(examples: Tensor) -> Tensor:
    return examples.detach().reshape(len(examples), -1).float().square().mean(1).sqrt()


def _angle(a: Tensor, s: Tensor, size: Tensor, noise_size: Tensor) -> Tensor:
    """0 is data, pi / 2 is noise: of the parts as large as they are, so that small ones do not matter."""
    return torch.atan2((s * noise_size).abs().float(), (a * size).abs().float())


def _share(a: Tensor, s: Tensor) -> str:
    """The noise's share of the variance, of data with variance 1."""
    share = float(s * s / (a * a + s * s))
    return f"{share:.1%}"
