"""A pacer in Hugging Face's Trainer: `Trainer(callbacks=[PacerCallback(pacer)])`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stepwell.core.errors import StateMismatch
from stepwell.integrations.callbacks import require_draws, require_pacer
from stepwell.pacer import Pacer
from stepwell.runs.io import write_atomic

FILE = "stepwell.pt"
"""The pacer's state, in each checkpoint's folder."""


class PacerCallback(TrainerCallback):
    """Attaches the pacer, keeps its state in checkpoints and adds its metrics to the Trainer's logs.

    The turns are taken by torch's own hooks: `on_optimizer_step` also comes after steps that a gradient
    scaler skipped. `compute_loss` is called for evaluations too: draws outside of training steps are made
    and forgotten. `resume_from` is for checkpoints that lie elsewhere than in `output_dir`.
    """

    def __init__(self, pacer: Pacer, resume_from: str | Path | None = None) -> None:
        self.pacer = require_pacer(pacer, "PacerCallback(pacer)")
        self._resume_from = resume_from
        self._draws = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        # Detached first: with auto_find_batch_size, training begins anew without having ended.
        self.pacer.detach()
        self.pacer.eval()
        if state.global_step > 0:
            self._load(args, state)
        self._draws = self.pacer.draws
        self.pacer.attach(given["optimizer"])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.pacer.train()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.pacer.eval()
        require_draws(self.pacer, self._draws, "compute_loss (or the model's forward)")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.pacer.detach()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        """Training's logs, not those of an evaluation, have the newest metrics too."""
        if logs is None or "loss" not in logs:
            return
        told = {
            f"stepwell/{name}": one.item() for name, one in self.pacer.metrics.items() if one.numel() == 1
        }
        logs.update(told)
        if state.log_history:
            state.log_history[-1].update(told)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if state.is_world_process_zero:
            content = io.BytesIO()
            torch.save(self.pacer.state_dict(), content)
            write_atomic(_folder(args, state) / FILE, content.getvalue())

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        """The state that was saved with the checkpoint; one that the host has loaded itself is kept."""
        folder = _folder(args, state) if self._resume_from is None else Path(self._resume_from)
        if (folder / FILE).is_file():
            self.pacer.load_state_dict(torch.load(folder / FILE, map_location=args.device, weights_only=True))
        elif self.pacer.state_dict()["counter"]["step"] == 0:
            raise StateMismatch(
                f"training goes on at step {state.global_step}, and there is no {FILE} in {folder}: write "
                "PacerCallback(pacer, resume_from=FOLDER) with the folder of that checkpoint. Of one "
                "that has none, load only the weights of the model and begin a new run."
            )


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the Trainer keeps the checkpoint of this step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
