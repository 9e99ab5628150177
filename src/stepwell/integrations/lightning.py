"""A pacer in Lightning's Trainer, of either package: `Trainer(callbacks=[PacerCallback(pacer)])`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepwell.core.errors import InvalidParameter
from stepwell.integrations.shared import logged_metrics, require_draws, require_pacer
from stepwell.pacer import Pacer

if TYPE_CHECKING:
    from lightning.pytorch import Callback
elif "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    # Each package has a Callback of its own: take the one that the host imported.
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        from pytorch_lightning import Callback


class PacerCallback(Callback):
    """Attaches the pacer, keeps its state in checkpoints and logs its metrics.

    Lightning computes losses inside the optimizer's step, so `before_update` is called from
    `on_before_optimizer_step`. Draws outside of training batches (validation, its sanity check, test) are not
    counted. `optimizers` are indices in `trainer.optimizers` of those that step for the diffusion's loss;
    without it, all do.
    """

    def __init__(self, pacer: Pacer, optimizers: Sequence[int] | None = None) -> None:
        self.pacer = require_pacer(pacer, "PacerCallback(pacer)")
        self._indices = optimizers
        self._optimizers: list[Any] = []
        self._stage: str | None = None
        self._draws = self._logged = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._stage = stage
        self.pacer.eval()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        count = len(trainer.optimizers)
        indices = range(count) if self._indices is None else self._indices
        if any(not 0 <= index < count for index in indices) or not count:
            raise InvalidParameter(
                f"optimizers={list(indices)}: this module configures {count} optimizers, counted from 0."
            )
        self._optimizers = [trainer.optimizers[index] for index in indices]
        self._draws = self.pacer.draws
        self.pacer.attach(*self._optimizers, closure=True)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.pacer.train()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if any(optimizer is one for one in self._optimizers):
            self.pacer.before_update(optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.pacer.eval()
        require_draws(self.pacer, self._draws, "training_step")
        # To the loggers, and when they are due: log_dict would cost a small model more than the pacer does.
        step = trainer.global_step
        if trainer.loggers and step > self._logged and step % trainer.log_every_n_steps == 0:
            self._logged, metrics = step, logged_metrics(self.pacer)
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.pacer.detach()
        self.pacer.train()
        self._optimizers, self._stage = [], None

    def state_dict(self) -> dict[str, Any]:
        return self.pacer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Testing the best checkpoint loads callbacks too, and must not undo what was learned since.
        if self._stage in (None, "fit"):
            self.pacer.load_state_dict(state_dict)
