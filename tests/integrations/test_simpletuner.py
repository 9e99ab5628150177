"""SimpleTuner's model with a pacer: its batches and loss, our times; its evaluation as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from protocols import Tiny, batch
from torch import Tensor
from trainer_protocols import Accelerator, Evaluation, ModelFoundation

import stepwell
from stepwell.core.errors import Unsupported
from stepwell.integrations import simpletuner


def trainer_of(network: Tiny) -> Any:
    model = ModelFoundation(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return SimpleNamespace(
        model=model, accelerator=Accelerator(), optimizer=optimizer, evaluation=Evaluation(model)
    )


def train(trainer: Any, steps: int = 12) -> list[float]:
    torch.manual_seed(0)
    losses, model = [], trainer.model
    for number in range(steps):
        prepared = model.prepare_batch({"latents": batch(number)}, {})
        loss = model.loss(prepared, model.model_predict(prepared), apply_conditioning_mask=True)
        loss.backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_the_model_without_it_has_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    pacer, drawn = stepwell.Pacer(stepwell.sampler("auto", "flow", unbiased=False), "flow"), list[Any]()
    own = pacer.draw
    monkeypatch.setattr(pacer, "draw", lambda x0: drawn.append(own(x0)) or drawn[-1])
    trainer = trainer_of(Tiny())
    simpletuner.pace(trainer, pacer).attach(trainer.optimizer)
    paced = train(trainer)
    assert trainer.accelerator.registered == [pacer]
    sigmas = iter([pace.sigma for pace in drawn])
    monkeypatch.setattr(
        ModelFoundation, "sample_flow_sigmas", lambda *a, **k: ((s := next(sigmas)), s * 1000.0)
    )
    assert train(trainer_of(Tiny())) == paced


def test_weights_reach_the_gradient() -> None:
    def moved(unbiased: bool) -> Tensor:
        trainer = trainer_of(network := Tiny())
        sampler = stepwell.sampler("logit-normal", "flow", unbiased=unbiased)
        simpletuner.pace(trainer, stepwell.Pacer(sampler, "flow")).attach(trainer.optimizer)
        train(trainer, steps=1)
        return network.gain.detach()

    assert not torch.allclose(moved(True), moved(False))


def test_evaluations_draw_as_before_and_are_not_counted() -> None:
    plain, trainer = trainer_of(Tiny()), trainer_of(Tiny())
    pacer = simpletuner.pace(trainer, stepwell.Pacer("auto", "flow"))
    assert trainer.evaluation.execute_eval(batch()) == plain.evaluation.execute_eval(batch())
    assert pacer.draws == 0
    train(trainer, steps=1)
    assert pacer.draws == 1


def test_other_predictions_are_refused() -> None:
    trainer = trainer_of(Tiny())
    trainer.model.PREDICTION_TYPE = SimpleNamespace(name="EPSILON")
    with pytest.raises(Unsupported, match="trained with epsilon"):
        simpletuner.pace(trainer, stepwell.Pacer("uniform", "flow"))
