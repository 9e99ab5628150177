"""Is the network shown the noise that was drawn? Two checks of its inputs, in the first steps of a run.

Inputs that are not a mix of x0 and noise (other coordinates, an encoder inside) are not judged.
"""

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
from stepwell.loss_at import unwrap_network
from stepwell.pacer.network_search import NetworkSearch

LOOP_EXAMPLES = 128
"""Examples of the host's loop that are checked, before one decision."""
SEPARATION = 0.5
"""Radians between the angles at u and at a mistaken time; examples with less say nothing."""
LOOP_TOLERANCE = 0.12
"""Tolerance of the angle, RMS, in radians, for examples with many elements."""

PROBE_CALLS = 24
"""Calls of `loss_at` that are checked: a round over the strata, so that all of time is covered."""
PROBE_TOLERANCE = 0.05
"""Tolerance of the angle, in radians."""
MAX_RESIDUAL = 1e-3
"""The share of an input's square that rounding to bfloat16 may leave unexplained."""
_ABSENT = 1e-4


def _reversed(process: NoiseProcess, u: PerExample) -> PerExample:
    return 1 - u


def _indexed(process: NoiseProcess, u: PerExample) -> PerExample:
    """The time of a scheduler's falling table at position `timesteps`, of which a shift makes another one."""
    return u if process.timesteps is None else 1 - (process.time(u).float() + 0.5) / process.timesteps


MISTAKES: dict[str, Callable[[NoiseProcess, PerExample], PerExample]] = {
    "the network is shown the noise of 1 - u where the Pacer drew u, in all of the first examples: this host "
    "counts time from noise to data. Index scheduler.timesteps, which fall, with pace.indices; give networks "
    "pace.timesteps; where a flow's time 0 is noise (SiT) write 1 - pace.sigma.": _reversed,
    "the network is shown the noise of scheduler.sigmas[pace.timesteps] in all of the first examples: "
    "timesteps are what the network is given, not positions. Write scheduler.sigmas[pace.indices], or take "
    "pace.sigma itself.": _indexed,
}
"""What to say if another time than u explains the inputs, and which time that is."""


class LoopCheck:
    """Looks for mistaken times in the host's loop: at the first forward pass after each of the first draws.

    The host's noise is unknown there, so only `MISTAKES` can be found: another time explains the inputs, not
    u. A network that was not given is looked for in attached loops, where updates follow draws.
    """

    def __init__(self, process: NoiseProcess, network: nn.Module | None) -> None:
        self._process, self._network = process, network
        self._search = NetworkSearch()
        self.attached = False
        self._expected: tuple[Tensor, PerExample] | None = None
        self._errors: list[Tensor] = []
        """[mistakes, 3, B] of every batch."""
        self._remaining = LOOP_EXAMPLES
        self._handle: RemovableHandle | None = None

    def expect(self, x0: Tensor, u: PerExample) -> None:
        """The host is about to train on x0 [B, ...] at u [B]."""
        self.cancel()
        if self._remaining <= 0:
            return
        network = self._search.found if self._network is None else self._network
        if network is None and self.attached:
            self._search.begin(x0)
        elif network is not None:
            self._expected = (x0.detach(), u)
            # For one forward pass only: hosts copy and pickle their networks.
            self._handle = on_forward(network, self._check)

    def cancel(self) -> None:
        """The next forward pass is not the host's training."""
        self._search.end()
        self._expected = None
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def _check(self, inputs: list[Tensor]) -> None:
        if self._expected is None or not torch.is_grad_enabled():
            return
        x0, u = self._expected
        self.cancel()
        candidates = noisy_inputs(inputs, x0)
        if not candidates and self._network is None:
            self._search.reject()
            return
        self._remaining -= len(x0)
        if len(candidates) != 1 or x0[0].numel() < 16:
            # Other coordinates than x0's, or several inputs of its shape: nothing can be said.
            self._remaining = 0
            return
        with torch.no_grad():
            self._errors.append(self._angle_errors(candidates[0], x0, u))
        if self._remaining <= 0:
            # The part along x0 is known to 1 / sqrt(D) only.
            tolerance = LOOP_TOLERANCE**2 + 1 / x0[0].numel()
            for message, errors in zip(MISTAKES, torch.cat(self._errors, dim=2).cpu(), strict=True):
                if _explains(errors, tolerance):
                    raise InvalidParameter(message)

    def _angle_errors(self, shown: Tensor, x0: Tensor, u: PerExample) -> Tensor:
        """[mistakes, 3, B]: squared radians from the angles at u and at the mistake, and which is noisier.

        The last is 0 where the two are too close to tell apart.
        """
        z, x = (tensor.reshape(len(x0), -1).float() for tensor in (shown, x0))
        size, along = x.square().mean(1).sqrt(), (x * z).mean(1) / x.square().mean(1).clamp(min=1e-12)
        rest = (z - along[:, None] * x).square().mean(1).sqrt()
        angle = _angle(along, rest, size)
        at_u = _angle(*self._process.scales(u), size)
        errors = []
        for mistaken in MISTAKES.values():
            time = mistaken(self._process, u).clamp(0, 1 - 2**-24)
            other = _angle(*self._process.scales(time), size)
            side = torch.where((at_u - other).abs() > SEPARATION, torch.sign(at_u - other), 0.0)
            errors.append(torch.stack([(angle - at_u).square(), (angle - other).square(), side]))
        return torch.stack(errors)


def _explains(errors: Tensor, tolerance: float) -> bool:
    """Whether the mistaken time explains what was seen, and u does not; errors [3, B] of one mistake."""
    at_u, at_other, side = errors
    # Both ends of time must agree: an input of noise alone would be explained by one of them.
    return not any(
        end.sum() < 2 or at_other[end].mean() > tolerance or at_u[end].mean() < 4 * tolerance
        for end in (side < 0, side > 0)
    )


class Mix(NamedTuple):
    """input = a x0 + s eps, per example [B]."""

    a: PerExample
    s: PerExample
    residual: PerExample
    """The share of the input's square that is neither."""


class ProbeCheck:
    """Compares the network's inputs inside `loss_at`, where x0 and noise are known, with the process.

    Without a network it does nothing.
    """

    def __init__(self, process: NoiseProcess, network: nn.Module | None) -> None:
        self._process, self._network = process, network
        self._calls = 0

    @contextmanager
    def during(self, x0: Tensor, noise: Tensor, u: PerExample) -> Iterator[None]:
        """Check the forward passes while the host computes losses of x0 [B, ...] at u [B] with this noise."""
        if self._network is None or self._calls >= PROBE_CALLS or x0.shape != noise.shape:
            yield
            return
        self._calls += 1
        shown: list[Tensor] = []
        handle = on_forward(self._network, shown.extend)
        try:
            yield
        finally:
            handle.remove()
        with torch.no_grad():
            self._compare(shown, x0, noise, u)

    def _compare(self, shown: list[Tensor], x0: Tensor, noise: Tensor, u: PerExample) -> None:
        """Refuse a mix of x0 and noise with the wrong angle, unless another input has the right one."""
        sizes = _size(x0), _size(noise)
        mixes = [least_squares(one, x0, noise) for one in noisy_inputs(shown, x0)]
        # A clean image may be shown beside the noisy one, or noise alone.
        mixes = [mix for mix in mixes if _is_mix(mix, x0) and not _is_pure(mix, sizes)]
        errors = [self._angle_error(mix, sizes, u) for mix in mixes]
        if not errors or any(float(error.max()) <= PROBE_TOLERANCE for error in errors):
            return
        if any(self._has_right_noise(mix, u) for mix in mixes):
            return
        worst, (a, s) = int(errors[0].argmax()), self._process.scales(u)
        raise InvalidParameter(
            f"loss_at shows the network other noise than {self._process} has: at u = {float(u[worst]):.3f} "
            f"noise is {_noise_share(mixes[0].a[worst], mixes[0].s[worst])} of the input's variance, and "
            f"should be {_noise_share(a[worst], s[worst])}. u is 0 at data and 1 at noise: where the host's "
            "time runs the other way write 1 - u. Else give the Pacer the scheduler that adds the noise "
            "there, or stepwell.process_from(scheduler), and take the time from process.time(u)."
        )

    def _angle_error(self, mix: Mix, sizes: tuple[Tensor, Tensor], u: PerExample) -> Tensor:
        """[B]: radians off the angles within one timestep of u: some hosts round, some count from 1."""
        step = 0.0 if self._process.timesteps is None else 1 / self._process.timesteps
        around = [(u + by).clamp(0, 1 - 2**-24) for by in (-step, 0.0, step)]
        expected = torch.stack([_angle(*self._process.scales(time), *sizes) for time in around])
        angle = _angle(mix.a, mix.s, *sizes)
        return torch.maximum(expected.amin(0) - angle, angle - expected.amax(0))

    def _has_right_noise(self, mix: Mix, u: PerExample) -> bool:
        """Whether the noise alone is right: the data may be scaled inside loss_at (a VAE's factor)."""
        s = self._process.scales(u)[1]
        scales = (torch.ones_like(u), self._process.input_scale(u))
        rtol, atol = PROBE_TOLERANCE, PROBE_TOLERANCE / 4
        return any(torch.allclose(mix.s.abs().to(s), k * s, rtol=rtol, atol=atol) for k in scales)


def on_forward(network: nn.Module, call: Callable[[list[Tensor]], None]) -> RemovableHandle:
    """Call with the tensors among the inputs before each forward pass, except while torch.compile traces."""

    # On the unwrapped module: probes do not call the DDP wrapper.
    return unwrap_network(network).register_forward_pre_hook(_InputHook(call), with_kwargs=True)


class _InputHook:
    """A hook for one network only: in a copy of it, such as an EMA's, and in a file it does nothing."""

    def __init__(self, call: Callable[[list[Tensor]], None] | None = None) -> None:
        self._call = call

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._call is not None and not torch.compiler.is_compiling():
            self._call([value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)])

    def __reduce__(self) -> tuple[type[_InputHook], tuple[()]]:
        return _InputHook, ()


def noisy_inputs(inputs: list[Tensor], x0: Tensor) -> list[Tensor]:
    """Inputs shaped as x0 [B, C, ...]; of those with more channels the first C (masks come behind)."""
    return [one.detach()[:, : x0.shape[1]] for one in inputs if one.is_floating_point() and _fits(one, x0)]


def _fits(one: Tensor, x0: Tensor) -> bool:
    if one.shape == x0.shape:
        return x0.dim() > 1
    alike = one.dim() == x0.dim() > 2 and len(one) == len(x0) and one.shape[2:] == x0.shape[2:]
    return alike and one.shape[1] > x0.shape[1]


def least_squares(shown: Tensor, x0: Tensor, noise: Tensor) -> Mix:
    """How much of x0 and of the noise each example of `shown` [B, ...] has."""
    z, x, e = (tensor.detach().reshape(len(x0), -1).float() for tensor in (shown, x0, noise))
    xx, ee, xe = (x * x).sum(1), (e * e).sum(1), (x * e).sum(1)
    xz, ez, zz = (x * z).sum(1), (e * z).sum(1), (z * z).sum(1)
    determinant = xx * ee - xe * xe
    # An example that is all zero, or all noise, has no coefficient of its own, and needs none.
    independent = determinant > 1e-3 * xx * ee
    a = torch.where(independent, (xz * ee - ez * xe) / determinant, 0.0)
    s = torch.where(independent, (ez * xx - xz * xe) / determinant, ez / ee)
    rest = (z - a[:, None] * x - s[:, None] * e).square().sum(1)
    return Mix(a, s, rest / zz.clamp(min=1e-12))


def _is_mix(mix: Mix, x0: Tensor) -> bool:
    """Whether two coefficients explain every example, where they could have failed to."""
    spare = len(x0) * (x0[0].numel() - 2)
    return spare >= 16 and bool((mix.residual < MAX_RESIDUAL).all())


def _is_pure(mix: Mix, sizes: tuple[Tensor, Tensor]) -> bool:
    """Whether it is x0 alone or noise alone."""
    parts = (mix.a.abs() * sizes[0]).max(), (mix.s.abs() * sizes[1]).max()
    return min(float(part) for part in parts) < _ABSENT


def _size(examples: Tensor) -> Tensor:
    return examples.detach().reshape(len(examples), -1).float().square().mean(1).sqrt()


def _angle(a: Tensor, s: Tensor, size: Tensor, noise_size: Tensor | float = 1.0) -> Tensor:
    """0 is data, pi / 2 is noise, of both parts in their real size: a scaled input has the same angle."""
    return torch.atan2((s * noise_size).abs().float(), (a * size).abs().float())


def _noise_share(a: Tensor, s: Tensor) -> str:
    """The noise's share of the variance, for data with variance 1."""
    return f"{float(s * s / (a * a + s * s)):.1%}"
