"""The gradients of a stratum are autograd's, of halves of different images, and measuring leaves no trace."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from small_context import Call, Network, Seen, examples, network
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stepwell
from stepwell.core.condition import select
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import GradientSignal
from stepwell.core.probe import GradientSpec
from stepwell.core.tick import Tick, stream_key, uniforms
from stepwell.objective import Objective
from stepwell.probes import Probe, probe_for
from stepwell.probes.gradients import Gradients, Sketch

BORDERS = (0.0, 0.25, 0.5, 1.0)
SPEC = GradientSpec(1, borders=BORDERS, images=4)
TICK = Tick(seed=5, step=7)
SIGNS = "sketch/5"
"""The stream of the signs of this seed."""
LINEAR = stepwell.process("linear")


def measured(seen: Seen, spec: GradientSpec = SPEC, count: int = 8, tick: Tick = TICK) -> GradientSignal:
    """What the probe says after an update on `count` examples."""
    probe, (x0, condition) = Gradients(), examples(count)
    probe.add_batch(x0, condition, spec, 1)
    signal = probe.after(seen.view(x0, condition, tick), spec)
    assert signal is not None
    return signal


def by_hand(seen: Seen, call: Call, weighting: str) -> list[Tensor | None]:
    """The gradient of the mean weighted loss on what one call was asked."""
    plain = Objective(seen.process)(seen.network, call.x0, call.noise, call.u, call.condition).plain
    loss = (plain * stepwell.weighting(weighting)(seen.process, call.u)).mean()
    trained = [parameter for parameter in seen.network.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(loss, trained, allow_unused=True))


def test_a_spec_of_gradients_gets_this_probe() -> None:
    assert isinstance(probe_for(SPEC), Gradients)
    assert type(probe_for(None)) is Probe


# what is measured


@pytest.mark.parametrize("count", [8, 11])
def test_the_halves_are_of_different_images_each_with_its_condition(count: int) -> None:
    seen = Seen(network(dropout=0.0))
    signal = measured(seen, count=count)
    one, other = seen.calls
    x0, condition = examples(count)
    labels = condition.labels[-8:]
    assert torch.equal(one.condition.labels, labels[::2])
    assert torch.equal(other.condition.labels, labels[1::2])
    assert torch.equal(one.x0, x0[-8:][::2])
    assert torch.equal(other.x0, x0[-8:][1::2])
    assert not torch.isin(one.noise, other.noise).any()
    assert not torch.isin(one.u, other.u).any()
    assert signal.images == 4


@pytest.mark.parametrize("step", range(6))
def test_strata_take_turns(step: int) -> None:
    seen = Seen(network(dropout=0.0))
    signal = measured(seen, tick=Tick(step=step))
    assert signal.stratum == SPEC.stratum(step) == step % 3
    for call in seen.calls:
        low, high = BORDERS[signal.stratum : signal.stratum + 2]
        assert ((call.u >= low) & (call.u < high)).all()


@pytest.mark.parametrize(("trained", "target"), [("none", None), ("min-snr", None), ("p2", "vlb")])
@pytest.mark.parametrize("metric", ["plain", "adam"])
def test_gradients_are_autograds(trained: str, target: str | None, metric: str) -> None:
    seen = Seen(network(dropout=0.0), weighting=trained)
    for _ in range(3):
        seen.update()
    spec = GradientSpec(1, target, BORDERS, images=4, preconditioned=metric == "adam")
    signal = measured(seen, spec)
    sketch = Sketch(list(seen.network.parameters()), signs=SIGNS)
    wanted = []
    for call, weighting in zip(seen.calls, (trained, target or trained), strict=True):
        gradients = by_hand(seen, call, weighting)
        if metric == "adam":
            # `update` has the same gradient every time: then v with its bias corrected is its square.
            steady = [torch.linspace(-1, 1, g.numel()).view(g.shape) + 0.1 for g in gradients]
            gradients = [g / (s.abs() + 1e-8).sqrt() for g, s in zip(gradients, steady, strict=True)]
        wanted.append(torch.cat([g.flatten() for g in gradients]))
        torch.testing.assert_close(signal.halves[len(wanted) - 1], sketch(gradients), rtol=1e-3, atol=1e-5)
    # 2 368 coordinates: fewer than buckets, so that inner products are exact.
    torch.testing.assert_close(
        signal.halves @ signal.halves.T, torch.stack(wanted) @ torch.stack(wanted).T, rtol=1e-3, atol=1e-6
    )


def test_before_adam_has_a_preconditioner_gradients_are_plain() -> None:
    signals = [
        measured(Seen(network(dropout=0.0)), GradientSpec(1, None, BORDERS, 4, preconditioned))
        for preconditioned in (True, False)
    ]
    assert torch.equal(signals[0].halves, signals[1].halves)


# what does not disturb it


class Spare(Network):
    """With a parameter that no output depends on, and one that is frozen."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.unused = nn.Parameter(torch.ones(3))
        self.into.bias.requires_grad_(False)


def test_parameters_without_a_gradient_and_frozen_ones_count_as_nothing() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        seen = Seen(Spare(dropout=0.0))
    for _ in range(2):
        seen.network.unused.grad = torch.ones(3)
        seen.optimizer.step()
    signal = measured(seen)
    first = by_hand(seen, seen.calls[0], "none")
    assert sum(gradient is None for gradient in first) == 1
    trained = [parameter for parameter in seen.network.parameters() if parameter.requires_grad]
    torch.testing.assert_close(signal.halves[0], Sketch(trained, signs=SIGNS)(first))
    assert len(trained) == len(list(seen.network.parameters())) - 1


def test_parameters_may_be_frozen_and_thawed_on_the_way() -> None:
    seen, probe = Seen(network(dropout=0.0)), Gradients()
    x0, condition = examples(8)
    probe.add_batch(x0, condition, SPEC, 1)
    view, norms = seen.view(x0, condition, TICK), []
    for frozen in (False, True, False):
        seen.network.label.weight.requires_grad_(not frozen)
        signal = probe.after(view, SPEC)
        assert signal is not None
        norms.append(float(signal.halves.norm()))
    assert norms[1] < norms[0] == norms[2]


def test_parameters_that_the_optimizer_does_not_move_are_not_measured() -> None:
    # As with adapters: the base is not even handed to the optimizer.
    seen = Seen(network(dropout=0.0))
    whole = measured(seen).halves
    seen.optimizer.param_groups[0]["params"] = list(seen.network.body.parameters())
    part = measured(seen).halves
    gradients = by_hand(seen, seen.calls[-1], "none")[-2:]
    assert part.shape == (2, 24 * 16 + 16)
    body = Sketch(list(seen.network.body.parameters()), signs=SIGNS)
    torch.testing.assert_close(part[1], body(gradients))
    assert part.norm() < whole.norm()


def test_bf16_autocast_measures_the_same_up_to_rounding() -> None:
    class Autocast(Network):
        def forward(self, *given: Any) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                output: Tensor = super().forward(*given)
                assert self.body[2](torch.zeros(1, 24)).dtype == torch.bfloat16
            return output.float()

    rounded = Seen(Autocast(dropout=0.0))
    rounded.network.load_state_dict(network(dropout=0.0).state_dict())
    found, exact = measured(rounded).halves, measured(Seen(network(dropout=0.0))).halves
    assert found.dtype == torch.float32
    assert 0 < (found - exact).norm() / exact.norm() < 0.02


def test_measuring_leaves_gradients_parameters_and_the_random_state_alone() -> None:
    seen = Seen(network(dropout=0.5))
    seen.update()
    for parameter in seen.network.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    grads = [parameter.grad for parameter in seen.network.parameters()]
    before = [parameter.detach().clone() for parameter in seen.network.parameters()]
    state = torch.get_rng_state()
    measured(seen)
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, grad, value in zip(seen.network.parameters(), grads, before, strict=True):
        assert parameter.grad is grad
        assert (grad == 3).all()
        assert torch.equal(parameter, value)
    assert seen.network.training


def test_it_measures_where_a_loop_has_switched_gradients_off() -> None:
    seen = Seen(network(dropout=0.0))
    with torch.no_grad():
        found = measured(seen).halves
    assert torch.equal(found, measured(Seen(network(dropout=0.0))).halves)
    assert not found.requires_grad


class Hidden(Network):
    """All that it trains lies in a checkpoint of the kind that autograd.grad does not see through."""

    def forward(self, *given: Any) -> Tensor:
        entry = torch.zeros((), requires_grad=True)
        inner = super().forward
        found: Tensor = checkpoint(inner, given[0] + entry, *given[1:], use_reentrant=True)
        return found


class Blind(Network):
    """Leaves no graph."""

    @torch.no_grad()
    def forward(self, *given: Any) -> Tensor:
        return super().forward(*given)


@pytest.mark.parametrize("kind", [Hidden, Blind])
def test_losses_that_show_no_gradient_are_an_error_that_says_why(kind: type[Network]) -> None:
    with pytest.raises(Unsupported, match="use_reentrant=False"):
        measured(Seen(kind()))


def _masks(seen: Seen) -> list[Tensor]:
    """What dropout lets through, call by call, from now on."""
    masks: list[Tensor] = []
    seen.network.body[1].register_forward_hook(lambda module, given, output: masks.append(output != 0))
    return masks


def test_dropout_is_on_and_not_that_of_training() -> None:
    seen = Seen(network(dropout=0.5))
    masks = _masks(seen)
    # As the trainer seeds it: the same tick, another stream.
    torch.default_generator.manual_seed(TICK.key("dropout"))
    x0, condition = examples(4)
    seen.view(x0, condition).loss_at(x0, x0, torch.full((4,), 0.5), condition)
    torch.default_generator.manual_seed(TICK.key("dropout"))
    measured(seen)
    training, one, other = masks
    for mask in masks:
        assert 0.3 < mask.float().mean() < 0.7
    for a, b in ((training, one), (training, other), (one, other)):
        # 96 coin tosses that agree in 80 places or more: once in 10^10.
        assert (a == b).sum() < 80


def test_the_same_tick_measures_the_same_bits_whatever_the_random_state() -> None:
    torch.manual_seed(1)
    one = measured(Seen(network(dropout=0.5))).halves
    torch.manual_seed(2)
    other = measured(Seen(network(dropout=0.5))).halves
    assert torch.equal(one, other)
    later = measured(Seen(network(dropout=0.5)), tick=Tick(seed=5, step=10)).halves
    assert not torch.equal(one, later)


# small batches


def _seen_in(sizes: tuple[int, ...], spec: GradientSpec) -> list[GradientSignal | None]:
    """Signals after every micro-batch of one long row of examples."""
    seen, probe, signals, start = Seen(network(dropout=0.0)), Gradients(), [], 0
    x0, condition = examples(sum(sizes))
    for micro, size in enumerate(sizes):
        rows = slice(start, start + size)
        probe.add_batch(x0[rows], select(condition, rows), spec, 1)
        view = seen.view(x0[rows], select(condition, rows), Tick(seed=5, step=7, micro=micro))
        signals.append(probe.after(view, spec))
        start += size
    return signals


def test_batches_of_two_are_pooled_until_both_halves_have_their_images() -> None:
    spec = GradientSpec(1, borders=BORDERS, images=8)
    signals = _seen_in((2,) * 9, spec)
    assert [signal is None for signal in signals] == [True] * 7 + [False] * 2
    assert signals[7] is not None
    assert signals[7].images == 8


@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2, 2), (1, 3, 4), (5, 3)])
def test_micro_batches_measure_what_one_batch_would(sizes: tuple[int, ...]) -> None:
    (whole,), pieces = _seen_in((8,), SPEC), _seen_in(sizes, SPEC)
    assert whole is not None
    assert pieces[-1] is not None
    torch.testing.assert_close(pieces[-1].halves, whole.halves)


@pytest.mark.parametrize(("images", "world", "each"), [(8, 2, 4), (5, 2, 3), (1, 4, 1)])
def test_a_rank_has_its_share_of_the_images(images: int, world: int, each: int) -> None:
    class Many:
        rank, world = 0, 1

        def mean(self, value: Tensor) -> Tensor:
            return value

    seen, probe, group = Seen(network(dropout=0.0)), Gradients(), Many()
    group.world = world
    spec = GradientSpec(1, borders=BORDERS, images=images)
    x0, condition = examples(2 * each)
    probe.add_batch(x0, condition, spec, world)
    signal = probe.after(seen.view(x0, condition, Tick(step=1, world=world), group), spec)
    assert signal is not None
    assert signal.images == each * world
    assert [len(call.x0) for call in seen.calls] == [each, each]


# in a run


class Run:
    """Training on small batches, a pure function of the step: as a loop would write it around a pacer."""

    def __init__(self, name: str, batch: int, **parameters: Any) -> None:
        self.network, self.batch = network(dropout=0.3), batch
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-2)
        self.objective = Objective(LINEAR, stepwell.weighting("min-snr"))
        self.broken = 0.0
        self.pacer = stepwell.Pacer(
            stepwell.sampler(name, LINEAR, strata=3, images=4, **parameters),
            LINEAR,
            "min-snr",
            loss_at=self._loss_at,
            optimizer=self.optimizer,
            network=self.network,
        )

    def _loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        plain = self.objective(self.network, x0, noise, u, condition).plain
        return torch.where(u < self.broken, torch.inf, 1.0) * plain

    def step(self, step: int) -> Tensor:
        """The times that were trained on."""
        tick = Tick(seed=2, step=step)
        torch.default_generator.manual_seed(tick.key("dropout"))
        x0, condition = examples(self.batch, seed=step)
        pace = self.pacer.draw(x0, tick, condition)
        noise = torch.randn(x0.shape, generator=tick.generator("noise"))
        losses = self.objective(self.network, x0, noise, pace.u, condition)
        self.optimizer.zero_grad()
        (losses.weighted * pace.correction).mean().backward()
        self.pacer.before_update()
        self.optimizer.step()
        self.pacer.after_update()
        return pace.u

    def state(self) -> io.BytesIO:
        parts = {"pacer": self.pacer, "network": self.network, "optimizer": self.optimizer}
        stored = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in parts.items()}, stored)
        stored.seek(0)
        return stored

    def load(self, stored: io.BytesIO) -> None:
        state = torch.load(stored, weights_only=True)
        self.pacer.load_state_dict(state["pacer"])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


SAMPLERS: dict[str, dict[str, Any]] = {
    "neyman": {},
    "gradient-variance": {"metric": "adam"},
    "alignment": {"target": "vlb"},
}
U = torch.linspace(0.01, 0.99, 99)


def _flat(run: Run) -> bool:
    return torch.allclose(run.pacer.sampler.density(U), torch.ones(99), atol=1e-5)


@pytest.mark.parametrize("stopped", [3, 11])
@pytest.mark.parametrize("batch", [2, 8])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resumed_run_goes_on_with_the_same_bits(name: str, batch: int, stopped: int) -> None:
    run, resumed = (Run(name, batch, every_steps=1, **SAMPLERS[name]) for _ in range(2))
    for step in range(stopped):
        run.step(step)
    resumed.load(run.state())
    for step in range(stopped, stopped + 8):
        assert torch.equal(run.step(step), resumed.step(step)), step
    assert torch.equal(run.pacer.sampler.density(U), resumed.pacer.sampler.density(U))
    assert not _flat(run), "it has learned something"
    for mine, other in zip(run.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(mine, other)


def signs_of(signal: GradientSignal, seen: Seen) -> Tensor:
    """The sign of every coordinate: fewer than buckets, so each has its own."""
    gradient = by_hand(seen, seen.calls[0], "none")
    return (signal.halves[0] / torch.cat([part.flatten() for part in gradient if part is not None])).sign()


def test_signs_are_those_of_the_runs_seed_and_the_same_at_every_step() -> None:
    found: dict[tuple[int, int], Tensor] = {}
    for seed, step in ((5, 7), (5, 8), (6, 7)):
        seen = Seen(network(dropout=0.0))
        found[seed, step] = signs_of(measured(seen, tick=Tick(seed, step)), seen)
        counts = [parameter.numel() for parameter in seen.network.parameters()]
        chances = [uniforms(stream_key("sketch", seed, k), count) for k, count in enumerate(counts)]
        known = found[seed, step].abs() == 1
        assert known.float().mean() > 0.3, "labels that were not seen have no gradient"
        wanted = torch.where(torch.cat(chances) < 0.5, -1.0, 1.0)
        assert torch.equal(found[seed, step][known], wanted[known])
    both = (found[5, 7].abs() == 1) & (found[6, 7].abs() == 1)
    # Half of some thousand signs differ; fewer than 40 % once in 1e20 pairs of seeds.
    assert (found[5, 7] != found[6, 7])[both].float().mean() > 0.4


OLD = Path(__file__).parents[1] / "old_version" / "alignment.pt"
"""State of this very Run after 6 steps and its next 6 times, by commit 666a7bf, whose signs had no seed."""


def test_a_run_from_before_signs_had_a_seed_goes_on_with_its_own() -> None:
    # Its bank is a sum of sketches with the old signs, to which others must not be added.
    old = torch.load(OLD, weights_only=True)
    runs = [Run("alignment", 8, every_steps=1, target="vlb") for _ in range(2)]
    stored = io.BytesIO()
    torch.save(old["state"], stored)
    stored.seek(0)
    runs[0].load(stored)
    for step in range(6, 12):
        if step == 9:
            runs[1].load(runs[0].state())
        # Bit for bit on the machine that recorded it; other processors round otherwise.
        assert torch.allclose(runs[0].step(step), old["times"][step - 6], atol=1e-3), step
        if step >= 9:
            assert torch.allclose(runs[1].step(step), old["times"][step - 6], atol=1e-3), "resumed again"


def test_nothing_is_learned_until_the_pool_is_full_and_every_stratum_was_measured() -> None:
    run = Run("neyman", 2, every_steps=1)
    flat = []
    for step in range(7):
        run.step(step)
        flat.append(_flat(run))
    # Eight images are there after step 3, three strata after step 5.
    assert flat == [True] * 5 + [False] * 2


def test_a_stratum_that_is_not_finite_counts_as_not_measured() -> None:
    run = Run("neyman", 8, every_steps=1)
    run.broken = 0.2
    for step in range(9):
        run.step(step)
        # The first of three strata has never been measured, so that nothing is known.
        assert _flat(run)
    run.broken = 0.0
    run.step(9)
    before = run.pacer.sampler.density(U)
    assert not _flat(run)
    # Once known, a measurement that fails changes nothing.
    run.broken = 1.0
    for step in range(10, 13):
        run.step(step)
        assert torch.equal(run.pacer.sampler.density(U), before)
