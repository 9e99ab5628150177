"""What a network is shown: the tensors among its inputs that may be the noisy examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample
from stepwell.loss_at import bare


def listen(network: nn.Module, heard: Callable[[list[Tensor]], None]) -> RemovableHandle:
    """Call `heard` with the tensors of every forward pass, before it; not while torch.compile traces."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            heard([given for given in (*args, *kwargs.values()) if isinstance(given, Tensor)])

    # On the bare module: a DDP wrapper is not what a probe calls.
    return bare(network).register_forward_pre_hook(hook, with_kwargs=True)


def noisy(inputs: list[Tensor], x0: Tensor) -> list[Tensor]:
    """Those shaped as x0 [B, C, ...], and of those with more channels the first C (masks come behind)."""
    found = [given for given in inputs if given.is_floating_point() and _fits(given, x0)]
    return [given.detach()[:, : x0.shape[1]] for given in found]


def _fits(given: Tensor, x0: Tensor) -> bool:
    if given.shape == x0.shape:
        return x0.dim() > 1
    alike = given.dim() == x0.dim() > 2 and len(given) == len(x0) and given.shape[2:] == x0.shape[2:]
    return alike and given.shape[1] > x0.shape[1]


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
