"""The Pacer: one object between a sampler and any training loop.

    draw, observe (once per micro-batch) -> before_update -> the optimizer steps -> after_update

An attached pacer makes the last two calls itself. Losses and probe signals are gathered over all workers
before sampler and weighting learn from them, so that every rank holds the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import Tensor, nn

from stepwell.catalogue import build
from stepwell.core import require, saved_state
from stepwell.core.errors import InvalidParameter, StateMismatch
from stepwell.core.noise import COUPLINGS
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import WorkerGroup, worker_group
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick, stream_key
from stepwell.pacer.attach import Attachment, UnheardSteps
from stepwell.pacer.forecast import Forecast, Forecaster
from stepwell.pacer.pace import Pace, resolve_weightings, timestep_table
from stepwell.pacer.probe_loop import ProbeLoop
from stepwell.pacer.window import CallOrderError, Counter, Window
from stepwell.probes.context import LossAt
from stepwell.weightings import LearnedWeighting, Weighting

_SHARE_EVERY = 16
"""Updates between two values of the effective sample share."""

_OF_RANK = ("probe", "metrics", "forecast")
"""Parts of the state that differ between ranks."""


class Pacer:
    """Sampler, weighting and probe of one training run.

    Sampler, process and weighting are objects, or NAME or NAME:key=value,... of the catalogue; a process may
    also be a scheduler, and must be given. Samplers that measure need `loss_at` (the plain losses of any
    examples at any times; `stepwell.loss_at` has ready-made ones) and an optimizer, here or in `attach`; with
    `network` they switch dropout off meanwhile. `host_weighting` is one that the loop applies itself: probes
    use it, `Pace.weight` leaves it out. A weighting that learns (`uncertainty`) follows the observed losses;
    its state is in `state_dict`. `noise="paired"` makes `Pace.noise_like` opposite for neighbours in time;
    probes measure with independent noise in any case. `updates` is the planned length of the run, if it is
    known: in a short one, the first measurements come faster.
    """

    def __init__(
        self,
        sampler: TimestepSampler | str = "auto",
        process: NoiseProcess | str | Any = None,
        weighting: Weighting | str = "none",
        *,
        host_weighting: Weighting | str | None = None,
        loss_at: LossAt | None = None,
        optimizer: Any = None,
        network: nn.Module | None = None,
        group: WorkerGroup | None = None,
        seed: int = 0,
        noise: str = "independent",
        updates: int | None = None,
    ) -> None:
        if process is None:
            raise InvalidParameter(
                "a pacer needs the process that your loop trains: Pacer(process=noise_scheduler), or its "
                'name, as in Pacer("neyman", "linear").'
            )
        self.process = build.as_process(process)
        self.sampler = build.sampler(sampler, self.process) if isinstance(sampler, str) else sampler
        self.weighting, self._pace_weighting = resolve_weightings(weighting, host_weighting)
        self._learned_weighting = self.weighting if isinstance(self.weighting, LearnedWeighting) else None
        self._timestep_table = timestep_table(process, self.process)
        self._noise = require.one_of("noise", noise, COUPLINGS)
        self._group = group
        if updates is not None:
            require.count("updates", updates)
        self._probe_loop = ProbeLoop(
            self.sampler, self.process, self.weighting, loss_at, optimizer, network, updates
        )
        self._attachment: Attachment | None = None
        learns = self.sampler.learns or self._learned_weighting is not None
        self._unheard = UnheardSteps(optimizer) if optimizer is not None and learns else None
        self._counter = Counter(seed)
        self._evaluation: Counter | None = None
        self._window = Window(self.sampler, self.weighting)
        self._forecaster = Forecaster(self.process, self.sampler)
        self._knows_observe = False
        """Whether the loop has observed losses, or was told to."""
        self.draws = 0
        """Micro-batches drawn for training."""
        self.metrics: Metrics = {}
        """The newest value of every metric of the sampler and its corrections."""
        self.seconds = 0.0
        """Time spent on drawing, probing and learning so far."""

    def attach(self, *optimizers: Any, closure: bool = False) -> Self:
        """Call `before_update` and `after_update` around every update, by hooks on the optimizer.

        Several optimizers that step for one loss are one update. With a `closure`, losses are computed inside
        the step: call `before_update` at its end yourself.
        """
        if self._attachment is not None:
            raise CallOrderError(
                f"this pacer is attached to {self._attachment} already: attach once, before the loop; "
                "several optimizers in one call, pacer.attach(one, two); for another one call detach() first."
            )
        attachment = Attachment(optimizers, self._before_update, self._after_update, closure)
        self._probe_loop.use_optimizers(attachment.optimizers)
        attachment.register()
        self._attachment = attachment
        return self

    @property
    def first_round(self) -> int | None:
        """Updates until a sampler that measures gradients knows all of time; None for other samplers."""
        return self._probe_loop.first_round

    def detach(self) -> None:
        """Remove the hooks from the optimizers."""
        if self._attachment is not None:
            self._attachment.remove()
            self._probe_loop.use_optimizers(())
        self._attachment = None
        self._new_window()

    def draw(self, x0: Tensor, tick: Tick | None = None, condition: Any = None) -> Pace:
        """Timesteps for the next micro-batch x0 [B, ...]; without a tick, the pacer counts updates itself."""
        _require_examples(x0)
        if tick is not None and not isinstance(tick, Tick):
            raise InvalidParameter(
                f"the second argument of draw is a Tick, not {type(tick).__name__}: write condition=... for "
                "what the network gets beside input and time."
            )
        with self._timed():
            if self._group is None:
                # Not earlier: the process group may be set up after the pacer is made.
                self._group = worker_group()
            if self._evaluation is not None:
                tick = self._evaluation.tick(self._group)
                self._evaluation.next_update()
                return self._pace(self.sampler.draw(x0, tick), tick)
            self._replace_failed_draw()
            if self._attachment is not None:
                self._attachment.require_own_steps()
            elif self._unheard is not None:
                self._unheard.require_calls()
            tick = self._counter.tick(self._group) if tick is None else tick
            self._probe_loop.add_batch(x0, tick, condition, self._group)
            draw = self.sampler.draw(x0, tick)
            self._probe_loop.loop_check.expect(x0, draw.u)
            self._window.add_draw(draw, tick)
            self._counter.next_micro_batch(tick)
            self.draws += 1
        return self._pace(draw, tick)

    def _replace_failed_draw(self) -> None:
        """A draw without losses is a batch whose forward pass failed: the next draw takes its place.

        Before any losses it may also be a loop that does not observe them, which is told once.
        """
        if not self._knows_observe:
            self._knows_observe = self._window.lacks_losses
            self._window.require_losses("a second draw")
        self._window.forget_failed()

    def _pace(self, draw: Draw, tick: Tick) -> Pace:
        weighting, table = self._pace_weighting, self._timestep_table
        return Pace(draw.u, draw.correction, self.process, weighting, tick, self._noise, table)

    def eval(self) -> Self:
        """The next draws are for an evaluation: not counted, not learned from, the same every time."""
        # A stream of its own: none of these uniforms is used in training.
        self._evaluation = Counter(stream_key(self._counter.seed, "evaluation"))
        return self

    def train(self) -> Self:
        """The next draws are for training again."""
        self._evaluation = None
        return self

    def observe(self, plain: PerExample) -> None:
        """The plain losses [B] of the micro-batch drawn last."""
        if self._evaluation is not None:
            return
        self._window.add_losses(plain)
        self._knows_observe = True
        with self._timed():
            self._forecaster.observe(self._window.last_u, plain, self.weighting)
        self._probe_loop.remember_autocast(plain)

    def measure(self, x0: Tensor, condition: Any = None) -> None:
        """Measure the gradient's signal and noise on examples x0 [n, ...] of every rank, for `forecast`.

        Sixteen backward passes of n / 16 examples each, through `loss_at`, at the weights as they are: put
        averaged ones in place if you keep them. Three measurements make a forecast of images.
        """
        _require_examples(x0)
        group = self._group = worker_group() if self._group is None else self._group
        tick = Tick(self._counter.seed, self._counter.step, 0, group.rank, group.world)
        self._forecaster.noise.measure(self._probe_loop.context(x0, tick, condition, group))

    def forecast(self) -> Forecast:
        """What these draws and the best ones leave of the gradient's variance, and what that is worth.

        Free, and as good as losses stand for gradients; `measure` makes it sharper.
        """
        return self._forecaster.forecast(self.weighting)

    def before_update(self, optimizer: Any = None) -> None:
        """The gradients are ready and the optimizer (which one, if several are attached) is about to step."""
        if self._attachment is not None and self._attachment.closure:
            self._attachment.before_step(optimizer)
            return
        self._require_detached("before_update")
        self._window.require_draw("before_update")
        self._before_update()

    def after_update(self, skipped: bool = False) -> Metrics:
        """The optimizer has stepped: measure, gather, learn. Returns the newest value of every metric.

        An update that a GradScaler `skipped` (fp16) is no update: its draws belong to the next one.
        """
        self._require_detached("after_update")
        self._window.require_draw("after_update")
        if self._unheard is not None:
            self._unheard.heard()
        if not skipped:
            self._after_update()
        return self.metrics

    def _before_update(self) -> None:
        # Hooks fire for every update: one without a draw is not ours.
        if self._window.tick is not None:
            with self._timed():
                self._probe_loop.before(self._window.tick)

    def _after_update(self) -> None:
        tick = self._window.tick
        if tick is None or self._group is None:
            return
        self._window.require_losses("after_update")
        with self._timed():
            try:
                self.metrics = {**self.metrics, **self._learn(self._window, self._group, tick)}
            finally:
                # Also after losses that a learner refuses: the parameters have moved, and nothing of this
                # update may come back with the next.
                self._new_window()
                self._counter.next_update()

    def _learn(self, window: Window, group: WorkerGroup, tick: Tick) -> dict[str, Tensor]:
        """Weighting and sampler learn from the update, the sampler from losses as they were weighted."""
        signal = self._probe_loop.after()
        self._forecaster.batch = window.examples * group.world
        metrics: dict[str, Tensor] = {}
        for_sampler = window.sampler_needs_losses or signal is not None
        if for_sampler or self._learned_weighting is not None:
            feedback = window.feedback(self.process, signal).gathered(group)
            # The weighting refuses what the sampler refuses, and more: then neither has learned.
            if self._learned_weighting is not None:
                metrics |= self._learned_weighting.learn(self.process, feedback)
            if for_sampler:
                metrics |= self.sampler.learn(feedback)
        # Its five small operations cost as much as a draw does: now and then is enough.
        if self.sampler.reference is not None and tick.step % _SHARE_EVERY == 0:
            metrics["effective_sample_share"] = window.effective_share()
        return metrics

    def _new_window(self) -> None:
        self._window = Window(self.sampler, self.weighting)
        self._probe_loop.release_batch()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def _require_detached(self, call: str) -> None:
        if self._attachment is not None:
            raise CallOrderError(
                f"{call} was called on a pacer that is attached to {self._attachment}, whose hooks do this: "
                "remove the call, or the attach."
            )

    def state_dict(self) -> State:
        """Everything that the next draw and weights depend on, beside a host's tick, and the metrics."""
        learned = self._learned_weighting
        return {
            "sampler": self.sampler.state_dict(),
            **({} if learned is None else {"weighting": learned.state_dict()}),
            "probe": self._probe_loop.state_dict(),
            "metrics": {name: value.clone() for name, value in self.metrics.items()},
            "counter": self._counter.state_dict(),
            "forecast": self._forecaster.state_dict(),
        }

    def gathered_state_dict(self) -> State:
        """On rank 0, `state_dict` with what the other ranks hold for themselves; every rank has to call it.

        All ranks hold one sampler, but probes keep images and forecasts losses of their own rank.
        """
        state, group = self.state_dict(), worker_group() if self._group is None else self._group
        if group.world == 1:
            return state
        return {**state, "ranks": group.gather_states({name: state[name] for name in _OF_RANK})}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken; of a gathered one, with the part of this rank.

        A state that does not fit is refused, and the pacer stays as it was.
        """
        before = self.state_dict()
        try:
            self._load(state)
        except StateMismatch:
            self._load(before)
            raise

    def _load(self, state: State) -> None:
        sampler = saved_state.part(state, "sampler", "the Pacer")
        own = state.get("ranks", [])
        group = worker_group() if self._group is None else self._group
        if isinstance(own, list) and len(own) == group.world:
            state = {**state, **saved_state.part(dict(enumerate(own)), group.rank, "the Pacer")}
        self.sampler.load_state_dict(sampler)
        self._load_weighting(state.get("weighting"))
        self._probe_loop.load_state_dict(saved_state.part(state, "probe", "the Pacer"))
        kept = state.get("metrics", {})
        self.metrics = {name: saved_state.tensor(kept, name, "the Pacer", finite=False) for name in kept}
        if "forecast" in state:
            self._forecaster.load_state_dict(saved_state.part(state, "forecast", "the Pacer"))
        if "counter" in state:
            self._counter.load_state_dict(saved_state.part(state, "counter", "the Pacer"))
        self._new_window()

    def _load_weighting(self, state: State | None) -> None:
        if self._learned_weighting is not None:
            self._learned_weighting.load_state_dict({} if state is None else state)
        elif state is not None:
            raise StateMismatch(
                f"this state has what {state.get('kind')} learned, and the weighting of this pacer does not "
                "learn: give it the one that the state was saved with."
            )


def _require_examples(x0: Any) -> None:
    """Refuse what is no batch of examples."""
    if not isinstance(x0, Tensor) or x0.dim() == 0:
        given = "a single number" if isinstance(x0, Tensor) else f"a {type(x0).__name__}"
        raise InvalidParameter(
            f"x0 must be the examples of a batch, a tensor [B, ...], and not {given}: stack them first, as "
            "in torch.stack(examples)."
        )
