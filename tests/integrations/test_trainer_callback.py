"""The callback in Hugging Face's real Trainer: updates, evaluations, checkpoints, logs, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import case
from torch import Tensor, nn

import stepwell
from stepwell.core.errors import InvalidParameter, StateMismatch
from stepwell.pacer import CallOrderError, Pacer

transformers = pytest.importorskip("transformers")

from stepwell.integrations.transformers import FILE, PacerCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PROCESS = stepwell.process("flow")
OPTIONS: dict[str, dict[str, Any]] = {
    "neyman": {"every_steps": 1, "strata": 3, "images": 4},
    "beta-policy": {"every_steps": 2, "target": "simple", "grid": 10},
}
DATA = [{"x0": row} for row in torch.randn(32, 4, generator=torch.Generator().manual_seed(1))]


class Model(nn.Module):
    """One matrix, whose forward pass has the loss; its noise is a function of how often it was trained."""

    def __init__(self, name: str = "neyman", draws: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.net = nn.Linear(4, 4)
        sampler = stepwell.sampler(name, PROCESS, **OPTIONS[name])
        self.pacer = Pacer(sampler, PROCESS, loss_at=self.loss_at, network=self.net)
        self.draws, self.drawn = draws, []

    def loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        part = u[:, None]
        return (self.net((1 - part) * x0 + part * noise) - noise).square().mean(1)

    def forward(self, x0: Tensor) -> dict[str, Tensor]:
        if not self.draws:
            return {"loss": self.net(x0).square().mean()}
        pace = self.pacer.draw(x0)
        if self.training:
            self.drawn.append(pace.u)
        losses = self.loss_at(x0, torch.zeros_like(x0), pace.u, None)
        self.pacer.observe(losses)
        return {"loss": (losses * pace.weight).mean()}


def trainer(model: Model, folder: Path, callback: Any = None, **more: Any) -> Any:
    given = {"max_steps": 8, "save_strategy": "no", "gradient_accumulation_steps": 2, **more}
    args = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **given,
    )
    callbacks = [PacerCallback(model.pacer) if callback is None else callback]
    return transformers.Trainer(model, args, train_dataset=DATA, eval_dataset=DATA[:8], callbacks=callbacks)


def test_updates_are_counted_and_evaluations_leave_no_trace(tmp_path: Path) -> None:
    plain, watched = Model(), Model()
    trainer(plain, tmp_path).train()
    host = trainer(watched, tmp_path, eval_strategy="steps", eval_steps=1, eval_on_start=True)
    host.train()
    host.evaluate()
    assert watched.pacer.state_dict()["counter"]["step"] == 8
    assert len(plain.drawn) == len(watched.drawn) == 16
    assert all(torch.equal(one, two) for one, two in zip(plain.drawn, watched.drawn, strict=True))
    assert torch.equal(plain.net.weight, watched.net.weight)


@pytest.mark.parametrize("name", [case("neyman", quick=True), case("beta-policy", quick=False)])
def test_a_resumed_run_is_the_run(name: str, tmp_path: Path) -> None:
    whole, first, second = Model(name), Model(name), Model(name)
    trainer(whole, tmp_path / "whole").train()
    saving = {"save_strategy": "steps", "save_steps": 4}
    trainer(first, tmp_path / "half", **saving).train()
    folder = tmp_path / "half" / "checkpoint-4"
    assert (folder / FILE).is_file()
    trainer(second, tmp_path / "half").train(resume_from_checkpoint=str(folder))
    assert len(second.drawn) == 8
    assert all(torch.equal(one, two) for one, two in zip(whole.drawn[8:], second.drawn, strict=True))
    assert torch.equal(whole.net.weight, second.net.weight)


def test_a_checkpoint_elsewhere_is_named_or_refused(tmp_path: Path) -> None:
    first = Model()
    trainer(first, tmp_path / "half", max_steps=2, save_strategy="steps", save_steps=2).train()
    folder = tmp_path / "half" / "checkpoint-2"
    lost = Model()
    with pytest.raises(StateMismatch, match=r"resume_from=FOLDER"):
        trainer(lost, tmp_path / "new").train(resume_from_checkpoint=str(folder))
    found = Model()
    trainer(found, tmp_path / "new", PacerCallback(found.pacer, folder)).train(
        resume_from_checkpoint=str(folder)
    )
    assert found.pacer.state_dict()["counter"]["step"] == 8


def test_metrics_are_in_the_history(tmp_path: Path) -> None:
    model = Model()
    host = trainer(model, tmp_path, logging_steps=4)
    host.train()
    lines = [line for line in host.state.log_history if "loss" in line]
    assert len(lines) == 2
    assert all(0 < line["stepwell/effective_sample_share"] <= 1.001 for line in lines)


def test_mistakes_with_the_callback_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"needs a stepwell\.Pacer, not NoneType"):
        PacerCallback(None)  # type: ignore[arg-type]
    never = Model(draws=False)
    with pytest.raises(CallOrderError, match=r"in compute_loss .* take timesteps from pace = pacer\.draw"):
        trainer(never, tmp_path).train()
