"""A pacer as the schedule sampler of improved-diffusion, guided-diffusion and their descendants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.ranks import worker_group
from stepwell.core.sampler import State, pmf
from stepwell.core.tensors import PerExample
from stepwell.integrations.shared import as_examples, require_pacer
from stepwell.pacer import Pacer


class PacedScheduleSampler:
    """For TrainLoop's `schedule_sampler` (Nichol and Dhariwal 2021, resample.py).

    `loss_aware` is their class LossAwareSampler: TrainLoop reports losses to its instances only, so this
    class is registered as one. Samplers that do not learn from losses need none.
    """

    def __init__(self, pacer: Pacer, loss_aware: Any = None) -> None:
        self.pacer = require_pacer(pacer, "PacedScheduleSampler(pacer)")
        if pacer.process.timesteps is None:
            raise InvalidParameter(
                f"their timesteps are whole numbers, and {pacer.process} has none: make the Pacer for the "
                "diffusion that is trained, Pacer(name, diffusion)."
            )
        if loss_aware is not None:
            loss_aware.register(type(self))
        elif pacer.sampler.learns and pacer.sampler.learns_from_losses:
            raise InvalidParameter(
                f"{pacer.sampler} learns from losses, which TrainLoop reports to a LossAwareSampler only: "
                "write PacedScheduleSampler(pacer, loss_aware=LossAwareSampler), with the class from their "
                "resample.py."
            )

    def sample(
        self, batch: int | Tensor, device: Any = None, condition: Mapping[str, Any] | None = None
    ) -> tuple[PerExample, PerExample]:
        """Timesteps [B] and weights [B] for a micro-batch: its size, or itself if the sampler measures."""
        x0 = as_examples(self.pacer, batch, device, "schedule_sampler.sample(micro, device, micro_cond)")
        pace = self.pacer.draw(x0, condition=condition or None)
        where = x0.device if device is None else device
        return pace.timesteps.to(where), pace.weight.to(where)

    def update_with_local_losses(self, local_ts: Tensor, local_losses: PerExample) -> None:
        """The losses [B] of this rank's last micro-batch; the pacer gathers them itself."""
        self.pacer.observe(local_losses)

    def update_with_all_losses(self, ts: Sequence[int], losses: Sequence[float]) -> None:
        """The losses of all ranks' micro-batches, in rank order and of equal size: this rank's are used."""
        group = worker_group()
        self.pacer.observe(torch.as_tensor(losses).chunk(group.world)[group.rank])

    def weights(self) -> Any:
        """[T]: the probability of each timestep now, as a numpy array."""
        return pmf(self.pacer.sampler, self.pacer.process).cpu().numpy()

    def state_dict(self) -> State:
        """The pacer's state: their checkpoints have no place for it, so save it beside them."""
        return self.pacer.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self.pacer.load_state_dict(state)
