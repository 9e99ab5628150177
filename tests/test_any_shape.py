"""Every sampler that learns, on examples of any shape, with conditions that must stay with their examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cases import case
from torch import Tensor, nn

import stepwell
from stepwell.catalogue.find import SAMPLERS
from stepwell.core.condition import leaves
from stepwell.pacer import Pacer

SHAPES = {
    "audio": (2, 48),
    "video": (2, 3, 6, 6),
    "vectors": (5,),
    "latents": (16, 4, 4),
    "scalars": (1,),
    "one long wave": (1, 200),
}
STRATA = {"every_steps": 1, "strata": 3, "images": 8}
LEARNERS: dict[str, dict[str, Any]] = {
    "loss-second-moment": {"history": 1, "bins": 4},
    "loss-ema": {"bins": 8, "decay": 0.9},
    "loss-root": {"bins": 8, "decay": 0.9},
    "auto": {"bins": 8, "least_gain": 0.0},
    "info-noise": {"bins": 8, "decay": 0.9},
    "neyman": STRATA,
    "gradient-variance": STRATA,
    "alignment": STRATA,
    "beta-policy": {"every_steps": 2, "grid": 6, "hidden": 8},
    "beta-policy credit=alignment": {"credit": "alignment", "every_steps": 1, "hidden": 8},
}
PROCESS = stepwell.process("linear", timesteps=100)
BATCH = 6


@dataclass(frozen=True)
class Told:
    """A condition as a dataclass."""

    label: Tensor
    place: Tensor


def conditions(x0: Tensor) -> dict[str, Any]:
    """Conditions that tell which example they belong to, in each of the forms that are taken."""
    mark = x0.flatten(1).sum(1)
    return {
        "none": None,
        "tensor": mark,
        "mapping": {"text": mark[:, None, None].expand(-1, 3, 2), "mask": mark},
        "dataclass": Told(mark, mark[:, None]),
    }


class Host:
    """A network of one number per side, trained on numbers; it looks whether conditions fit examples."""

    def __init__(self, name: str, shape: tuple[int, ...], kind: str) -> None:
        self.shape, self.kind = shape, kind
        self.network = nn.Linear(1, 1)
        with torch.no_grad():
            self.network.weight.fill_(0.3)
            self.network.bias.fill_(0.1)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=0.01)
        self.asked: list[int] = []
        sampler = stepwell.sampler(name.split()[0], PROCESS, **LEARNERS[name])
        self.pacer = Pacer(sampler, PROCESS, loss_at=self.loss_at).attach(self.optimizer)
        self.drawn: list[Tensor] = []

    def loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        assert x0.shape == noise.shape == (len(u), *self.shape)
        self.asked.append(len(u))
        assert (condition is None) == (self.kind == "none")
        for told in leaves(condition):
            assert torch.equal(told.flatten(1)[:, 0] if told.dim() > 1 else told, x0.flatten(1).sum(1))
        if self.kind == "dataclass":
            assert isinstance(condition, Told)
        signal, rest = (scale.view(-1, *[1] * len(self.shape)) for scale in PROCESS.scales(u))
        output = self.network((signal * x0 + rest * noise).float()[..., None])[..., 0]
        return (output - noise).square().flatten(1).mean(1)

    def train(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        for _ in range(steps):
            x0 = torch.randn(BATCH, *self.shape, generator=generator)
            condition = conditions(x0)[self.kind]
            pace = self.pacer.draw(x0, condition=condition)
            self.drawn.append(pace.u)
            losses = self.loss_at(x0, torch.randn(x0.shape, generator=generator), pace.u, condition)
            self.pacer.observe(losses)
            self.optimizer.zero_grad()
            (losses * pace.weight).mean().backward()
            self.optimizer.step()


def test_no_learner_of_the_catalogue_is_left_out() -> None:
    assert {name.split()[0] for name in LEARNERS} == {entry.name for entry in SAMPLERS if entry.learns}


def pairs() -> Iterator[Any]:
    """Two shapes for each learner and three learners for each shape; the others with `make test-all`."""
    for number, name in enumerate(LEARNERS):
        for place, shape in enumerate(SHAPES):
            quick = (place - number) % 6 in (0, 3)
            yield case(name, SHAPES[shape], quick=quick, id=f"{name}-{shape}")


@pytest.mark.parametrize(("name", "shape"), list(pairs()))
def test_it_learns_from_examples_of_any_shape(name: str, shape: tuple[int, ...]) -> None:
    host = Host(name, shape, "tensor")
    u = torch.linspace(0.02, 0.98, 25)
    before = host.pacer.sampler.density(u)
    host.train(40 if "credit" in name else 14)
    assert all(drawn.shape == (BATCH,) and bool(((drawn >= 0) & (drawn < 1)).all()) for drawn in host.drawn)
    after = host.pacer.sampler.density(u)
    assert torch.isfinite(after).all()
    assert float((after - before).abs().max()) > 1e-3, "the density moved"
    if host.pacer.sampler.probe is not None:
        # Its own calls: those of the loop have a batch each.
        assert len(host.asked) > len(host.drawn)


@pytest.mark.parametrize("kind", conditions(torch.zeros(1, 1)))
@pytest.mark.parametrize("name", ["neyman", "alignment", "beta-policy"])
def test_a_condition_follows_its_example(name: str, kind: str) -> None:
    host = Host(name, (2, 48), kind)
    host.train(8)
    # Probes of 16 examples in batches of 6: they were collected over several, and taken in another order.
    collects = name != "beta-policy"
    assert (max(host.asked) > BATCH) is collects


def test_a_condition_that_went_astray_would_be_noticed() -> None:
    host = Host("neyman", (5,), "tensor")
    x0 = torch.randn(BATCH, 5)
    with pytest.raises(AssertionError):
        host.loss_at(x0, x0, torch.full((BATCH,), 0.5), x0.sum(1).flip(0))
