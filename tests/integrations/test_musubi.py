"""musubi-tuner's seams with a pacer: its own code makes the inputs, at our times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from protocols import Tiny, batch
from trainer_protocols import Accelerator, NetworkTrainer, musubi_args

import stepwell
from stepwell.core.errors import Unsupported
from stepwell.integrations import musubi

BATCHES = [batch(number) for number in range(12)]


def auto(unbiased: bool = True) -> stepwell.Pacer:
    return stepwell.Pacer(stepwell.sampler("auto", "flow", unbiased=unbiased), "flow")


def test_the_trainer_without_it_has_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    pacer, trainer, drawn = auto(unbiased=False), NetworkTrainer(Tiny()), list[Any]()
    own = pacer.draw
    monkeypatch.setattr(pacer, "draw", lambda x0: drawn.append(own(x0)) or drawn[-1])
    musubi.pace(trainer, pacer)
    torch.manual_seed(0)
    # The range is the pacer's too: it stretches nothing that was drawn.
    paced = trainer.train(musubi_args(min_timestep=200, max_timestep=800), Accelerator(), BATCHES)
    sigmas = iter([pace.sigma for pace in drawn])
    monkeypatch.setattr(torch, "rand", lambda *args, **kwargs: next(sigmas))
    torch.manual_seed(0)
    plain = NetworkTrainer(Tiny()).train(musubi_args(timestep_sampling="uniform"), Accelerator(), BATCHES)
    assert plain == paced


def test_weights_reach_the_gradient() -> None:
    def moved(unbiased: bool) -> torch.Tensor:
        network = Tiny()
        sampler = stepwell.sampler("logit-normal", "flow", unbiased=unbiased)
        musubi.pace(trainer := NetworkTrainer(network), stepwell.Pacer(sampler, "flow"))
        torch.manual_seed(0)
        trainer.train(musubi_args(), Accelerator(), BATCHES[:1])
        return network.gain.detach()

    assert not torch.allclose(moved(True), moved(False))


def test_it_is_saved_resumed_and_logged() -> None:
    whole, accelerator = auto(), Accelerator()
    musubi.pace(trainer := NetworkTrainer(Tiny()), whole)
    torch.manual_seed(0)
    expected = trainer.train(musubi_args(), accelerator, BATCHES)
    assert accelerator.registered == [whole]
    assert "stepwell/effective_sample_share" in trainer.logs[-1]

    first, second, network = auto(), auto(), Tiny()
    musubi.pace(trainer := NetworkTrainer(network), first)
    torch.manual_seed(0)
    begun = trainer.train(musubi_args(), Accelerator(), BATCHES[:6])
    saved = first.state_dict()
    musubi.pace(trainer := NetworkTrainer(network), second)
    rest = trainer.train(
        musubi_args(), Accelerator(), BATCHES[6:], resume=lambda: second.load_state_dict(saved)
    )
    assert begun + rest == expected


def test_two_models_at_once_are_refused() -> None:
    trainer = NetworkTrainer(Tiny())
    trainer.high_low_training = True  # type: ignore[attr-defined]
    musubi.pace(trainer, auto())
    with pytest.raises(Unsupported, match="high-noise and a low-noise model"):
        trainer.train(musubi_args(), Accelerator(), BATCHES)


def test_a_loop_without_its_seams_is_refused() -> None:
    musubi.pace(trainer := NetworkTrainer(Tiny()), auto())
    with pytest.raises(Unsupported, match="without on_train_start"):
        trainer.process_batch(musubi_args(), batch())
