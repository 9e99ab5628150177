"""The settings of a recipe: default, meaning, constraint, and what a change of each one means."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

from stepwell.catalogue.spec import split_pair
from stepwell.core import require
from stepwell.core.errors import StepwellError, quoted, unknown
from stepwell.generate.solvers import SOLVERS
from stepwell.models.registry import MODELS, SAVED
from stepwell.runs.directory import Limit
from stepwell.runs.metrics import EXTRACTORS
from stepwell.train.learning_rate import SCHEDULES
from stepwell.train.optimizers import OPTIMIZERS

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
SHARDING = ("none", "full")
"""How a network lies on several ranks."""
TRACKERS = ("tensorboard", "wandb", "trackio", "aim", "mlflow", "comet_ml", "clearml", "dvclive", "swanlab")
"""The trackers that accelerate knows; each is also the name of its package."""


class BadRecipe(StepwellError, ValueError):
    """Everything that is wrong with a recipe, in one error."""

    def __init__(self, source: str, mistakes: Sequence[str]) -> None:
        self.mistakes = list(mistakes)
        noun = "mistake" if len(mistakes) == 1 else "mistakes"
        lines = "".join(f"\n  - {mistake}" for mistake in mistakes)
        super().__init__(f"{len(mistakes)} {noun} in {source}:{lines}")


Constraint = Callable[[str, Any], str]
"""(setting, value) -> what is wrong with the value, or an empty string."""


def above(low: float, most: int = require.MOST) -> Constraint:
    """The value must be larger than `low`, and at most `most`."""
    return _limited(lambda value: bool(value > low), f"above {low}", most)


def at_least(low: float, most: int = require.MOST) -> Constraint:
    """The value must be `low` or more, and at most `most`: where a number becomes memory."""
    return _limited(lambda value: bool(value >= low), f"{low} or more", most)


def _limited(is_enough: Callable[[Any], bool], least: str, most: int) -> Constraint:
    def mistake(name: str, value: Any) -> str:
        if not is_enough(value):
            return f"{name} must be {least}, not {quoted(value)}"
        return "" if value <= most else f"{name} must be at most {most:,}, not {quoted(value)}"

    return mistake


def below_one(name: str, value: float) -> str:
    """The value must lie in [0, 1)."""
    return "" if 0 <= value < 1 else f"{name} must lie in [0, 1), not {value}"


def one_of(*choices: str) -> Constraint:
    """The value must be one of some names."""
    return lambda name, value: "" if value in choices else str(unknown(name, value, choices))


_IN_WORDS = {
    str: "text (in a file: between quotes)",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    type(None): "none",
}


@dataclass(frozen=True)
class Setting:
    """A setting: its types, meaning, constraint, and what a change of it means."""

    name: str
    types: tuple[type, ...]
    meaning: str
    constraint: Constraint | None
    may_change: bool
    """A resumed run may change it."""
    defines_result: bool
    """A finished run with another value is another result."""
    compared: bool
    """Runs that differ in it are still compared with each other."""

    def typed(self, value: Any) -> tuple[Any, str]:
        """The value in the setting's type, and what is wrong with it if it has none of them."""
        if float in self.types and type(value) is int and require.is_finite(value):
            value = float(value)
        if self.types == (str,) and isinstance(value, tuple | list) and all(type(n) is int for n in value):
            # [5, 7] in a file is 5,7 on the command line.
            value = ",".join(map(str, value))
        if type(value) in self.types and (type(value) is not float or require.is_finite(value)):
            return value, ""
        names = " or ".join(_IN_WORDS[kind] for kind in self.types)
        return value, f"{self.name} must be {names}, not {quoted(value)}"

    def mistake(self, value: Any) -> str:
        """What is wrong with a value of the right type; empty if nothing is."""
        return "" if self.constraint is None or value is None else self.constraint(self.name, value)


def setting(
    default: Any,
    meaning: str,
    constraint: Constraint | None = None,
    *,
    may_change: bool = False,
    defines_result: bool = True,
    compared: bool = False,
) -> Any:
    """A field of Recipe with its metadata."""
    facts = {"meaning": meaning, "constraint": constraint, "may_change": may_change}
    facts |= {"defines_result": defines_result, "compared": compared or may_change}
    return field(default=default, metadata=facts)


output_setting = partial(setting, may_change=True, defines_result=False)
"""A setting of what is written or how fast, not of what is trained."""


@dataclass(frozen=True)
class Recipe:
    """One training run as recipe.json keeps it: plain values, one for each setting."""

    data: str = setting(
        "fashion16", "fashion16, a folder of images or latents, an .npz, CIFAR-10's folder, or hub:NAME"
    )
    method: str = setting(
        "uniform", "a sampler, a weighting, sampler+weighting, or a method file", compared=True
    )
    process: str = setting("linear", "a noise process, as NAME or NAME:key=value,...")
    model: str = setting(
        "tiny",
        "a network that `stepwell ls models` lists; diffusers: that of the folder that from= names",
        one_of(*MODELS, SAVED),
    )
    steps: int = setting(2000, "optimizer steps", above(0), may_change=True)
    batch: int = setting(64, "examples per rank and micro-batch", above(0, 1_000_000))
    lr: float = setting(1e-3, "learning rate", above(0), compared=True)
    seed: int = setting(0, "seed of weights, data order, timesteps and noise", at_least(0), compared=True)
    out: str = output_setting(
        "", "run directory; by default runs/WORKLOAD-METHOD-SEED, with -from-START for fine-tuning"
    )

    start: str = setting(
        "",
        "weights to fine-tune: a run, a checkpoint, or a folder of diffusers or hub:ORG/NAME; also written "
        "from=...",
        defines_result=False,  # start_digest does: the same weights may lie elsewhere
    )
    start_digest: str = setting("", "digest of those weights; filled in when the run starts")
    network: str = setting(
        "", "configuration of a network that diffusers saved (JSON); filled in from that folder"
    )
    lora: int = setting(0, "rank of LoRA adapters; 0 trains the whole network", at_least(0, 10_000))

    noise: str = setting(
        "independent",
        "independent, or paired: opposite for neighbours in time",
        one_of("independent", "paired"),
    )
    seconds: float | None = setting(
        None, "stop after this much training time, evaluation excluded", above(0), may_change=True
    )
    accumulate: int = setting(1, "micro-batches per optimizer step", above(0))
    optimizer: str = setting(
        "adamw",
        "adamw and adam (fused), adafactor, or of their own packages lion, prodigy and adamw-8bit",
        one_of(*OPTIMIZERS),
    )
    beta1: float = setting(0.9, "Adam's beta1", below_one)
    beta2: float = setting(0.999, "Adam's beta2; for lion 0.99 unless given", below_one)
    weight_decay: float = setting(0.0, "weight decay of the optimizer", at_least(0))
    clip: float | None = setting(1.0, "largest gradient norm; none: no clipping", above(0))
    warm_up_steps: int = setting(0, "linear warm-up of the learning rate", at_least(0))
    lr_schedule: str = setting(
        "constant",
        "of the learning rate after warm-up: constant; linear or cosine, to 0 at the end; wsd: to 0 in the "
        "last fifth",
        one_of(*SCHEDULES),
    )
    ema: float = setting(0.999, "decay of the EMA weights, or exponent with ema_kind=power", at_least(0))
    ema_kind: str = setting("constant", "constant or power", one_of("constant", "power"))

    size: int | None = setting(None, "resize and crop images to this", above(0, 16_384))
    channels: int | None = setting(None, "1 (grey) or 3 (colour); by default as in the data", above(0, 3))
    labels: bool = setting(False, "condition on class labels")
    classes: int | None = setting(None, "number of classes; by default as in the data", above(0, 1_000_000))
    only_classes: str = setting("", "train on these classes only, such as 5,7,9; by default on all")
    super_resolution: int = setting(
        0, "factor of super-resolution: the network also sees the reduced image; 0: none", at_least(0, 1024)
    )
    captions: bool = setting(
        False, "condition on captions: a .txt beside each image, or metadata.jsonl (file_name, text)"
    )
    text_encoder: str = setting(
        "",
        "embeds captions: a folder with a CLIP text model and its tokenizer, or hub:ORG/NAME",
        may_change=True,
        defines_result=False,  # text_digest does: the same encoder may lie elsewhere
    )
    text_digest: str = setting("", "digest of the text encoder; filled in when the run starts")
    label_dropout: float = setting(
        0.1, "share of labels or captions dropped in training, for guidance", below_one
    )
    flips: bool | None = setting(None, "random horizontal flips; by default where the data allow")
    strict: bool = setting(False, "refuse folders with files that are not images")
    workers: int = output_setting(
        2, "threads that decode images which do not fit in memory", at_least(0, 1024)
    )

    autoencoder: str = setting(
        "", "decodes latents: a folder or hub:NAME; by default the one their cache names", may_change=True
    )
    dropout: float = setting(0.0, "dropout of the network", below_one)
    learned_variance: bool = setting(False, "the network also predicts the reverse variance")
    precision: str = setting("no", "no (float32), bf16 or fp16", one_of("no", "bf16", "fp16"))
    channels_last: bool = setting(False, "memory format of images")
    compile: bool = setting(False, "torch.compile the network")
    gradient_checkpointing: bool = setting(
        False, "compute activations again in the backward pass: less memory, more time"
    )
    device: str = output_setting(
        "auto", "auto (a GPU if there is one), cpu, cuda, mps or xpu", one_of(*DEVICES)
    )
    sharding: str = setting(
        "none",
        "none: each rank holds the whole network (DDP); full: a part of it (FSDP)",
        one_of(*SHARDING),
        may_change=True,
        defines_result=False,
    )

    record_every: int = output_setting(50, "steps between lines of metrics", above(0))
    evaluate_every: int = setting(500, "steps between evaluations; 0: never", at_least(0), compared=True)
    evaluate_images: int = setting(256, "held-out images per evaluation", above(0, 10_000_000))
    bands: int = setting(
        20, "bands of unit time that held-out losses are reported for", above(0, require.MOST_STRATA)
    )
    checkpoint_every: int = setting(500, "steps between checkpoints", above(0), compared=True)
    keep: int = output_setting(2, "newest checkpoints kept", above(0))
    keep_best: bool = output_setting(
        False, "also keep the checkpoint with the lowest held-out simple loss, of those that were evaluated"
    )
    samples: int = output_setting(64, "images of a sample sheet; 0: none", at_least(0, 100_000))
    sample_every: int = output_setting(
        0, "steps between sample sheets during training; 0: one at the end", at_least(0)
    )
    solver: str = setting(
        "ddim",
        "generates images: ddpm, ddim, heun, dpm-solver++ or unipc; in continuous time heun (also the "
        "meaning of ddim there), euler, ancestral or predictor-corrector",
        one_of(*SOLVERS),
        may_change=True,
    )
    sample_steps: int = output_setting(50, "denoising steps of generation", above(0, require.MOST_BINS))
    guidance: float = setting(
        1.0, "classifier-free guidance of generation; 1: none", at_least(0), may_change=True
    )
    extractor: str = setting(
        "",
        "features for distances: inception, resnet20-cifar10 or fashion16; by default only the last",
        one_of("", *EXTRACTORS),
        may_change=True,
    )
    tracker: str = output_setting(
        "none", "none, tensorboard, or any tracker of accelerate", one_of("none", *TRACKERS)
    )

    @property
    def conditional(self) -> bool:
        """Whether images have a label: that of a class, or the number of a caption."""
        return self.labels or self.captions

    @property
    def decays(self) -> bool:
        """Whether the learning rate depends on the number of steps."""
        return self.lr_schedule != "constant"

    @property
    def limit(self) -> Limit:
        """When the run is over."""
        return Limit(self.steps, self.seconds)

    def values(self) -> dict[str, Any]:
        """Every setting by name, for JSON."""
        return asdict(self)

    def agrees(self, other: Recipe, names: Iterable[str]) -> bool:
        """Whether two recipes have the same values of some settings."""
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Whether it has these values, of any spelling (`from`, 1 for 1.0)."""
        return all(
            str(getattr(self, SPELLINGS.get(key, key), None)) == str(value) for key, value in settings.items()
        )

    @classmethod
    def from_saved(cls, values: Mapping[str, Any], source: str = "the recipe") -> Recipe:
        """The recipe of a recipe.json of any version: settings that it lacks have their defaults."""
        found = {name: SETTINGS[name].typed(value) for name, value in values.items() if name in SETTINGS}
        mistakes = [mistake for _, mistake in found.values() if mistake]
        if mistakes:
            raise BadRecipe(source, mistakes)
        return cls(**{name: value for name, (value, _) in found.items()})


def _settings() -> Mapping[str, Setting]:
    hints = typing.get_type_hints(Recipe)
    return {
        f.name: Setting(f.name, typing.get_args(hints[f.name]) or (hints[f.name],), **f.metadata)
        for f in fields(Recipe)
    }


SETTINGS = _settings()
"""Every setting by name, in the order in which it is printed."""
MAY_CHANGE = frozenset(name for name, s in SETTINGS.items() if s.may_change)
"""Settings that a resumed run may change."""
DEFINES_RESULT = frozenset(name for name, s in SETTINGS.items() if s.defines_result)
"""Settings in which two runs with one result agree."""
SPELLINGS = {"from": "start"}
"""Other names of settings: `from` is a keyword of Python."""


def read_words(words: Sequence[str], mistakes: list[str], texts: Collection[str] = ()) -> dict[str, Any]:
    """The settings that key=value words give, the last one of a key; `mistakes` gets what is no such word.

    The value of a setting that is text stays as it is written, so that 2024_01_15 and 1e3 name folders.
    `texts`: other keys whose values are text.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        setting = SETTINGS.get(SPELLINGS.get(key, key))
        is_text = bool(equals) and (key in texts or (setting is not None and setting.types == (str,)))
        try:
            found[key] = text if is_text else split_pair(word)[1]
        except StepwellError as error:
            mistakes.append(str(error))
    return found
