"""Puts a checkpoint's state back into a training, once all of it is known to fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from stepwell.core.tensors import to_device
from stepwell.train.checkpoint import Checkpoint, split
from stepwell.train.shards import Like
from stepwell.train.step import Training, TrainingStopped

Shape = tuple[int, ...]


def restore(training: Training, stored: Checkpoint) -> None:
    """Put a checkpoint's state back, or say what of it does not fit before anything was changed."""
    require_fit(training, stored)
    tree = stored.tree
    # First, since it checks its own state and leaves all as it was if that does not fit.
    training.pacer.load_state_dict(tree["pacer"])
    training.network.load_state_dict(tree["model"])
    training.optimizer.load_state_dict(to_device(tree["optimizer"], training.accelerator.device))
    training.ema.load(tree["ema"])
    training.pacer.seconds = stored.info.get("sampler_seconds", 0.0)


def like(training: Training) -> Like:
    """The tensors of a training by the names that a checkpoint has for them."""
    _, tensors = split({"model": training.network.state_dict(), "ema": training.ema.average})
    trained: list[Tensor] = [
        parameter for group in training.optimizer.param_groups for parameter in group["params"]
    ]

    def named(name: str) -> Tensor | None:
        kind, _, rest = name.partition("/state/")
        number = rest.partition("/")[0]
        if kind == "optimizer" and number.isdecimal() and int(number) < len(trained):
            return trained[int(number)]
        return tensors.get(name)

    return named


def require_fit(training: Training, stored: Checkpoint) -> None:
    """Refuse a checkpoint whose weights, averages or moments have other shapes than the training's."""
    differing = list(_differences(training, stored.tree))
    if differing:
        raise TrainingStopped(
            f"the checkpoint of step {stored.info['step']} is of another model, or damaged: {len(differing)} "
            f"tensors differ, the first is {differing[0]}. Train with its model, or use another out=."
        )


def _differences(training: Training, tree: Any) -> Iterator[str]:
    """What of model, EMA and optimizer is not like the training's, with both shapes."""
    yield from _other_shapes("", training.network.state_dict(), _entries(tree, "model"))
    yield from _other_shapes("average ", dict(enumerate(training.ema.average)), _entries(tree, "ema"))
    optimizer, groups = _entries(tree, "optimizer"), training.optimizer.param_groups
    if not _same_groups(optimizer.get("param_groups"), [len(group["params"]) for group in groups]):
        yield "the optimizer's list of parameters"
        return
    trained = [parameter for group in groups for parameter in group["params"]]
    for number, moments in _entries(optimizer, "state").items():
        if not isinstance(number, int) or not 0 <= number < len(trained):
            yield f"the optimizer's state of a parameter {number!r}, which there is not"
            continue
        # Adam's moments are like their parameter, counts are numbers; other optimizers' factors are theirs.
        wanted = {
            name: trained[number] if _is_moment(name) else 0 if name == "step" else value
            for name, value in _items(moments)
        }
        yield from _other_shapes(f"the optimizer's state {number}/", wanted, dict(_items(moments)))


def _is_moment(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(("exp_avg", "max_exp_avg"))


def _other_shapes(what: str, wanted: Mapping[Any, Any], stored: Mapping[Any, Any]) -> Iterator[str]:
    for name in sorted(wanted.keys() | stored.keys(), key=str):
        ours, theirs = _shape(wanted.get(name)), _shape(stored.get(name))
        if ours != theirs or theirs is None:
            yield f"{what}{name}, {_words(theirs)} there and {_words(ours)} here"


def _shape(value: Any) -> Shape | None:
    """The shape of a tensor, () of a number, None of anything else."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return () if isinstance(value, (int, float)) else None


def _words(shape: Shape | None) -> str:
    return "missing" if shape is None else str(list(shape))


def _same_groups(groups: Any, sizes: Sequence[int]) -> bool:
    """Whether groups of a stored optimizer hold as many parameters as ours."""
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return False
    listed = [group.get("params") for group in groups]
    return all(isinstance(one, list) for one in listed) and [len(one) for one in listed] == list(sizes)


def _entries(tree: Any, name: str) -> dict[Any, Any]:
    """A part of a tree by name or number; nothing if there is no such part."""
    return dict(_items(tree.get(name))) if isinstance(tree, dict) else {}


def _items(part: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(part, dict):
        yield from part.items()
    elif isinstance(part, list):
        yield from enumerate(part)
