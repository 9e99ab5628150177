"""An attached pacer in loops that know nothing of it but `draw`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe import DecreaseSpec, GradientSpec
from stepwell.core.sampler import Metrics
from stepwell.pacer import CallOrderError, Pacer, window
from stepwell.samplers.one_density import Static

PROCESS = stepwell.process("linear")


class Listener(Static):
    """Uniform draws; it keeps the feedback of every update."""

    learns, learns_from_losses = True, False

    def __init__(self, spec: Any = None) -> None:
        super().__init__(PROCESS.reference, "listener")
        self.received: list[Feedback] = []
        self._spec = spec

    @property
    def probe(self) -> Any:
        return self._spec

    def learn(self, feedback: Feedback) -> Metrics:
        self.received.append(feedback)
        return {"updates": torch.tensor(float(len(self.received)))}


DECREASE = DecreaseSpec(1, subset=(0.5,))
GRADIENTS = GradientSpec(1, borders=(0.0, 1.0), images=2)


class Host:
    """A loop around one matrix, which keeps the dtypes of its outputs."""

    def __init__(self, spec: Any = DECREASE, **more: Any) -> None:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.network = nn.Linear(3, 3)
        kind = more.pop("kind", torch.optim.AdamW)
        self.optimizer: Any = kind(self.network.parameters(), lr=0.1, **more.pop("options", {}))
        self.sampler = Listener(spec)
        self.dtypes: list[torch.dtype] = []
        self.pacer = Pacer(self.sampler, PROCESS, loss_at=self.loss_at, network=self.network, **more)

    def loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        output = self.network(x0)
        self.dtypes.append(output.dtype)
        return (output.float() - noise).square().mean(1)

    def step(self, seed: int = 0, update: bool = True, poison: bool = False) -> None:
        x0 = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        pace = self.pacer.draw(x0)
        losses = self.loss_at(x0, torch.zeros_like(x0), pace.u, None)
        self.pacer.observe(losses)
        loss = (losses * pace.weight).mean()
        (loss * torch.inf if poison else loss).backward()
        if update:
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_an_attached_pacer_follows_every_update_and_needs_no_tick() -> None:
    host = Host()
    assert host.pacer.attach(host.optimizer) is host.pacer
    for step in range(3):
        host.step(step)
    received = host.sampler.received
    assert [one.tick.step for one in received] == [0, 1, 2]
    assert float(host.pacer.metrics["updates"]) == 3
    # The decrease is that of a real update: the parameters had moved.
    assert all(one.signal.rewards.abs().max() > 1e-3 for one in received)
    assert len({tuple(one.u.tolist()) for one in received}) == 3


def test_hooks_and_explicit_calls_are_the_same() -> None:
    attached, explicit = Host(), Host()
    attached.pacer.attach(attached.optimizer)
    explicit.pacer = Pacer(
        explicit.sampler,
        PROCESS,
        loss_at=explicit.loss_at,
        optimizer=explicit.optimizer,
        network=explicit.network,
    )
    for step in range(3):
        attached.step(step)
        explicit.step(step, update=False)
        explicit.pacer.before_update()
        explicit.optimizer.step()
        explicit.optimizer.zero_grad()
        explicit.pacer.after_update()
    for one, two in zip(attached.sampler.received, explicit.sampler.received, strict=True):
        assert torch.equal(one.u, two.u)
        assert torch.equal(one.signal.rewards, two.signal.rewards)


def test_micro_batches_of_one_update_have_their_own_draws() -> None:
    host = Host()
    host.pacer.attach(host.optimizer)
    for step in range(6):
        host.step(step, update=step % 3 == 2)
    assert [(one.tick.step, one.tick.micro) for one in host.sampler.received] == [(0, 2), (1, 2)]
    assert all(len(one.u.unique()) == 12 for one in host.sampler.received)


def test_accelerate_skips_steps_while_it_accumulates() -> None:
    host = Host()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    host.network, host.optimizer = accelerator.prepare(host.network, host.optimizer)
    host.pacer.attach(host.optimizer)
    for step in range(4):
        with accelerator.accumulate(host.network):
            host.step(step)
    assert [one.u.shape for one in host.sampler.received] == [(8,), (8,)]


def test_several_optimizers_are_one_update() -> None:
    host = Host(GRADIENTS)
    one, two = (torch.optim.Adam([part], lr=0.1) for part in host.network.parameters())
    host.pacer.attach(one, two)
    for step in range(2):
        host.step(step, update=False)
        two.step()
        assert len(host.sampler.received) == step
        one.step()
        assert len(host.sampler.received) == step + 1
    assert all(len(optimizer.state) == 1 for optimizer in (one, two)), "reading makes no state"


def test_one_of_several_may_be_skipped() -> None:
    host = Host()
    one, two = (torch.optim.SGD([part], lr=0.1) for part in host.network.parameters())
    host.pacer.attach(one, two)
    host.step(0, update=False)
    one.step()
    host.step(1, update=False)
    one.step()
    two.step()
    assert [one.tick.micro for one in host.sampler.received] == [1]


def test_updates_without_a_draw_are_somebody_elses() -> None:
    host = Host()
    host.pacer.attach(host.optimizer)
    host.network(torch.ones(1, 3)).sum().backward()
    host.optimizer.step()
    assert host.sampler.received == []
    host.step()
    assert [one.tick.step for one in host.sampler.received] == [0]


def test_after_detach_nothing_is_learned_and_another_optimizer_may_come() -> None:
    host = Host()
    host.pacer.attach(host.optimizer)
    host.step()
    host.pacer.detach()
    with pytest.raises(CallOrderError, match="attach"):
        host.step(update=False)
    other = torch.optim.SGD(host.network.parameters(), lr=0.1)
    host.pacer.attach(other)
    host.step()
    assert len(host.sampler.received) == 1
    host.optimizer = other
    host.step()
    assert len(host.sampler.received) == 2


def test_mistakes_of_attaching_are_named() -> None:
    host = Host()
    with pytest.raises(InvalidParameter, match="not Linear"):
        host.pacer.attach(host.network)
    with pytest.raises(InvalidParameter, match="needs an optimizer"):
        host.pacer.attach()
    with pytest.raises(InvalidParameter, match="same optimizer twice"):
        host.pacer.attach(host.optimizer, host.optimizer)
    with pytest.raises(Unsupported, match="LBFGS is stepped with a closure"):
        host.pacer.attach(torch.optim.LBFGS(host.network.parameters()))
    host.pacer.attach(host.optimizer)
    with pytest.raises(CallOrderError, match="attached to AdamW already: attach once"):
        host.pacer.attach(host.optimizer)
    host.step(update=False)
    for call in (host.pacer.before_update, host.pacer.after_update):
        with pytest.raises(CallOrderError, match=r"remove the call, or the attach"):
            call()
    with pytest.raises(Unsupported, match="without a closure"):
        host.optimizer.step(lambda: torch.zeros(()))
    made = Pacer(Listener(DECREASE), PROCESS, loss_at=host.loss_at, optimizer=host.optimizer)
    with pytest.raises(InvalidParameter, match="made with another optimizer, a AdamW"):
        made.attach(torch.optim.SGD(host.network.parameters()))


def test_deepspeed_gets_an_error_with_what_to_call() -> None:
    class DeepSpeedOptimizerWrapper(torch.optim.SGD):
        pass

    host = Host(kind=DeepSpeedOptimizerWrapper)
    with pytest.raises(Unsupported, match=r"pacer\.before_update\(\) and pacer\.after_update\(\)"):
        host.pacer.attach(host.optimizer)


def test_a_sampler_of_losses_says_that_it_got_none() -> None:
    network = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    pacer = Pacer("loss-ema", PROCESS).attach(optimizer)
    pacer.draw(torch.zeros(4, 3))
    network(torch.zeros(4, 3)).sum().backward()
    with pytest.raises(CallOrderError, match=r"Add pacer\.observe\(losses\)"):
        optimizer.step()


def test_draws_without_updates_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_MICRO_BATCHES", 5)
    pacer = Pacer("logit-normal", PROCESS)
    drawn = torch.cat([pacer.draw(torch.zeros(4, 3)).u for _ in range(5)])
    assert len(drawn.unique()) == 20
    with pytest.raises(CallOrderError, match=r"no update followed: attach the pacer"):
        pacer.draw(torch.zeros(4, 3))


def test_the_second_argument_of_draw_is_no_condition() -> None:
    with pytest.raises(InvalidParameter, match=r"a Tick, not Tensor: write condition="):
        Pacer("logit-normal", PROCESS).draw(torch.zeros(4, 3), torch.zeros(4))  # type: ignore[arg-type]


def test_a_probe_casts_as_the_hosts_forward_pass_did() -> None:
    host = Host(GRADIENTS)
    host.pacer.attach(host.optimizer)
    with torch.autocast("cpu", torch.bfloat16):
        host.step(update=False)
    # Loops step outside of autocast, and the probe must not.
    host.optimizer.step()
    assert set(host.dtypes) == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")


def test_losses_that_cannot_be_used_are_refused_with_what_to_write() -> None:
    def stepped(loss_at: Any) -> None:
        host = Host(GRADIENTS)
        host.pacer = Pacer(host.sampler, PROCESS, loss_at=loss_at).attach(host.optimizer)
        host.step()

    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(InvalidParameter, match=r"one loss per example, \(2,\), not \(\).*flatten\(1\)"):
        stepped(lambda x0, *_: (x0 * weight).mean())
    with pytest.raises(InvalidParameter, match=r"\(2,\), not float"):
        stepped(lambda x0, *_: (x0 * weight).mean().item())
    with pytest.raises(Unsupported, match="carries no gradient"):
        stepped(torch.no_grad()(lambda x0, *_: (x0 * weight).mean(1)))
    with pytest.raises(Unsupported, match="depends on no parameter that the optimizer moves"):
        stepped(lambda x0, *_: (x0 * weight).mean(1))


def test_inference_mode_is_named() -> None:
    host = Host(GRADIENTS)
    host.pacer.attach(host.optimizer)
    with torch.inference_mode():
        latents = torch.ones(4, 3)
    with pytest.raises(Unsupported, match=r"torch\.no_grad instead"):
        host.pacer.draw(latents)
    host.step(update=False)
    with torch.inference_mode(), pytest.raises(Unsupported, match="inference_mode is on"):
        host.optimizer.step()


def test_gradients_are_measured_where_the_host_switched_them_off() -> None:
    host = Host(GRADIENTS)
    host.pacer.attach(host.optimizer)
    host.step(update=False)
    with torch.no_grad():
        host.optimizer.step()
    assert host.sampler.received[0].signal.halves.abs().max() > 0
