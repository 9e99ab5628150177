"""From a workload and key=value words to a checked recipe; all mistakes at once."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import canonical
from stepwell.catalogue.spec import split_pair
from stepwell.core.errors import StepwellError, unknown
from stepwell.generate.solvers import SOLVERS
from stepwell.models.registry import MODELS
from stepwell.recipes.method import resolve, workload_files
from stepwell.recipes.schema import Recipe

TRACKERS = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "aim": "aim",
    "mlflow": "mlflow",
    "comet_ml": "comet_ml",
    "clearml": "clearml",
    "dvclive": "dvclive",
    "swanlab": "swanlab",
}
"""The trackers that accelerate knows, and their packages."""

_TYPES = typing.get_type_hints(Recipe)
ALIASES = {"from": "start"}
"""What people write, where Python has the word for itself."""


class BadRecipe(StepwellError, ValueError):
    """Everything that is wrong with a recipe."""

    def __init__(self, source: str, mistakes: Sequence[str]) -> None:
        self.mistakes = list(mistakes)
        noun = "mistake" if len(mistakes) == 1 else "mistakes"
        lines = "".join(f"\n  - {mistake}" for mistake in mistakes)
        super().__init__(f"{len(mistakes)} {noun} in {source}:{lines}")


def load(workload: str, words: Sequence[str] = ()) -> Recipe:
    """The recipe of a shipped workload, or of a TOML file, changed by key=value words."""
    path = Path(workload) if workload.endswith(".toml") else workload_files().get(canonical(workload))
    if path is None:
        raise unknown("workload", workload, workload_files())
    mistakes: list[str] = []
    given = _read(path)
    for word in words:
        try:
            key, value = split_pair(word)
        except StepwellError as error:
            mistakes.append(str(error))
        else:
            given[key] = value
    return check(given, mistakes, source=f"{path.name} with {' '.join(words)}" if words else path.name)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise BadRecipe(str(path), [f"cannot read the file: {error.strerror}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise BadRecipe(str(path), [f"not valid TOML: {error}"]) from None


def check(given: Mapping[str, Any], mistakes: Sequence[str] = (), source: str = "the recipe") -> Recipe:
    """A Recipe, or one error that lists every mistake."""
    found = list(mistakes)
    values: dict[str, Any] = {}
    for word, value in given.items():
        key = ALIASES.get(word, word)
        if key not in _TYPES:
            found.append(str(unknown("setting", key, (*_TYPES, *ALIASES))))
        else:
            accepted, problem = _typed(key, value)
            if problem is None:
                values[key] = accepted
            else:
                found.append(problem)
    # Rules read what is sound so far, so that one wrong value does not hide the others.
    recipe = Recipe(**values)
    found += [mistake for rule in RULES for mistake in rule(recipe)]
    if found:
        raise BadRecipe(source, found)
    return recipe


def _typed(key: str, value: Any) -> tuple[Any, str | None]:
    """The value in its setting's type, or what is wrong with it."""
    wanted = _TYPES[key]
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if str in options and not isinstance(value, str) and value is not None:
        # 5,7 was read as a tuple, and is meant as it was written.
        value = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    fits = any(type(value) is option for option in options)
    names = " or ".join("none" if o is type(None) else o.__name__ for o in options)
    return value, None if fits else f"{key} must be {names}, not {value!r}"


def _positive(recipe: Recipe) -> list[str]:
    keys = ("steps", "batch", "lr", "accumulate", "record_every", "bands", "keep", "evaluate_images",
            "checkpoint_every", "sample_steps", "size", "seconds", "clip", "channels", "classes")  # fmt: skip
    wrong = [(key, getattr(recipe, key)) for key in keys]
    return [f"{key} must be above 0, not {value}" for key, value in wrong if value is not None and value <= 0]


def _not_negative(recipe: Recipe) -> list[str]:
    keys = (
        "warm_up_steps",
        "evaluate_every",
        "samples",
        "workers",
        "weight_decay",
        "ema",
        "seed",
        "guidance",
        "lora",
        "super_resolution",
    )
    wrong = [(key, getattr(recipe, key)) for key in keys]
    return [f"{key} must be 0 or more, not {value}" for key, value in wrong if value < 0]


def _shares(recipe: Recipe) -> list[str]:
    keys = ("label_dropout", "dropout", "beta1", "beta2")
    wrong = [(key, getattr(recipe, key)) for key in keys]
    found = [f"{key} must lie in [0, 1), not {value}" for key, value in wrong if not 0 <= value < 1]
    if recipe.ema_kind == "constant" and recipe.ema > 1:
        found.append(f"ema must lie in [0, 1], not {recipe.ema}")
    return found


def _choices(recipe: Recipe) -> list[str]:
    options = {
        "optimizer": ("adamw", "adam"),
        "precision": ("no", "bf16", "fp16"),
        "ema_kind": ("constant", "power"),
        "model": tuple(MODELS),
        "solver": SOLVERS,
    }
    return [
        str(unknown(key, getattr(recipe, key), known))
        for key, known in options.items()
        if getattr(recipe, key) not in known
    ]


def _guidance(recipe: Recipe) -> list[str]:
    if recipe.guidance == 1 or (recipe.labels and recipe.label_dropout > 0):
        return []
    return [
        f"guidance={recipe.guidance:g} compares a class with no class: it needs labels=true and "
        "label_dropout above 0, or guidance=1"
    ]


def _fine_tuning(recipe: Recipe) -> list[str]:
    from stepwell.models.lora import MISSING, is_available

    found = []
    if recipe.start_digest and not recipe.start:
        found.append("start_digest is of the weights that from= names: give both, or neither")
    if recipe.lora > 0 and not recipe.start:
        found.append(f"lora={recipe.lora} adapts a network that is trained already: name it with from=RUN")
    if recipe.lora > 0 and not is_available():
        found.append(f"lora={recipe.lora} {MISSING}")
    return found


def _shown(recipe: Recipe) -> list[str]:
    """What is chosen of the data, and what of it the network is shown."""
    from stepwell.data.load import parse_classes

    found = []
    try:
        parse_classes(recipe.only_classes)
    except StepwellError as error:
        found.append(str(error))
    factor, size = recipe.super_resolution, recipe.size
    if factor == 1:
        found.append("super_resolution=1 would show the network the image itself: give 2 or more, or 0")
    if factor > 1 and size is not None and size % factor:
        found.append(f"super_resolution={factor} does not divide size={size}")
    return found


def _extractor(recipe: Recipe) -> list[str]:
    from stepwell.evaluate.extractors import NAMES

    known = not recipe.extractor or recipe.extractor in NAMES
    return [] if known else [str(unknown("extractor", recipe.extractor, NAMES))]


def _tracker(recipe: Recipe) -> list[str]:
    if recipe.tracker == "none":
        return []
    if recipe.tracker not in TRACKERS:
        return [str(unknown("tracker", recipe.tracker, {"none", *TRACKERS}))]
    package = TRACKERS[recipe.tracker]
    if find_spec(package) is None:
        return [f"tracker={recipe.tracker} needs a package that is not installed: pip install {package}"]
    return []


def _names(recipe: Recipe) -> list[str]:
    """Method and process, built for real: their own checks speak."""
    from stepwell.catalogue import build

    found, process = [], None
    try:
        process = build.as_process(recipe.process)
        if recipe.solver in SOLVERS:
            process.solver(recipe.solver)
    except StepwellError as error:
        found.append(str(error))
    try:
        method = resolve(recipe.method)
        weighting = build.weighting(method.weighting[0], **method.weighting[1])
        if process is not None:
            build.sampler(method.sampler[0], process, **method.sampler[1])
            weighting(process, process.grid()[:1])
    except StepwellError as error:
        found.append(str(error))
    return found


def _data(recipe: Recipe) -> list[str]:
    if recipe.data == "PATH":
        return ["data=PATH is to be filled in: a folder of images, an .npz, CIFAR-10's folder or hub:NAME"]
    return []


RULES = (
    _positive,
    _not_negative,
    _shares,
    _choices,
    _guidance,
    _fine_tuning,
    _shown,
    _extractor,
    _tracker,
    _names,
    _data,
)
