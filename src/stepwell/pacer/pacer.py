"""The pacer: one object between a sampler and any training loop.

    draw, observe (once per micro-batch) -> before_update -> the optimizer steps -> after_update

An attached pacer takes the last two turns by itself. It carries losses and probe signals to the sampler, over
all workers, so that every rank holds the same one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import Tensor, nn

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import WorkerGroup, worker_group
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick, stream_key
from stepwell.pacer.attach import Attachment
from stepwell.pacer.pace import Pace as Pace
from stepwell.pacer.pace import table_of, trained_and_handed
from stepwell.pacer.probe_loop import Measuring
from stepwell.pacer.window import Counter, Window
from stepwell.pacer.window import OutOfTurn as OutOfTurn
from stepwell.probes.context import LossAt
from stepwell.weightings import Weighting


class Pacer:
    """Sampler, weighting and probe of one training run, as objects or by the names of the catalogue.

    Samplers that measure need `loss_at` (the plain losses of any examples at any times; `stepwell.loss_at`
    has ready ones) and an optimizer, here or in `attach`; `network` lets them switch dropout off meanwhile.
    `host_weighting` is one that the loop applies by itself: samplers are told, `Pace.weight` leaves it out.
    """

    def __init__(
        self,
        sampler: TimestepSampler | str,
        process: NoiseProcess | str | Any,
        weighting: Weighting | str = "none",
        *,
        host_weighting: Weighting | str | None = None,
        loss_at: LossAt | None = None,
        optimizer: Any = None,
        network: nn.Module | None = None,
        group: WorkerGroup | None = None,
        seed: int = 0,
    ) -> None:
        self.process = build.as_process(process)
        self.sampler = build.sampler(sampler, self.process) if isinstance(sampler, str) else sampler
        self.weighting, self._handed = trained_and_handed(weighting, host_weighting)
        self._table = table_of(process, self.process)
        self._group = group
        self._measuring = Measuring(self.sampler)
        self._measuring.watch(self.process, self.weighting, loss_at, optimizer, network)
        self._attachment: Attachment | None = None
        self._counter = Counter(seed)
        self._aside: Counter | None = None
        self._window = Window(self.sampler)
        self.draws = 0
        """Micro-batches that were drawn for training."""
        self.metrics: Metrics = {}
        """The newest of everything that sampler and corrections reported."""
        self.seconds = 0.0
        """What drawing, probing and learning took so far, as the host's clock sees it."""

    def attach(self, *optimizers: Any, closure: bool = False) -> Self:
        """Take the turns around every real update: of one optimizer, or of all that step for one loss.

        With a `closure`, losses are computed inside the step: call `before_update` at its end yourself.
        """
        if self._attachment is not None:
            raise OutOfTurn(
                f"this pacer is attached to {self._attachment} already: attach once, before the loop; "
                "several optimizers in one call, pacer.attach(one, two); for another one call detach() first."
            )
        attachment = Attachment(optimizers, self._about_to_update, self._has_updated, closure)
        self._measuring.watch_optimizers(attachment.optimizers)
        attachment.register()
        self._attachment = attachment
        return self

    def detach(self) -> None:
        """Let the optimizers step unheard again."""
        if self._attachment is not None:
            self._attachment.detach()
            self._measuring.watch_optimizers(())
        self._attachment = None
        self._forget()

    def draw(self, x0: Tensor, tick: Tick | None = None, condition: Any = None) -> Pace:
        """Timesteps for the next micro-batch x0 [B, ...]; without a tick, the pacer counts updates itself."""
        if tick is not None and not isinstance(tick, Tick):
            raise InvalidParameter(
                f"the second argument of draw is a Tick, not {type(tick).__name__}: write condition=... for "
                "what the network is told beside the time."
            )
        with self._timed():
            if self._aside is None:
                self._window.require_room()
            if self._group is None:
                # Not earlier: a process group may be younger than the pacer.
                self._group = worker_group()
            if self._aside is not None:
                drawn = self.sampler.draw(x0, self._aside.tick(self._group))
                self._aside.updated()
                return self._pace(drawn)
            tick = self._counter.tick(self._group) if tick is None else tick
            self._measuring.see(x0, tick, condition, self._group)
            drawn = self.sampler.draw(x0, tick)
            self._measuring.drew(x0, drawn.u)
            self._window.add(drawn, tick)
            self._counter.drew(tick)
            self.draws += 1
        return self._pace(drawn)

    def _pace(self, drawn: Draw) -> Pace:
        return Pace(drawn.u, drawn.correction, self.process, self._handed, self._table)

    def eval(self) -> Self:
        """Draws are for an evaluation from here on: nothing counts them, and nothing is learned from them."""
        # The same uniforms in every evaluation, none of them training's.
        self._aside = Counter(stream_key(self._counter.seed, "evaluation"))
        return self

    def train(self) -> Self:
        """Draws are for training again."""
        self._aside = None
        return self

    def observe(self, plain: PerExample) -> None:
        """The plain losses of the micro-batch drawn last."""
        if self._aside is not None:
            return
        self._window.hear(plain)
        self._measuring.notice(plain)

    def before_update(self, optimizer: Any = None) -> None:
        """The gradients are ready and the optimizer is about to step (of several: which)."""
        if self._attachment is not None and self._attachment.closure:
            self._attachment.about_to_step(optimizer)
            return
        self._require_detached("before_update")
        self._window.turn("before_update")
        self._about_to_update()

    def after_update(self) -> Metrics:
        """The optimizer has stepped: measure, gather, learn. Returns the newest of every metric."""
        self._require_detached("after_update")
        self._window.turn("after_update")
        self._has_updated()
        return self.metrics

    def _about_to_update(self) -> None:
        # An update without a draw is somebody else's: hooks hear of all.
        if self._window.tick is not None:
            with self._timed():
                self._measuring.before(self._window.tick)

    def _has_updated(self) -> None:
        if self._window.tick is None or self._group is None:
            return
        with self._timed():
            signal = self._measuring.after()
            metrics: dict[str, Tensor] = {}
            if self._window.needs_losses or signal is not None:
                feedback = self._window.feedback(self.process, self.weighting, signal)
                metrics |= self.sampler.learn(feedback.gathered(self._group))
            if self.sampler.reference is not None:
                metrics["effective_sample_share"] = self._window.effective_share()
            self.metrics = {**self.metrics, **metrics}
            self._forget()
            self._counter.updated()

    def _forget(self) -> None:
        self._window = Window(self.sampler)
        self._measuring.forget()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    def _require_detached(self, call: str) -> None:
        if self._attachment is not None:
            raise OutOfTurn(
                f"{call} was called on a pacer that is attached to {self._attachment}, which does this by "
                "itself: remove the call, or the attach."
            )

    def state_dict(self) -> State:
        """Everything that the next draw depends on, beside a tick of the host's, and the metrics."""
        return {
            "sampler": self.sampler.state_dict(),
            "probe": self._measuring.probe.state_dict(),
            "metrics": {name: value.clone() for name, value in self.metrics.items()},
            "counter": self._counter.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self.sampler.load_state_dict(state["sampler"])
        self._measuring.probe.load_state_dict(state["probe"])
        self.metrics = {name: value.clone() for name, value in state.get("metrics", {}).items()}
        if "counter" in state:
            self._counter.load_state_dict(state["counter"])
        self._forget()
