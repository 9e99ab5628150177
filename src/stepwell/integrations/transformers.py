"""A pacer in Hugging Face's Trainer: `Trainer(callbacks=[PacerCallback(pacer)])`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stepwell.core.errors import StateMismatch
from stepwell.integrations.shared import logged_metrics, require_draws, require_pacer
from stepwell.pacer import Pacer
from stepwell.runs.io import write_atomic

FILE = "stepwell.pt"
"""The pacer's state, in each checkpoint's folder."""


class PacerCallback(TrainerCallback):
    """Attaches the pacer, keeps its state in checkpoints and adds its metrics to the Trainer's logs.

    It uses torch's optimizer hooks: `on_optimizer_step` is called after steps that a gradient scaler skipped
    too. `compute_loss` is called for evaluations too: draws outside of training steps are not counted.
    `resume_from` is for checkpoints elsewhere than in `output_dir`.
    """

    def __init__(self, pacer: Pacer, resume_from: str | Path | None = None) -> None:
        self.pacer = require_pacer(pacer, "PacerCallback(pacer)")
        self._resume_from = resume_from
        self._draws = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Detach first: with auto_find_batch_size, training begins again without having ended.
        self.pacer.detach()
        self.pacer.eval()
        if state.global_step > 0:
            self._load(args, state)
        self._draws = self.pacer.draws
        self.pacer.attach(kwargs["optimizer"])

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.pacer.train()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.pacer.eval()
        require_draws(self.pacer, self._draws, "compute_loss (or the model's forward)")

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.pacer.detach()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the newest metrics to the logs of training, not to those of an evaluation."""
        if logs is None or "loss" not in logs:
            return
        metrics = logged_metrics(self.pacer)
        logs.update(metrics)
        if state.log_history:
            state.log_history[-1].update(metrics)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            content = io.BytesIO()
            torch.save(self.pacer.state_dict(), content)
            write_atomic(_folder(args, state) / FILE, content.getvalue())

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        """Load the state saved with the checkpoint; one that the host has loaded itself is kept."""
        folder = _folder(args, state) if self._resume_from is None else Path(self._resume_from)
        if (folder / FILE).is_file():
            self.pacer.load_state_dict(torch.load(folder / FILE, map_location=args.device, weights_only=True))
        elif self.pacer.state_dict()["counter"]["step"] == 0:
            raise StateMismatch(
                f"training resumes at step {state.global_step}, and there is no {FILE} in {folder}: write "
                "PacerCallback(pacer, resume_from=FOLDER) with the folder of that checkpoint. If it has "
                "none, load only the weights of the model and begin a new run."
            )


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    """The Trainer's checkpoint folder of this step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
