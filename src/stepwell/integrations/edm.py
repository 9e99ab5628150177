"""EDM's loss with a pacer inside (Karras et al. 2022, Table 1), for `loss_kwargs` in place of EDMLoss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

import stepwell
from stepwell.core.sampler import State
from stepwell.core.tensors import per_example
from stepwell.pacer import CallOrderError
from stepwell.processes.edm import EdmProcess


class PacedEDMLoss:
    """loss_fn(net, images, labels, augment_pipe) -> losses [B, C, H, W], at noise levels of a sampler.

    The objective is that of EDMLoss with the same P_mean, P_std and sigma_data. EDM's loop builds the
    loss from plain options before it has an optimizer: `attach` adds network and optimizer.
    """

    def __init__(
        self,
        sampler: str = "neyman",
        P_mean: float = -1.2,  # noqa: N803
        P_std: float = 1.2,  # noqa: N803
        sigma_data: float = 0.5,
        weighting: str = "none",
        seed: int = 0,
    ) -> None:
        self._options = (sampler, P_mean, P_std, sigma_data, weighting, seed)
        self.process = EdmProcess(sigma_data=sigma_data, mean=P_mean, std=P_std)
        self.pacer: stepwell.Pacer | None = None
        self._pending_state: State | None = None

    def attach(self, network: nn.Module, optimizer: Any) -> Self:
        """Make the pacer of this network and attach it to the optimizer; once, before the loop."""
        if self.pacer is not None:
            raise CallOrderError(
                "this PacedEDMLoss is attached already: call loss_fn.attach(net, optimizer) once, before the "
                "loop; another run needs a loss of its own."
            )
        sampler, *_, weighting, seed = self._options
        loss_at = stepwell.loss_at.edm(network, process=self.process)
        pacer = stepwell.Pacer(sampler, self.process, weighting, loss_at=loss_at, seed=seed)
        if self._pending_state is not None:
            pacer.load_state_dict(self._pending_state)
        self.pacer, self._pending_state = pacer.attach(optimizer), None
        return self

    def __call__(
        self,
        net: Callable[..., Tensor],
        images: Tensor,
        labels: Tensor | None = None,
        augment_pipe: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Weighted losses [B, C, H, W] of images [B, C, H, W]; EDM's loop takes the sum."""
        if self.pacer is None:
            raise CallOrderError(
                "PacedEDMLoss was called before attach: write loss_fn.attach(net, optimizer) in "
                "training_loop, after the optimizer is made."
            )
        y, augment_labels = (images, None) if augment_pipe is None else augment_pipe(images)
        condition = {"class_labels": labels, "augment_labels": augment_labels}
        pace = self.pacer.draw(y, condition={key: one for key, one in condition.items() if one is not None})
        sigma, data = per_example(pace.sigma, y), self.process.sigma_data
        denoised = net(y + torch.randn_like(y) * sigma, sigma, labels, augment_labels=augment_labels)
        losses = (sigma**2 + data**2) / (sigma * data) ** 2 * (denoised - y) ** 2
        self.pacer.observe(losses.detach().flatten(1).mean(1))
        return losses * per_example(pace.weight, losses)

    def state_dict(self) -> State:
        """The pacer's state; empty before `attach`."""
        return {} if self.pacer is None else self.pacer.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken, before or after `attach`."""
        if self.pacer is None:
            self._pending_state = state or None
        else:
            self.pacer.load_state_dict(state)

    def __getstate__(self) -> State:
        # EDM's snapshots pickle the loss: options and state are kept, network and hooks are not.
        return {"options": self._options, "state": self.state_dict() or self._pending_state}

    def __setstate__(self, pickled: State) -> None:
        self.__init__(*pickled["options"])  # type: ignore[misc]
        self._pending_state = pickled["state"]
