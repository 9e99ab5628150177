"""torch's own optimizer hooks as the turns of a pacer: they fire around real updates, whoever calls step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.nn import Parameter
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.pacer.window import OutOfTurn


class Attachment:
    """Calls `before` as the first of the optimizers is about to step, `after` once all have stepped."""

    def __init__(
        self,
        optimizers: Sequence[Any],
        before: Callable[[], None],
        after: Callable[[], None],
        closure: bool = False,
    ) -> None:
        if not optimizers:
            raise InvalidParameter("attach needs an optimizer: write pacer.attach(optimizer).")
        self.optimizers = [inner(optimizer) for optimizer in optimizers]
        if len({id(optimizer) for optimizer in self.optimizers}) < len(self.optimizers):
            raise InvalidParameter("attach got the same optimizer twice: name each one once.")
        self._before, self._after, self.closure = before, after, closure
        self._announced = False
        self._stepped: set[int] = set()
        self._handles: list[RemovableHandle] = []

    def __str__(self) -> str:
        return " and ".join(type(optimizer).__name__ for optimizer in self.optimizers)

    def register(self) -> None:
        """Put the hooks on."""
        for optimizer in self.optimizers:
            if not self.closure:
                self._handles.append(optimizer.register_step_pre_hook(self._pre_hook))
            self._handles.append(optimizer.register_step_post_hook(self._post_hook))

    def detach(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def about_to_step(self, optimizer: Any = None) -> None:
        """The gradients of an optimizer are ready."""
        self._announced = True
        # One that steps again while another has not: that one was skipped, and this is a new update.
        if not self._stepped or (optimizer is not None and id(inner(optimizer)) in self._stepped):
            self._stepped.clear()
            self._before()

    def _pre_hook(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(callable(given) for given in (*args, *kwargs.values())):
            raise _closure(optimizer)
        self.about_to_step(optimizer)

    def _post_hook(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not moved(optimizer):
            return
        if not self._announced:
            raise OutOfTurn(
                f"{type(optimizer).__name__} has stepped and nobody called pacer.before_update(): a pacer "
                "attached with closure=True needs it at the end of the closure, after the backward pass."
            )
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self.optimizers):
            self._stepped.clear()
            self._announced = False
            self._after()


def moved(optimizer: Optimizer) -> bool:
    """Whether a step that was called did anything.

    Under a GradScaler, fused optimizers are called in any case and skip the step themselves: the scaler
    leaves `found_inf` on them for as long. Others are not called at all. Reading it waits for the device.
    """
    found = getattr(optimizer, "found_inf", None)
    return found is None or not bool(found)


def inner(optimizer: Any) -> Optimizer:
    """The optimizer that really steps, inside accelerate's and others' wrappers."""
    given = optimizer
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        _refuse_deepspeed(optimizer)
        optimizer = optimizer.optimizer
    _refuse_deepspeed(optimizer)
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise InvalidParameter(
            f"attach needs a torch.optim.Optimizer, not {type(given).__name__}: give it the one whose step "
            "moves the parameters, or call before_update and after_update around each update."
        )
    if isinstance(optimizer, LBFGS):
        raise _closure(optimizer)
    return optimizer


def _refuse_deepspeed(optimizer: Any) -> None:
    kind = type(optimizer)
    if "deepspeed" in f"{kind.__module__}.{kind.__name__}".lower():
        raise Unsupported(
            f"{kind.__name__} does not step, DeepSpeed's engine does: do not attach, but call "
            "pacer.before_update() and pacer.after_update() around engine.step() where it really updates "
            "(engine.is_gradient_accumulation_boundary())."
        )


def _closure(optimizer: Optimizer) -> Unsupported:
    return Unsupported(
        f"{type(optimizer).__name__} is stepped with a closure: its losses are computed inside the step, so "
        "the hooks come too early. Call backward() and then optimizer.step() without a closure; or "
        "attach(optimizer, closure=True) and call pacer.before_update() at the end of the closure, after the "
        "backward pass (stepwell.integrations.lightning does)."
    )


class Together:
    """Several optimizers, read as one."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> Together:
        return self

    def get(self, parameter: Parameter, default: Any) -> Any:
        """A parameter's state; asking must not make one, as optimizers' own dictionaries do."""
        states = (optimizer.state for optimizer in self._optimizers)
        return next((state[parameter] for state in states if parameter in state), default)
