"""The policy: its start, its shapes, its bounds and its Adam."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from stepwell.core.tick import Tick, stream_key, uniforms
from stepwell.samplers.beta_policy.beta import beta_entropy
from stepwell.samplers.beta_policy.policy import (
    LARGEST,
    Adam,
    AdamSettings,
    Bounds,
    Policy,
    PolicyNetwork,
    SamePolicy,
    initial_shapes,
    prepared,
)

CPU = torch.device("cpu")
SEED = 3
VECTORS = [(6,), (6, 1), (6, 40)]
IMAGES = [(6, 3, 32, 32), (6, 1, 5, 9), (6, 2, 1, 1), (6, 4, 64, 8)]
OTHERS = [(6, 3, 17), (6, 3, 8, 8, 8), (6, 2, 1, 20, 20), (6, 1, 2, 3, 4, 5)]
SHAPES = VECTORS + IMAGES + OTHERS


def policy(bounds: Bounds | None = None, conditional: bool = True, rate: float = 1e-2) -> Policy:
    return Policy(16, conditional, bounds or Bounds(), AdamSettings(rate))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_example_starts_at_the_published_shapes(shape: tuple[int, ...], conditional: bool) -> None:
    shapes = policy(conditional=conditional)(prepared(noise(*shape)))
    assert shapes.shape == (6, 2)
    assert torch.allclose(shapes, torch.full((6, 2), 0.9740869842))
    assert torch.allclose(
        beta_entropy(shapes.double()), torch.tensor(-2.4785334e-4, dtype=torch.float64), atol=1e-9
    )


def test_what_density_says_before_any_draw_is_the_start() -> None:
    assert torch.allclose(initial_shapes(), torch.full((1, 2), 0.9740869842))


def test_the_network_is_the_official_codes() -> None:
    # 3 x 32 x 32: three convolutions of 3 x 3, 128 x 4 x 4 values, two hidden layers, two outputs.
    network = PolicyNetwork(3, 2, 256, 0, CPU)
    sizes = [tuple(parameter.shape) for name, parameter in network.named_parameters() if "weight" in name]
    assert sizes == [(32, 3, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (256, 2048), (256, 256), (2, 256)]
    last = network.linear[-1]
    assert not last.weight.any()
    assert last.bias.tolist() == [0.5, 0.5]
    nn.init.normal_(last.weight, generator=torch.Generator().manual_seed(1))
    reference = nn.Sequential(
        *[
            part
            for one, other in itertools.pairwise((3, 32, 64, 128))
            for part in (nn.Conv2d(one, other, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        ],
        nn.Flatten(),
        *[nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)],
    )
    with torch.no_grad():
        for theirs, ours in zip(reference.parameters(), network.parameters(), strict=True):
            theirs.copy_(ours)
    x = noise(5, 3, 32, 32)
    assert torch.allclose(network(x), reference(x), atol=1e-5)


def test_hidden_layers_start_as_torch_starts_them() -> None:
    # Uniform within 1 / sqrt(fan in), from a stream of its own: the same on every rank, whatever was drawn.
    torch.rand(3)
    before = torch.get_rng_state()
    one, other = PolicyNetwork(3, 2, 256, 0, CPU), PolicyNetwork(3, 2, 256, 0, CPU)
    assert torch.equal(before, torch.get_rng_state())
    for (name, here), there in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(here, there), name
    for layer in [*one.convolutions, *one.linear[:-1]]:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        assert layer.weight.abs().max() <= bound
        # The variance of a uniform is a third of its bound's square; 864 values or more are near it.
        assert float(layer.weight.detach().var()) == pytest.approx(bound**2 / 3, rel=0.15)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 1], ids=str)
def test_the_shapes_depend_on_the_example_after_learning(shape: tuple[int, ...]) -> None:
    actor, x = policy(), prepared(noise(*shape))
    wanted = torch.tensor([1.0, -1.0]).repeat(3)
    for _ in range(3):
        actor.improve(x, lambda shapes: shapes[:, 0] * wanted, SEED)
    a = actor(x)[:, 0]
    assert a.std() > 1e-4
    one = torch.cat([actor(x[row : row + 1]) for row in range(6)])
    assert torch.allclose(one, actor(x), atol=1e-5), "an example's density is its own"


def test_sizes_of_images_share_a_network_and_kinds_do_not() -> None:
    actor = policy()
    for shape in [(2, 3, 32, 32), (2, 3, 64, 16), (2, 3, 8, 8), (2, 3, 1, 5)]:
        actor.improve(prepared(noise(*shape)), lambda shapes: shapes.sum(1), SEED)
    assert list(actor.state_dict()) == ["3/2"]
    for shape in [(2, 4, 8, 8), (2, 3, 9), (2, 3), (2,)]:
        actor.improve(prepared(noise(*shape)), lambda shapes: shapes.sum(1), SEED)
    assert list(actor.state_dict()) == ["3/2", "4/2", "3/1", "3/0", "1/0"]


def test_examples_are_averaged_down_and_never_up() -> None:
    x = noise(2, 3, 64, 16)
    small = prepared(x)
    assert small.shape == (2, 3, LARGEST, 16)
    assert torch.allclose(small, x.view(2, 3, 32, 2, 16).mean(3), atol=1e-6)
    assert torch.equal(prepared(x[..., :30, :]), x[..., :30, :])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_the_policy_runs_in_float32_under_any_precision(dtype: torch.dtype) -> None:
    actor, x = policy(), (100 * Tick().uniform("x", 2 * 3 * 8 * 8)).view(2, 3, 8, 8).to(dtype)
    actor.improve(prepared(x), lambda shapes: shapes.sum(1), SEED)
    plain = actor(prepared(x.float()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = actor(prepared(x))
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, plain)


def test_bounds_leave_the_middle_alone_and_hold() -> None:
    outputs, bounds = torch.linspace(-100, 200, 3001)[:, None].expand(-1, 2), Bounds(least=0.5, most=32)
    free, bounded = Bounds()(outputs), bounds(outputs)
    assert torch.allclose(free, torch.nn.functional.softplus(outputs) + 1e-5)
    inside = (free > 0.51) & (free < 32)
    assert torch.equal(bounded[inside], free[inside])
    assert bounded.min() >= 0.5
    assert bounded.max() <= 32.0001


def test_outputs_that_make_no_difference_are_brought_back() -> None:
    bounds = Bounds(least=0.5, most=32)
    assert not bounds.penalty(torch.tensor([[-0.4, 0.5], [0.0, 31.0]])).any()
    far = torch.tensor([[-50.0, 0.5], [0.5, 90.0]]).requires_grad_()
    bounds.penalty(far).mean().backward()
    assert far.grad is not None
    assert (far.grad.sign() == torch.tensor([[-1.0, 0.0], [0.0, 1.0]])).all()
    assert not Bounds().penalty(1000 * far.detach()).any()


@pytest.mark.parametrize("memory", [0.999, 0.99])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e9])
def test_adam_is_torchs(clip: float, memory: float) -> None:
    ours = SamePolicy(CPU) if clip == 1.0 else PolicyNetwork(2, 1, 8, 0, CPU)
    theirs, x = copy.deepcopy(ours), noise(4, 2, 9)
    rule, betas = AdamSettings(1e-2, clip, memory), (0.9, memory)
    adam, torchs = Adam(ours, rule), torch.optim.Adam(theirs.parameters(), lr=1e-2, betas=betas)
    for step in range(12):
        adam.step((ours(x) * noise(4, 2, seed=step)).sum())
        torchs.zero_grad()
        (theirs(x) * noise(4, 2, seed=step)).sum().backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        torchs.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_loss_that_is_not_finite_moves_nothing() -> None:
    actor, x = policy(), noise(4, 3)
    before = actor(x)
    for bad in (math.nan, math.inf):
        actor.improve(x, lambda shapes, bad=bad: (shapes * bad).sum(1), SEED)
    assert torch.equal(actor(x), before)
    actor.improve(x, lambda shapes: shapes.sum(1), SEED)
    assert (actor(x) < before).all()


def test_what_is_not_finite_does_not_go_on_by_momentum() -> None:
    actor, x = policy(), noise(4, 3)
    for _ in range(3):
        actor.improve(x, lambda shapes: shapes.sum(1), SEED)
    before = actor.state_dict()["3/0"]
    actor.improve(x, lambda shapes: (shapes * math.nan).sum(1), SEED)
    after = actor.state_dict()["3/0"]
    for part in ("weights", "first", "second"):
        assert all(torch.equal(after[part][name], value) for name, value in before[part].items()), part


def test_only_own_examples_make_a_step() -> None:
    x, own = noise(6, 3), torch.tensor([True, False, True, True, False, False])
    actors = [policy(Bounds(least=0.5, most=32)) for _ in range(3)]
    for number in range(4):
        loss = noise(6, 2, seed=number)
        actors[0].improve(x, lambda shapes, loss=loss: (shapes * loss).sum(1), SEED, own)
        actors[1].improve(x[own], lambda shapes, loss=loss: (shapes * loss[own]).sum(1), SEED)
        actors[2].improve(x, lambda shapes: shapes.sum(1), SEED, torch.zeros(6, dtype=torch.bool))
    assert torch.allclose(actors[0](x), actors[1](x), atol=1e-5)
    assert torch.equal(actors[2](x), initial_shapes().expand(6, 2)), "without one there is no step"


def test_a_networks_start_is_its_seeds() -> None:
    states = []
    for seed in (0, 0, 1):
        actor = policy()
        actor.improve(noise(4, 3), lambda shapes: 0 * shapes.sum(1), seed)
        states.append(actor.state_dict()["3/0"]["weights"])
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    for name in ("linear.0.weight", "linear.0.bias", "linear.1.weight"):
        # Two uniforms of the same width correlate by less than 0.6 in all but one of 1e6 pairs of 48 values.
        pair = torch.stack([states[0][name].flatten(), states[2][name].flatten()])
        assert not torch.equal(*pair)
        assert name.endswith("bias") or abs(float(pair.corrcoef()[0, 1])) < 0.6
    chance = uniforms(stream_key("policy", 1, "linear 0", "weight"), 48)
    assert torch.allclose(states[2]["linear.0.weight"].flatten(), (2 * chance - 1) / 3**0.5)


def test_a_step_is_taken_wherever_gradients_are_switched_off() -> None:
    actor, x = policy(), noise(4, 3)
    before = actor(x)
    with torch.no_grad():
        old = actor.improve(x, lambda shapes: shapes.sum(1), SEED)
    assert not old.requires_grad
    assert torch.equal(old, before)
    assert (actor(x) < before).all()


@pytest.mark.parametrize("conditional", [True, False])
def test_a_reloaded_policy_goes_on_with_the_same_bits(conditional: bool) -> None:
    one, other = policy(conditional=conditional), policy(conditional=conditional)
    for shape in [(4, 3, 8, 8), (4, 5)]:
        for step in range(3):
            one.improve(noise(*shape, seed=step), lambda shapes: shapes.square().sum(1), SEED)
    other.load_state_dict(one.state_dict())
    for shape in [(4, 3, 8, 8), (4, 5)]:
        for each in (one, other):
            each.improve(noise(*shape, seed=7), lambda shapes: (2 - shapes).square().sum(1), SEED)
        assert torch.equal(one(noise(*shape)), other(noise(*shape)))


@pytest.mark.parametrize("pair", [(0.4, 0.9), (1.0, 1.0), (3.0, 7.0)])
def test_the_entropy_is_that_of_torchs_beta(pair: tuple[float, float]) -> None:
    expected = torch.distributions.Beta(*torch.tensor(pair, dtype=torch.float64)).entropy()
    assert torch.allclose(beta_entropy(torch.tensor([pair], dtype=torch.float64))[0], expected)
