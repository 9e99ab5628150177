"""A pacer in Lightning's Trainer: `Trainer(callbacks=[PacerCallback(pacer)])`, of either of its packages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepwell.core.errors import InvalidParameter
from stepwell.integrations.callbacks import require_draws, require_pacer
from stepwell.pacer import Pacer

if TYPE_CHECKING:
    from lightning.pytorch import Callback
elif "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    # The two packages have classes of their own: the one that the host uses.
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        from pytorch_lightning import Callback


class PacerCallback(Callback):
    """Takes the pacer's turns, keeps its state in checkpoints and logs its metrics.

    Lightning computes losses inside the optimizer's step: `on_before_optimizer_step` is the turn before, and
    torch's own hook the one after. Draws outside of training batches (validation, its sanity check, test) are
    made and forgotten. `optimizers` are the places in `trainer.optimizers` that step for the diffusion's
    loss; without it, all do.
    """

    def __init__(self, pacer: Pacer, optimizers: Sequence[int] | None = None) -> None:
        self.pacer = require_pacer(pacer, "PacerCallback(pacer)")
        self._places = optimizers
        self._ours: list[Any] = []
        self._stage: str | None = None
        self._draws = self._logged = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._stage = stage
        self.pacer.eval()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        found = list(trainer.optimizers)
        places = range(len(found)) if self._places is None else self._places
        if any(not 0 <= place < len(found) for place in places) or not found:
            raise InvalidParameter(
                f"optimizers={list(places)}: this module configures {len(found)}, counted from 0."
            )
        self._ours = [found[place] for place in places]
        self._draws = self.pacer.draws
        self.pacer.attach(*self._ours, closure=True)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.pacer.train()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if any(optimizer is one for one in self._ours):
            self.pacer.before_update(optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.pacer.eval()
        require_draws(self.pacer, self._draws, "training_step")
        # To the loggers, and when they are due: log_dict would cost a small model more than the pacer does.
        if trainer.global_step > self._logged and trainer.global_step % trainer.log_every_n_steps == 0:
            self._logged = trainer.global_step
            self._log(trainer)

    def _log(self, trainer: Any) -> None:
        metrics = self.pacer.metrics.items() if trainer.loggers else ()
        told = {f"stepwell/{name}": one.item() for name, one in metrics if one.numel() == 1}
        for logger in trainer.loggers:
            logger.log_metrics(told, step=trainer.global_step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.pacer.detach()
        self.pacer.train()
        self._ours, self._stage = [], None

    def state_dict(self) -> dict[str, Any]:
        return self.pacer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # A test of the best checkpoint loads callbacks too: it is no reason to forget what was learned since.
        if self._stage in (None, "fit"):
            self.pacer.load_state_dict(state_dict)
