"""Schedule samplers, SiT's Transport, EDM's loss, k-diffusion's density: what their hosts ask of them."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hosts import EXAMPLES
from torch import Tensor, nn

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.integrations import lucidrains, sit
from stepwell.integrations.edm import PacedEDMLoss
from stepwell.integrations.k_diffusion import SampleDensity
from stepwell.integrations.schedule_sampler import PacedScheduleSampler
from stepwell.pacer import OutOfTurn, Pacer

QUICK = {"every_steps": 1, "strata": 3, "images": 4}


@pytest.fixture(autouse=True)
def _examples_can_be_imported() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


class Tiny(nn.Module):
    """[B, 1, 4, 4] -> the same; says what the time is worth to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([0.3, 0.1]))

    def forward(self, x: Tensor, time: Tensor, y: Tensor | None = None, **more: Any) -> Tensor:
        told = time.reshape(-1, 1, 1, 1).to(x) / (1 + time.abs().max())
        return self.gain[0] * x + self.gain[1] * told + (0 if y is None else 0.1 * y.view(-1, 1, 1, 1))


def batch(seed: int = 0, count: int = 8) -> Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


# --- guided-diffusion -------------------------------------------------------------------------------------


def schedule(name: str, **more: Any) -> tuple[PacedScheduleSampler, Any, Any, Any]:
    import guided_protocol as guided

    diffusion, network = guided.GaussianDiffusion(), Tiny()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    sampler = stepwell.sampler(name, stepwell.process_from(diffusion), **more)
    ready = stepwell.loss_at.guided_diffusion(diffusion, network)
    pacer = Pacer(sampler, diffusion, loss_at=ready).attach(optimizer)
    return PacedScheduleSampler(pacer, guided.LossAwareSampler), diffusion, network, optimizer


def test_a_schedule_sampler_has_the_types_that_their_loop_expects() -> None:
    sampler, diffusion, *_ = schedule("logit-normal")
    t, weights = sampler.sample(16, "cpu")
    assert t.dtype == torch.int64
    assert t.shape == weights.shape == (16,)
    assert 0 <= int(t.min()) <= int(t.max()) < diffusion.num_timesteps
    found = sampler.weights()
    assert found.shape == (diffusion.num_timesteps,)
    assert found.sum() == pytest.approx(1)


def test_their_isinstance_is_satisfied_and_losses_arrive() -> None:
    import guided_protocol as guided

    sampler, diffusion, network, optimizer = schedule("loss-ema")
    assert isinstance(sampler, guided.LossAwareSampler)
    for step in range(3):
        for _ in range(2):
            x = batch(step)
            t, weights = sampler.sample(len(x), "cpu")
            losses = diffusion.training_losses(network, x, t)["loss"]
            sampler.update_with_local_losses(t, losses.detach())
            (losses * weights).mean().backward()
        optimizer.step()
    # A share of uniform draws is left of what no loss has told of.
    assert sampler.pacer.state_dict()["counter"]["step"] == 3
    assert sampler.weights().std() > 0


def test_losses_of_all_ranks_are_those_of_one_alone() -> None:
    one, two = schedule("loss-ema")[0], schedule("loss-ema")[0]
    losses = torch.linspace(0.1, 1, 8)
    for sampler, tell in ((one, one.update_with_local_losses), (two, two.update_with_all_losses)):
        t, _ = sampler.sample(8)
        tell(t, losses if sampler is one else losses.tolist())
        sampler.pacer.detach()
    assert torch.equal(torch.from_numpy(one.weights()), torch.from_numpy(two.weights()))


def test_a_measuring_schedule_sampler_asks_for_the_examples() -> None:
    sampler, *_ = schedule("neyman", **QUICK)
    with pytest.raises(
        InvalidParameter, match=r"write schedule_sampler\.sample\(micro, device, micro_cond\)"
    ):
        sampler.sample(8, "cpu")
    with pytest.raises(InvalidParameter, match="loss_aware=LossAwareSampler"):
        PacedScheduleSampler(Pacer("loss-ema", "linear"))
    with pytest.raises(InvalidParameter, match="whole numbers"):
        PacedScheduleSampler(Pacer("uniform", "flow"))


def test_master_parameters_are_told_apart_and_explicit_turns_help() -> None:
    """fp16 in guided-diffusion: the optimizer moves copies, and `optimize` says whether it did."""
    import guided_protocol as guided

    diffusion, network = guided.GaussianDiffusion(), Tiny()
    master = [nn.Parameter(parameter.detach().clone()) for parameter in network.parameters()]
    opt = torch.optim.SGD(master, lr=0.1)
    ready = stepwell.loss_at.guided_diffusion(diffusion, network)

    def run(pacer: Pacer, explicit: bool) -> None:
        for step, overflows in enumerate((False, True, False)):
            x = batch(step)
            t = pacer.draw(x).timesteps
            network.zero_grad()
            diffusion.training_losses(network, x, t)["loss"].mean().backward()
            if explicit:
                pacer.before_update()
            if overflows:
                continue
            for copied, own in zip(master, network.parameters(), strict=True):
                copied.grad = own.grad
            opt.step()
            for copied, own in zip(master, network.parameters(), strict=True):
                own.data.copy_(copied.data)
            if explicit:
                pacer.after_update()

    quick = stepwell.sampler("neyman", ready.process, **QUICK)
    hooked = Pacer(quick, diffusion, loss_at=ready).attach(opt)
    with pytest.raises(Unsupported, match="depends on no parameter that the optimizer moves"):
        run(hooked, explicit=False)
    hooked.detach()
    named = torch.optim.SGD(network.parameters(), lr=0.0)
    pacer = Pacer(quick, diffusion, loss_at=ready, optimizer=named)
    run(pacer, explicit=True)
    assert pacer.state_dict()["counter"]["step"] == 2


def test_another_number_of_timesteps_is_noticed() -> None:
    import guided_protocol as guided

    long, short = guided.GaussianDiffusion(), guided.GaussianDiffusion()
    short.betas, short.alphas_cumprod = short.betas[::4], short.alphas_cumprod[::4]
    ready = stepwell.loss_at.guided_diffusion(long, Tiny())
    with pytest.raises(
        InvalidParameter, match=r"loss_at was made for .*timesteps=1000.* for .*timesteps=250"
    ):
        Pacer("neyman", short, loss_at=ready)


def test_a_schedule_sampler_continues_where_it_was() -> None:
    def trained(steps: range, sampler: Any, diffusion: Any, network: Any, optimizer: Any) -> list[Tensor]:
        drawn = []
        for step in steps:
            x = batch(step)
            t, weights = sampler.sample(x, "cpu", {"y": torch.ones(8)})
            drawn.append(t)
            told = {"y": torch.ones(8)}
            losses = diffusion.training_losses(network, x, t, told, noise=batch(100 + step))["loss"]
            (losses * weights).mean().backward()
            optimizer.step()
        return drawn

    whole = schedule("neyman", **QUICK)
    expected = trained(range(8), *whole)
    first = schedule("neyman", **QUICK)
    trained(range(4), *first)
    again = schedule("neyman", **QUICK)
    again[2].load_state_dict(first[2].state_dict())
    again[2].gain.grad = first[2].gain.grad.clone()
    again[0].load_state_dict(copy.deepcopy(first[0].state_dict()))
    for one, two in zip(trained(range(4, 8), *again), expected[4:], strict=True):
        assert torch.equal(one, two)


# --- SiT --------------------------------------------------------------------------------------------------


def test_time_is_reversed_for_sit() -> None:
    import sit_protocol as theirs

    transport, seen = theirs.Transport(), []

    class Listening(Tiny):
        def forward(self, x: Tensor, time: Tensor, y: Tensor | None = None, **more: Any) -> Tensor:
            seen.append((x.detach(), time))
            return super().forward(x, time, y)

    network = Listening()
    pacer = Pacer(stepwell.sampler("uniform", sit.process_of(transport)), sit.process_of(transport))
    assert sit.pace(transport, pacer) is pacer
    x1 = batch(count=256)
    drawn: list[Any] = []
    own = pacer.draw
    pacer.draw = lambda *args, **kwargs: drawn.append(own(*args, **kwargs)) or drawn[-1]  # type: ignore[method-assign]
    terms = transport.training_losses(network, x1, {"y": torch.zeros(256)})
    (shown, time), pace = seen[0], drawn[0]
    assert torch.allclose(time, 1 - pace.u, atol=1e-6)
    # Near its time 1 it sees data.
    late = time > 0.95
    assert (shown - x1)[late].abs().mean() < 0.1
    assert set(terms) == {"loss", "pred"}
    assert terms["loss"].shape == (256,)


@pytest.mark.parametrize("model", ["VELOCITY", "NOISE", "SCORE"])
@pytest.mark.parametrize("weight", ["NONE", "VELOCITY"])
def test_the_loss_of_a_transport_is_that_of_its_process(model: str, weight: str) -> None:
    import sit_protocol as theirs

    transport = theirs.Transport(theirs.ModelType[model], theirs.WeightType[weight])
    start, end = transport.check_interval(transport.train_eps, transport.sample_eps)
    process, network = sit.process_of(transport), Tiny()
    x0, noise, u = batch(), batch(1), torch.linspace(0.05, 0.95, 8)
    found = sit.loss_at(transport, network)(x0, noise, u)
    # Our algebra: what the network says at its noisy input, as the process's own target.
    sigma = 1 - (start + (end - start) * (1 - u))
    part = sigma.view(-1, 1, 1, 1)
    said = network((1 - part) * x0 + part * noise, 1 - sigma)
    said = -part * said if model == "SCORE" else said
    if model == "VELOCITY":
        expected = (-said - (noise - x0)).square().flatten(1).mean(1)
    else:
        expected = (said - noise).square().flatten(1).mean(1)
        if weight == "VELOCITY":
            expected = expected / (1 - sigma) ** 2
    assert torch.allclose(found, expected, rtol=1e-4)
    assert process.prediction == ("velocity" if "VELOCITY" in (model, weight) else "eps")


def test_a_transport_of_another_kind_is_named() -> None:
    import sit_protocol as theirs

    likely = theirs.Transport(theirs.ModelType.NOISE, theirs.WeightType.LIKELIHOOD)
    with pytest.raises(Unsupported, match="weights its noise loss by likelihood"):
        sit.process_of(likely)
    curved = theirs.Transport()
    curved.path_sampler = type("GVPCPlan", (), {})()
    with pytest.raises(Unsupported, match=r"the path GVPCPlan.*path_type='Linear'"):
        sit.loss_at(curved, Tiny())
    with pytest.raises(InvalidParameter, match=r"process_of\(transport\)"):
        sit.pace(theirs.Transport(), Pacer("uniform", "linear"))


# --- EDM --------------------------------------------------------------------------------------------------


def edm_loss(**more: Any) -> tuple[PacedEDMLoss, Any, Any]:
    import karras_protocol as karras

    network = karras.EDMPrecond(Tiny())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    return PacedEDMLoss(**more).attach(network, optimizer), network, optimizer


def test_with_its_own_density_it_is_edms_loss() -> None:
    import karras_protocol as karras

    loss_fn, network, _ = edm_loss(sampler="reference")
    assert loss_fn.pacer is not None
    x, levels = batch(count=64), []
    own = loss_fn.pacer.draw
    loss_fn.pacer.draw = lambda *args, **kwargs: levels.append(own(*args, **kwargs)) or levels[-1]  # type: ignore[method-assign]
    torch.manual_seed(0)
    found = loss_fn(network, x, torch.zeros(64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(karras, "log_normal", lambda shape: levels[0].sigma.view(shape))
        torch.manual_seed(0)
        expected = karras.EDMLoss()(network, x, torch.zeros(64))
    assert found.shape == x.shape
    assert torch.equal(found, expected)


def test_augmentation_and_labels_reach_the_probes() -> None:
    loss_fn, network, optimizer = edm_loss()
    labels, asked = torch.arange(8.0), []
    own = network.forward

    def forward(x: Tensor, sigma: Tensor, class_labels: Any = None, augment_labels: Any = None) -> Tensor:
        asked.append((len(x), class_labels, augment_labels))
        return own(x, sigma, class_labels)

    network.forward = forward
    for _ in range(5):
        for _ in range(4):
            loss_fn(network, batch(), labels, lambda x: (x.flip(3), labels[:, None])).sum().backward()
        optimizer.step()
    # Four micro-batches of 8 are an example each for two halves of 16.
    probes = [call for call in asked if call[0] != 8]
    assert probes
    for _, given, augmented in probes:
        assert torch.equal(given[:, None], augmented)


def test_edms_loss_is_pickled_without_its_network_and_continues() -> None:
    def run(steps: range, loss_fn: PacedEDMLoss, network: Any, optimizer: Any) -> list[Tensor]:
        told = []
        for step in steps:
            torch.manual_seed(step)
            loss = loss_fn(network, batch(step, count=32))
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
            told.append(loss.detach())
        return told

    torch.manual_seed(0)
    whole = edm_loss()
    expected = run(range(24), *whole)
    first = edm_loss()
    run(range(12), *first)
    snapshot = pickle.loads(pickle.dumps(first[0]))
    assert snapshot.pacer is None
    again = edm_loss()
    again[1].load_state_dict(first[1].state_dict())
    again[2].load_state_dict(copy.deepcopy(first[2].state_dict()))
    snapshot.attach(again[1], again[2])
    for one, two in zip(run(range(12, 24), snapshot, *again[1:]), expected[12:], strict=True):
        assert torch.equal(one, two)


def test_the_density_leaves_edms_own() -> None:
    import edm_loop_paced

    made: list[PacedEDMLoss] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edm_loop_paced, "LOSS", lambda: made.append(PacedEDMLoss()) or made[-1])
        edm_loop_paced.main(88)
    assert made[0].pacer is not None
    u = torch.linspace(0.1, 0.9, 17)
    moved = made[0].pacer.sampler.density(u) / made[0].process.reference.pdf(u)
    assert float(moved.max() / moved.min()) > 1.2


def test_mistakes_with_edms_loss_are_named() -> None:
    with pytest.raises(OutOfTurn, match=r"loss_fn\.attach\(net, optimizer\)"):
        PacedEDMLoss()(Tiny(), batch())
    loss_fn, network, optimizer = edm_loss()
    with pytest.raises(OutOfTurn, match="attached already"):
        loss_fn.attach(network, optimizer)


# --- k-diffusion ------------------------------------------------------------------------------------------


def test_a_density_is_called_as_theirs_and_follows_the_sampler() -> None:
    density = SampleDensity(Pacer("reference", "edm"))
    sigma = density([4096], device="cpu")
    assert sigma.shape == (4096,)
    # EDM's own: ln sigma is N(-1.2, 1.2); five standard errors, wrong in one of a million runs.
    assert float(sigma.log().mean()) == pytest.approx(-1.2, abs=5 * 1.2 / 64)
    assert float(sigma.log().std()) == pytest.approx(1.2, abs=5 * 1.2 / 90)
    assert torch.equal(density.weighting(sigma), torch.ones(4096))


def test_its_weighting_corrects_what_was_drawn_and_nothing_else() -> None:
    process = stepwell.process("edm")
    sampler = stepwell.sampler("uniform", process, unbiased=True)
    pacer = Pacer(sampler, process, "min-snr")
    density, bare = SampleDensity(pacer), stepwell.weighting("min-snr")
    sigma = density([512], device="cpu")
    u = process.unit_time(sigma.log() / 4)
    expected = process.reference.pdf(u) * bare(process, u)
    assert torch.allclose(density.weighting(sigma), expected, rtol=1e-2, atol=1e-4)
    other = sigma.flip(0)
    assert torch.allclose(density.weighting(other), bare(process, u.flip(0)), rtol=1e-3)


def test_its_observed_losses_are_plain() -> None:
    process = stepwell.process("edm")
    pacer = Pacer("loss-ema", process, "min-snr")
    heard: list[Tensor] = []
    pacer.observe = heard.append  # type: ignore[method-assign, assignment]
    density = SampleDensity(pacer)
    sigma, plain = density([8]), torch.linspace(1, 2, 8)
    density.observe(plain * density.weighting(sigma))
    assert torch.allclose(heard[0], plain)


def test_mistakes_with_a_density_are_named() -> None:
    with pytest.raises(InvalidParameter, match=r"stepwell\.process\('edm'"):
        SampleDensity(Pacer("uniform", "linear"))
    network = Tiny()
    ready = stepwell.loss_at.edm(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    density = SampleDensity(Pacer("neyman", "edm", loss_at=ready).attach(optimizer))
    with pytest.raises(InvalidParameter, match=r"write sample_density\(reals, device=device\)"):
        density([8], device="cpu")
    with pytest.raises(InvalidParameter, match="one time is drawn for each example"):
        SampleDensity(Pacer("uniform", "edm"))([8, 3])


# --- lucidrains -------------------------------------------------------------------------------------------


def test_the_loss_of_lucidrains_is_that_of_the_noise() -> None:
    import lucidrains_protocol as theirs

    network = Tiny()
    diffusion = theirs.GaussianDiffusion(network)
    ready = lucidrains.loss_at(diffusion)
    images, noise, u = batch().sigmoid(), batch(1), torch.linspace(0.05, 0.95, 8)
    x = 2 * images - 1
    signal, rest = (scale.view(-1, 1, 1, 1) for scale in ready.process.scales(u))
    v = network((signal * x + rest * noise).float(), ready.process.time(u))
    eps = signal * v + rest * (signal * x + rest * noise)
    expected = (eps - noise).square().flatten(1).mean(1)
    assert torch.allclose(ready(images, noise, u), expected.float(), rtol=1e-3, atol=1e-5)
    with pytest.raises(Unsupported, match="denoising-diffusion-pytorch"):
        lucidrains.loss_at(network)


def test_a_coin_of_self_conditioning_stays_the_hosts() -> None:
    import lucidrains_protocol as theirs

    class Tossing(theirs.GaussianDiffusion):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            random.random()
            found: Tensor = super().forward(*args, **kwargs)
            return found

    before = random.getstate()
    lucidrains.loss_at(Tossing(Tiny()))(batch().sigmoid(), batch(1), torch.full((8,), 0.5))
    assert random.getstate() == before
