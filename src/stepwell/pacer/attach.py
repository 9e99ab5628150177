"""torch's optimizer hooks, which call a pacer before and after every update, whoever calls step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from torch.nn import Parameter
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.pacer.window import CallOrderError

PATIENCE = 2
"""Updates by another optimizer before that is an error: some step twice for one loss."""


class Attachment:
    """Calls `before` when the first of the optimizers is about to step, `after` when all have stepped."""

    def __init__(
        self,
        optimizers: Sequence[Any],
        before: Callable[[], None],
        after: Callable[[], None],
        closure: bool = False,
    ) -> None:
        if not optimizers:
            raise InvalidParameter("attach needs an optimizer: write pacer.attach(optimizer).")
        self.optimizers = [unwrap_optimizer(optimizer) for optimizer in optimizers]
        if len({id(optimizer) for optimizer in self.optimizers}) < len(self.optimizers):
            raise InvalidParameter("attach got the same optimizer twice: name each one once.")
        self._before, self._after, self.closure = before, after, closure
        self._before_called = False
        self._stepped: set[int] = set()
        self._handles: list[RemovableHandle] = []
        self._others: list[str] = []
        """Kinds of the other optimizers that moved the same parameters since the last update."""

    def __str__(self) -> str:
        return " and ".join(type(optimizer).__name__ for optimizer in self.optimizers)

    def register(self) -> None:
        """Add the hooks."""
        for optimizer in self.optimizers:
            if not self.closure:
                self._handles.append(optimizer.register_step_pre_hook(self._pre_hook))
            self._handles.append(optimizer.register_step_post_hook(self._post_hook))
        _listen(self)

    def require_own_steps(self) -> None:
        """Refuse to go on if others step instead: the host has replaced the optimizer since `attach`."""
        if len(self._others) < PATIENCE:
            return
        other, self._others = self._others[-1], []
        raise CallOrderError(
            f"this pacer is attached to {self}, and a {other} that it is not attached to moved the same "
            f"parameters in {PATIENCE} updates instead: call pacer.detach() and pacer.attach(optimizer) with "
            "the one that steps."
        )

    def stepped(self, optimizer: Optimizer) -> None:
        """Some optimizer of this process has stepped."""
        if any(optimizer is own for own in self.optimizers):
            return
        ours = {id(p) for own in self.optimizers for group in own.param_groups for p in group["params"]}
        if any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            self._others.append(type(optimizer).__name__)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        _LISTENERS.discard(self)

    def before_step(self, optimizer: Any = None) -> None:
        """The gradients of an optimizer are ready."""
        self._before_called = True
        # One that steps again before another has stepped: the other was skipped, and this is a new update.
        if not self._stepped or (optimizer is not None and id(unwrap_optimizer(optimizer)) in self._stepped):
            self._stepped.clear()
            self._before()

    def _pre_hook(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(callable(argument) for argument in (*args, *kwargs.values())):
            raise _closure_error(optimizer)
        self.before_step(optimizer)

    def _post_hook(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._others.clear()
        if _skipped_inside(optimizer):
            return
        if not self._before_called:
            raise CallOrderError(
                f"{type(optimizer).__name__} stepped without pacer.before_update(): a pacer attached with "
                "closure=True needs that call at the end of the closure, after the backward pass."
            )
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self.optimizers):
            self._stepped.clear()
            self._before_called = False
            self._after()


class UnheardSteps:
    """Counts the steps of an optimizer that a pacer knows and is not attached to."""

    def __init__(self, optimizer: Any) -> None:
        while not isinstance(optimizer, Optimizer) and hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        self._optimizer, self._steps = optimizer, 0
        _listen(self)

    def stepped(self, optimizer: Optimizer) -> None:
        """Some optimizer of this process has stepped."""
        self._steps += optimizer is self._optimizer

    def heard(self) -> None:
        """The pacer was told of the update."""
        self._steps = 0

    def require_calls(self) -> None:
        """Refuse to go on if updates are not told: a sampler that learns would never learn."""
        if self._steps > PATIENCE:
            raise CallOrderError(
                f"{type(self._optimizer).__name__} stepped {self._steps} times and the pacer was not told, "
                "so its sampler learns nothing: write pacer.attach(optimizer) before the loop, or call "
                "before_update and after_update around each update."
            )


_LISTENERS: WeakSet[Attachment | UnheardSteps] = WeakSet()
"""Weak, since torch keeps the hook below for good, and with it would keep every network."""
_LISTENING: list[RemovableHandle] = []


def _listen(listener: Attachment | UnheardSteps) -> None:
    _LISTENERS.add(listener)
    if not _LISTENING:
        _LISTENING.append(register_optimizer_step_post_hook(_tell_all))


def _tell_all(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for listener in _LISTENERS:
        listener.stepped(optimizer)


def _skipped_inside(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer skipped the step that it was called for.

    A GradScaler calls fused optimizers in any case and sets `found_inf` on them meanwhile; it does not call
    others for a step that is skipped. Reading it waits for the device.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer inside accelerate's and others' wrappers."""
    outer = optimizer
    _refuse_deepspeed(optimizer)
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
        _refuse_deepspeed(optimizer)
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise InvalidParameter(
            f"attach needs a torch.optim.Optimizer, not {type(outer).__name__}: give it the one whose step "
            "moves the parameters, or call before_update and after_update around each update."
        )
    if isinstance(optimizer, LBFGS):
        raise _closure_error(optimizer)
    return optimizer


def _refuse_deepspeed(optimizer: Any) -> None:
    kind = type(optimizer)
    if "deepspeed" in f"{kind.__module__}.{kind.__name__}".lower():
        raise Unsupported(
            f"{kind.__name__} does not step, DeepSpeed's engine does: do not attach, but call "
            "pacer.before_update() and pacer.after_update() around engine.step() where it really updates "
            "(engine.is_gradient_accumulation_boundary())."
        )


def _closure_error(optimizer: Optimizer) -> Unsupported:
    return Unsupported(
        f"{type(optimizer).__name__} is stepped with a closure: its losses are computed inside the step, so "
        "the hooks come too early. Call backward() and then optimizer.step() without a closure; or "
        "attach(optimizer, closure=True) and call pacer.before_update() at the end of the closure, after the "
        "backward pass (stepwell.integrations.lightning does)."
    )


class JoinedOptimizers:
    """Parameters and state of several optimizers, read as if they were one."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> JoinedOptimizers:
        return self

    def get(self, parameter: Parameter, default: Any) -> Any:
        """A parameter's state; reading must not create one, as optimizers' own dictionaries do."""
        states = (optimizer.state for optimizer in self._optimizers)
        return next((state[parameter] for state in states if parameter in state), default)
