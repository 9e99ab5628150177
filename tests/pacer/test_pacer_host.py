"""A host is left as it was: its random state, its losses, its buffers; and its checkpoints hold the pacer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler
from torch import Tensor, nn

import stepwell
from stepwell.pacer import Pacer

SCHEDULER = DDPMScheduler(num_train_timesteps=100)


class Mlp(nn.Module):
    """[B, 6] at timesteps [B] of 100, with dropout and, if asked for, batch normalisation."""

    def __init__(self, norm: bool = False, adapter: bool = False) -> None:
        super().__init__()
        self.into = nn.Linear(7, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.out = nn.Sequential(nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 6))
        self.down, self.up = nn.Linear(7, 2, bias=False), nn.Linear(2, 16, bias=False)
        for parameter in [*self.into.parameters(), *self.out.parameters()] if adapter else []:
            parameter.requires_grad_(False)

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        seen = torch.cat([sample, timestep[:, None].to(sample) / 100], dim=1)
        output: Tensor = self.out(self.norm(self.into(seen) + self.up(self.down(seen))))
        return output


class Loop:
    """A host's loop as diffusers' examples have it, all of its randomness from torch's global generator."""

    def __init__(self, sampler: str | None = "neyman", compiled: bool = False, **more: Any) -> None:
        torch.manual_seed(3)
        self.network: Any = Mlp(**more)
        called = torch.compile(self.network, backend="eager") if compiled else self.network
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimizer: Any = torch.optim.AdamW(trained, lr=1e-2)
        self.called: Any = called
        self.pacer: Any = None
        if sampler is not None:
            quick = stepwell.sampler(sampler, stepwell.process_from(SCHEDULER), **QUICK[sampler])
            losses = stepwell.loss_at.diffusers(called, SCHEDULER)
            self.pacer = Pacer(quick, SCHEDULER, "min-snr", loss_at=losses).attach(self.optimizer)

    def step(self, given: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The losses of one step, and the timesteps and weights it had; or those that are given."""
        x0 = torch.randn(8, 6)
        if given is None:
            before = torch.get_rng_state()
            pace = self.pacer.draw(x0)
            given = (pace.timesteps, pace.weight)
            assert torch.equal(torch.get_rng_state(), before)
        timesteps, weight = given
        noise = torch.randn_like(x0)
        noisy = SCHEDULER.add_noise(x0, noise, timesteps)
        losses = (self.called(noisy, timesteps) - noise).square().mean(1)
        if self.pacer is not None:
            self.pacer.observe(losses)
        (losses * weight).mean().backward()
        before = torch.get_rng_state()
        self.optimizer.step()
        assert torch.equal(torch.get_rng_state(), before)
        self.optimizer.zero_grad()
        return losses.detach(), given


QUICK: dict[str, dict[str, Any]] = {
    "neyman": {"every_steps": 1, "strata": 3, "images": 4},
    "beta-policy": {"every_steps": 2},
    "alignment": {"every_steps": 1, "strata": 3, "images": 4},
    "loss-ema": {},
}


def density(loop: Loop) -> Tensor:
    found: Tensor = loop.pacer.sampler.density(torch.linspace(0.01, 0.99, 30))
    return found


@pytest.mark.parametrize(
    ("sampler", "more"),
    [
        ("neyman", {}),
        ("neyman", {"norm": True}),
        ("neyman", {"adapter": True}),
        ("neyman", {"compiled": True}),
        ("beta-policy", {"norm": True}),
        ("alignment", {}),
        ("loss-ema", {}),
    ],
)
def test_the_same_loop_without_the_pacer_has_the_same_losses(sampler: str, more: dict[str, Any]) -> None:
    loop = Loop(sampler, **more)
    first = None if sampler == "beta-policy" else density(loop)
    recorded = [loop.step() for _ in range(16)]
    if first is not None:
        assert not torch.equal(density(loop), first), "it has learned"
    bare = Loop(None, **more)
    for losses, given in recorded:
        assert torch.equal(bare.step(given)[0], losses)
    for name, value in loop.network.state_dict().items():
        assert torch.equal(value, bare.network.state_dict()[name]), name
    assert all(module.training for module in loop.network.modules())


@pytest.mark.parametrize("sampler", ["neyman", "loss-ema"])
def test_accelerates_checkpoints_resume_draws_bit_for_bit(sampler: str, tmp_path: Path) -> None:
    def made() -> tuple[Loop, Accelerator]:
        loop, accelerator = Loop(sampler), Accelerator(cpu=True)
        loop.network, loop.optimizer = accelerator.prepare(loop.network, loop.optimizer)
        accelerator.register_for_checkpointing(loop.pacer)
        return loop, accelerator

    one, saver = made()
    for _ in range(9):
        one.step()
    saver.save_state(str(tmp_path / "state"))
    went_on = [one.step() for _ in range(6)]
    two, loader = made()
    loader.load_state(str(tmp_path / "state"))
    for losses, (timesteps, weight) in went_on:
        again, (times, weights) = two.step()
        assert torch.equal(times, timesteps)
        assert torch.equal(weights, weight)
        assert torch.equal(again, losses)
    assert torch.equal(density(one), density(two))


def test_a_checkpoint_between_micro_batches_repeats_no_draw() -> None:
    one, two = (Pacer("uniform", SCHEDULER, seed=seed) for seed in (7, 0))
    first = one.draw(torch.zeros(8, 2)).u
    two.load_state_dict(one.state_dict())
    then = two.draw(torch.zeros(8, 2)).u
    assert torch.equal(then, one.draw(torch.zeros(8, 2)).u)
    assert not torch.equal(then, first)


def test_seeds_draw_differently() -> None:
    one, two = (Pacer("uniform", SCHEDULER, seed=seed).draw(torch.zeros(8, 2)).u for seed in (0, 1))
    assert not torch.equal(one, two)


def test_states_from_before_there_was_a_counter_still_load() -> None:
    pacer = Pacer("loss-ema", SCHEDULER)
    old = pacer.state_dict()
    del old["counter"]
    pacer.load_state_dict(old)
