"""SimpleTuner: its model draws sigmas in `sample_flow_sigmas` and returns one loss for the whole batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepwell.core.errors import Unsupported
from stepwell.core.tensors import PerExample
from stepwell.integrations.mean_loss import observe_and_weigh
from stepwell.integrations.shared import require_flow
from stepwell.pacer import Pace, Pacer

TIMESTEPS = 1000.0
"""SimpleTuner's timestep is 1000 sigma for every flow-matching model."""


def pace(trainer: Any, pacer: Pacer) -> Pacer:
    """Let a Trainer's flow-matching model train at the pacer's times; its checkpoints have the pacer.

    Call it before `trainer.resume_and_prepare()`, and `pacer.attach(trainer.optimizer)` after it. Its own
    settings of the draw (`flow_schedule_shift` and its relatives) no longer apply, but in evaluations.
    """
    model = trainer.model
    if model.PREDICTION_TYPE.name != "FLOW_MATCHING":
        raise Unsupported(
            f"this model is trained with {model.PREDICTION_TYPE.name.lower()}, and draws whole timesteps in "
            "prepare_batch, where nothing can be put in its place: simpletuner.pace is for flow matching."
        )
    paced = _PacedModel(model, require_flow(pacer, "simpletuner.pace(trainer, pacer)"))
    model.sample_flow_sigmas, model.loss = paced.sample_flow_sigmas, paced.loss
    trainer.accelerator.register_for_checkpointing(pacer)
    evaluation = getattr(trainer, "evaluation", None)
    if evaluation is not None:
        evaluation.execute_eval = paced.untouched(evaluation.execute_eval)
    return pacer


class _PacedModel:
    """The model's two methods that are replaced, and the draw between them."""

    def __init__(self, model: Any, pacer: Pacer) -> None:
        self.model, self.pacer, self.host = model, pacer, type(model)
        self._pace: Pace | None = None
        self._evaluating = False

    def sample_flow_sigmas(
        self, batch: dict[str, Any], state: dict[str, Any]
    ) -> tuple[PerExample, PerExample]:
        """Sigmas [B] and timesteps [B] for batch["latents"] [B, ...]."""
        if self._evaluating:
            own: tuple[PerExample, PerExample] = self.host.sample_flow_sigmas(self.model, batch, state)
            return own
        self._pace = self.pacer.draw(batch["latents"])
        return self._pace.sigma, self._pace.sigma * TIMESTEPS

    def loss(
        self, prepared_batch: dict[str, Any], model_output: dict[str, Any], *rest: Any, **more: Any
    ) -> Tensor:
        """The model's own loss, whose gradient has the pacer's weight."""
        drawn, self._pace = self._pace, None
        if drawn is not None:
            prediction, target = (
                model_output["model_prediction"],
                self.model.get_prediction_target(prepared_batch),
            )
            weighed = observe_and_weigh(self.pacer, drawn, prediction, target)
            model_output = {**model_output, "model_prediction": weighed}
        own: Tensor = self.host.loss(self.model, prepared_batch, model_output, *rest, **more)
        return own

    def untouched(self, evaluate: Any) -> Any:
        """An evaluation whose draws are SimpleTuner's own."""

        def evaluated(*args: Any, **kwargs: Any) -> Any:
            self._evaluating = True
            try:
                return evaluate(*args, **kwargs)
            finally:
                self._evaluating = False

        return evaluated
