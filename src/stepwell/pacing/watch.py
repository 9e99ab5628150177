"""The host's `loss_at`, called as the host would call it, and looked at when it answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from stepwell.core.agreement import agree
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.shapes import PerExample
from stepwell.pacing.noise_check import NoiseCheck

if TYPE_CHECKING:
    from stepwell.probes.view import LossAt

_EXAMPLE = "as in (output - target).square().flatten(1).mean(1)"


class WatchedLoss:
    """Losses for probes: under the autocast of the host's forward pass, with nothing of it changed."""

    def __init__(self, loss_at: LossAt, network: nn.Module | None, process: NoiseProcess) -> None:
        self._loss_at = loss_at
        self._network = network
        self._check = None if network is None else NoiseCheck(process, network)
        self._autocast: torch.dtype | None = None

    def notice(self, device: torch.device) -> None:
        """Keep the autocast that is on: the optimizer is often stepped outside of it."""
        kind = device.type
        if torch.is_autocast_enabled(kind):
            self._autocast = torch.get_autocast_dtype(kind)

    def __call__(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        """The plain losses [B] of examples x0 [B, ...] at times u [B]."""
        if torch.is_inference_mode_enabled():
            raise Unsupported(
                "inference_mode is on, where no gradient can be taken: step the optimizer outside of it."
            )
        self.notice(x0.device)
        watching = nullcontext() if self._check is None else self._check.watching(x0, noise, u)
        with self._casting(x0.device), statistics_kept(self._network), watching:
            losses = self._loss_at(x0, noise, u, condition)
        if not isinstance(losses, Tensor) or losses.shape != u.shape:
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidParameter(
                f"loss_at must return one loss per example, {tuple(u.shape)}, not {found}: take the mean "
                f"over each example only, {_EXAMPLE}."
            )
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise Unsupported(
                "what loss_at returns carries no gradient: let it call the network that is trained, without "
                "no_grad, detach or item."
            )
        return losses

    def _casting(self, device: torch.device) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        # Without its cache: inside the host's own autocast that has the weights from before the update.
        return torch.autocast(device.type, self._autocast, cache_enabled=False)


@contextmanager
def statistics_kept(network: nn.Module | None) -> Iterator[None]:
    """Batch normalisation counts what training shows it, and nothing that a probe does."""
    norms = [] if network is None else [m for m in network.modules() if isinstance(m, _NormBase)]
    kept = [(norm, dict(norm._buffers)) for norm in norms if norm.training]
    for norm, buffers in kept:
        # Copies take the part of the buffers: writing the old values back would spoil a backward pass.
        norm._buffers.update({name: None if b is None else b.clone() for name, b in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in kept:
            norm._buffers.update(buffers)


def require_agreement(process: NoiseProcess, loss_at: Any) -> None:
    """A ready-made `loss_at` knows its process: another one would measure at other noise."""
    other = getattr(loss_at, "process", None)
    if isinstance(other, NoiseProcess) and other is not process and not agree(process, other):
        raise InvalidParameter(
            f"loss_at was made for {other!r}, the Pacer for {process!r}: give both the same scheduler (its "
            "number of timesteps, its prediction), or the Pacer loss_at.process."
        )
