"""The callback in real Lightning: its hooks, its checkpoints, its logs, and what users get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.core.feedback import Feedback
from stepwell.core.probe import DecreaseSpec
from stepwell.core.sampler import Metrics
from stepwell.pacer import CallOrderError, Pacer
from stepwell.samplers.one_density import Static

lightning = pytest.importorskip("lightning")

from stepwell.integrations.lightning import PacerCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*num_workers.*"),
]
PROCESS = stepwell.process("flow")


class Listener(Static):
    """Uniform draws; it keeps what it hears of every update."""

    learns, learns_from_losses = True, False
    probe = DecreaseSpec(1, subset=(0.5,))  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(PROCESS.reference, "listener")
        self.received: list[Feedback] = []

    def learn(self, feedback: Feedback) -> Metrics:
        self.received.append(feedback)
        return {"updates": torch.tensor(float(len(self.received)))}


class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
    """One matrix; all of its noise is a function of the step, as an exact resume needs it."""

    def __init__(self, sampler: Any = None, draws: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.net = nn.Linear(4, 4)
            self.other = nn.Linear(4, 4)
        self.sampler, self.draws = Listener() if sampler is None else sampler, draws
        self.pacer = Pacer(self.sampler, PROCESS, loss_at=self.loss_at, network=self.net)
        self.drawn: list[Tensor] = []
        self.learning_rate = 0.1

    def loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        part = u[:, None]
        output = self.net((1 - part) * x0 + part * noise).float()
        return (output - noise).square().mean(1)

    def training_step(self, x0: Tensor, batch_idx: int) -> Tensor:
        if not self.draws:
            return self.net(x0).square().mean()
        pace = self.pacer.draw(x0)
        self.drawn.append(pace.u)
        noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(self.global_step))
        losses = self.loss_at(x0, noise, pace.u, None)
        self.pacer.observe(losses)
        return (losses * pace.weight).mean()

    def validation_step(self, x0: Tensor, batch_idx: int) -> None:
        pace = self.pacer.draw(x0)
        self.pacer.observe(self.loss_at(x0, torch.zeros_like(x0), pace.u, None))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=self.learning_rate)


class TwoOptimizers(Module):
    """Manual optimisation: one update of the diffusion from two optimizers, and one of something else."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, x0: Tensor, batch_idx: int) -> None:
        weight, bias, other = self.optimizers()
        loss = super().training_step(x0, batch_idx)
        self.manual_backward(loss)
        for optimizer in (weight, bias):
            optimizer.step()
            optimizer.zero_grad()
        self.manual_backward(self.other(x0).square().mean())
        other.step()
        other.zero_grad()

    def configure_optimizers(self) -> Any:
        parts = [self.net.weight], [self.net.bias], list(self.other.parameters())
        return [torch.optim.SGD(part, lr=0.1) for part in parts]


def loader(batches: int = 8) -> Any:
    data = torch.randn(batches * 4, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(data, batch_size=4)


def trainer(module: Module, folder: Path, **more: Any) -> Any:
    callback = PacerCallback(module.pacer, more.pop("optimizers", None))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    given = {"max_epochs": 1, "enable_checkpointing": False, **quiet, **more}
    callbacks = [callback, *given.pop("callbacks", [])]
    return lightning.Trainer(
        accelerator="cpu", devices=1, default_root_dir=folder, callbacks=callbacks, **given
    )


def test_every_update_is_measured_around_the_closure(tmp_path: Path) -> None:
    module = Module()
    trainer(module, tmp_path, accumulate_grad_batches=2).fit(module, loader())
    received = module.sampler.received
    assert [(one.tick.step, one.tick.micro) for one in received] == [(step, 1) for step in range(4)]
    # What fell over an update is that of a real one, measured on the batch drawn inside its closure.
    assert all(float(one.signal.rewards.abs().max()) > 1e-3 for one in received)


def test_it_is_what_a_loop_of_ones_own_would_measure(tmp_path: Path) -> None:
    inside, outside = Module(), Module()
    trainer(inside, tmp_path).fit(inside, loader())
    optimizer = outside.configure_optimizers()
    outside.pacer.attach(optimizer)
    for step, x0 in enumerate(loader()):
        pace = outside.pacer.draw(x0)
        noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (outside.loss_at(x0, noise, pace.u, None) * pace.weight).mean().backward()
        optimizer.step()
    assert torch.equal(inside.net.weight, outside.net.weight)
    for one, two in zip(inside.sampler.received, outside.sampler.received, strict=True):
        assert torch.equal(one.signal.rewards, two.signal.rewards)


def test_validation_its_sanity_check_and_tests_leave_no_trace(tmp_path: Path) -> None:
    def drawn(watched: bool) -> Module:
        module = Module()
        often = {"val_check_interval": 3, "num_sanity_val_steps": 2} if watched else {}
        host = trainer(module, tmp_path, accumulate_grad_batches=2, **often)
        for epochs in (1, 2):
            host.fit_loop.max_epochs = epochs
            host.fit(module, loader(), loader(3) if watched else None)
            if watched:
                host.test(module, loader(2), verbose=False)
        return module

    plain, watched = drawn(False), drawn(True)
    assert len(plain.drawn) == len(watched.drawn) == 16
    assert all(torch.equal(one, two) for one, two in zip(plain.drawn, watched.drawn, strict=True))
    assert torch.equal(plain.net.weight, watched.net.weight)


def test_several_optimizers_are_named_by_their_places(tmp_path: Path) -> None:
    module = TwoOptimizers()
    trainer(module, tmp_path, optimizers=(0, 1)).fit(module, loader())
    assert [one.tick.step for one in module.sampler.received] == list(range(8))
    assert all(one.signal is not None for one in module.sampler.received)
    with pytest.raises(InvalidParameter, match="this module configures 3"):
        trainer(module, tmp_path, optimizers=(5,)).fit(module, loader())


def test_bfloat16_is_noticed(tmp_path: Path) -> None:
    module = Module()
    kinds: list[torch.dtype] = []
    module.net.register_forward_hook(lambda net, given, output: kinds.append(output.dtype))
    trainer(module, tmp_path, precision="bf16-mixed").fit(module, loader(3))
    assert set(kinds) == {torch.bfloat16}


@pytest.mark.parametrize("name", ["neyman", "beta-policy"])
def test_a_resumed_run_is_the_run(name: str, tmp_path: Path) -> None:
    def sampler() -> Any:
        options = {
            "neyman": {"every_steps": 1, "strata": 3, "images": 4},
            "beta-policy": {"every_steps": 2, "target": "simple", "grid": 10},
        }
        return stepwell.sampler(name, PROCESS, **options[name])

    whole = Module(sampler())
    trainer(whole, tmp_path, max_epochs=2).fit(whole, loader())
    first, second = Module(sampler()), Module(sampler())
    host = trainer(first, tmp_path, max_epochs=1)
    host.fit(first, loader())
    host.save_checkpoint(tmp_path / "half.ckpt")
    trainer(second, tmp_path, max_epochs=2).fit(second, loader(), ckpt_path=tmp_path / "half.ckpt")
    assert len(second.drawn) == 8
    assert all(torch.equal(one, two) for one, two in zip(whole.drawn[8:], second.drawn, strict=True))
    assert torch.equal(whole.net.weight, second.net.weight)


def test_a_test_of_an_old_checkpoint_forgets_nothing(tmp_path: Path) -> None:
    module = Module()
    host = trainer(module, tmp_path)
    host.fit(module, loader())
    host.save_checkpoint(tmp_path / "old.ckpt")
    host.fit_loop.max_epochs = 2
    host.fit(module, loader())
    host.test(module, loader(2), ckpt_path=tmp_path / "old.ckpt", verbose=False)
    assert module.pacer.state_dict()["counter"]["step"] == 16


def test_metrics_are_logged(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    module = Module()
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    trainer(module, tmp_path, logger=logger, log_every_n_steps=1).fit(module, loader(3))
    written = (Path(logger.log_dir) / "metrics.csv").read_text()
    assert "stepwell/updates" in written
    assert "3.0" in written


def test_mistakes_with_the_callback_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"PacerCallback\(pacer\) needs a stepwell\.Pacer, not str"):
        PacerCallback("neyman")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="not NoneType"):
        PacerCallback(None)  # type: ignore[arg-type]
    never = Module(draws=False)
    with pytest.raises(CallOrderError, match=r"in training_step, take timesteps from pace = pacer\.draw"):
        trainer(never, tmp_path).fit(never, loader(3))
    scalar = Module()
    scalar.pacer = Pacer(Listener(), PROCESS, loss_at=lambda *given: scalar.loss_at(*given).mean())
    with pytest.raises(InvalidParameter, match=r"one loss per example, \(4,\), not \(\)"):
        trainer(scalar, tmp_path).fit(scalar, loader(3))
    twice = Module()
    twice.pacer.attach(twice.configure_optimizers())
    with pytest.raises(CallOrderError, match="attached to AdamW already"):
        trainer(twice, tmp_path).fit(twice, loader(3))
