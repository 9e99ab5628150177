"""A plan: a recipe that was checked as a whole and resolved once, for everything that runs or counts it.

Settings are checked before torch is imported, so that a mistake in one is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stepwell.catalogue.spec import Spec
from stepwell.core.errors import StepwellError, unknown
from stepwell.data.classes import parse_classes
from stepwell.models.registry import SAVED, TEXT_MODELS
from stepwell.recipes.method import Method, parse_method
from stepwell.recipes.schema import SETTINGS, SPELLINGS, TRACKERS, BadRecipe, Recipe
from stepwell.recipes.unnamed import followed
from stepwell.train.optimizers import OPTIMIZERS, missing_package

if TYPE_CHECKING:
    from stepwell.core.process import NoiseProcess
    from stepwell.core.sampler import TimestepSampler
    from stepwell.objective import Objective

FILL_IN = "PATH"
"""Stands in shipped workloads for data that the user has to name."""


Begin = Callable[[Recipe], None]
Settle = Callable[[Recipe], Mapping[str, Any]]
"""Settings that a checked recipe leaves to what it names."""


@dataclass(frozen=True)
class Plan:
    """A checked recipe with its method parsed and its process built."""

    recipe: Recipe
    method: Method
    process: NoiseProcess
    followed_from: Mapping[str, Any] = field(default_factory=dict)
    """The workload's values of settings that follow others here (`recipes/unnamed.py`)."""

    def objective(self) -> Objective:
        """The loss that is trained, with a new weighting: each training has its own, because some learn."""
        from stepwell.catalogue import build
        from stepwell.objective import Objective

        return Objective(self.process, build.weighting(self.method.weighting))

    @property
    def solver(self) -> str:
        """The solver of generation, as this process understands the recipe's."""
        return self.process.solver(self.recipe.solver)

    def sampler(self) -> TimestepSampler:
        """A new timestep sampler: each training has its own, because samplers learn."""
        from stepwell.catalogue import build

        return build.sampler(self.method.sampler, self.process)

    def with_settings(self, **changes: Any) -> Plan:
        """The same plan with other plain settings; another method or process is another plan."""
        if changes.keys() & {"method", "process"}:
            raise ValueError("method and process are resolved already: resolve another recipe")
        return replace(self, recipe=replace(self.recipe, **changes))

    def following(self, named: Collection[str]) -> Plan:
        """The plan with settings that were not `named` following those that were."""
        values = self.recipe.values()
        changes = followed(values, named)
        before = {name: values[name] for name in changes}
        return replace(self.with_settings(**changes), followed_from=before)


def resolve(
    settings: Mapping[str, Any],
    mistakes: Sequence[str] = (),
    source: str = "the recipe",
    *,
    data_needed: bool = True,
    begin: Begin | None = None,
    settle: Settle = lambda recipe: {},
) -> Plan:
    """The plan of some settings, or one error that lists every mistake.

    Without `data_needed`, workloads whose data are to be filled in by the user are accepted too. `begin` is
    called with the checked settings, before torch is imported, `settle` after that.
    """
    mistakes = list(mistakes)
    values: dict[str, Any] = {}
    for word, value in settings.items():
        name = SPELLINGS.get(word, word)
        if name not in SETTINGS:
            names = (*SETTINGS, *SPELLINGS)
            mistakes.append(str(unknown("setting", name, names, "stepwell train images --settings")))
            continue
        value, mistake = SETTINGS[name].typed(value)
        if mistake:
            mistakes.append(mistake)
        else:
            values[name] = value
    # Rules see defaults in place of wrong values, so that one mistake does not hide the others.
    recipe = Recipe(**values)
    mistakes += [text for name, s in SETTINGS.items() if (text := s.mistake(getattr(recipe, name)))]
    mistakes += _combinations(recipe)
    if data_needed and recipe.data == FILL_IN:
        mistakes.append(
            f"data={FILL_IN} is to be filled in: a folder of images, an .npz, CIFAR-10's folder or hub:NAME"
        )
    mistakes += _unknown_names(recipe)
    if begin is not None and not mistakes:
        begin(recipe)
    plan = None if mistakes else _built(replace(recipe, **settle(recipe)), mistakes)
    if plan is None:
        raise BadRecipe(source, mistakes)
    return plan


def _combinations(recipe: Recipe) -> Iterator[str]:
    """Mistakes of settings that exclude or need each other, and of packages that are not installed."""
    if recipe.ema_kind == "constant" and recipe.ema > 1:
        yield f"ema must lie in [0, 1], not {recipe.ema}"
    if recipe.guidance != 1 and not (recipe.conditional and recipe.label_dropout > 0):
        yield (
            f"guidance={recipe.guidance:g} compares a class with no class, or a caption with none: it needs "
            "labels=true or captions=true, and label_dropout above 0; or guidance=1"
        )
    yield from _of_captions(recipe)
    if recipe.decays and recipe.seconds is not None:
        yield (
            f"lr_schedule={recipe.lr_schedule} decays over steps=, and seconds={recipe.seconds:g} may end "
            "the run before: leave out seconds=, or use lr_schedule=constant"
        )
    if recipe.decays and recipe.warm_up_steps >= recipe.steps:
        yield (
            f"warm_up_steps={recipe.warm_up_steps} leave none of steps={recipe.steps} for "
            f"lr_schedule={recipe.lr_schedule}: give fewer"
        )
    if recipe.sharding == "full":
        yield from _not_sharded(recipe)
    if recipe.start_digest and not recipe.start:
        yield "start_digest is of the weights that from= names: give both, or neither"
    if recipe.lora > 0 and not recipe.start:
        yield f"lora={recipe.lora} adapts a network that is trained already: name it with from=RUN"
    if recipe.lora > 0 and find_spec("peft") is None:
        yield f"lora={recipe.lora} needs peft, which is not installed: pip install 'stepwell[lora]'"
    if recipe.optimizer in OPTIMIZERS and (package := missing_package(recipe.optimizer)):
        yield f"optimizer={recipe.optimizer} needs a package that is not installed: pip install {package}"
    factor, size = recipe.super_resolution, recipe.size
    if factor == 1:
        yield "super_resolution=1 would show the network the image itself: give 2 or more, or 0"
    if factor > 1 and size is not None and size % factor:
        yield f"super_resolution={factor} does not divide size={size}"
    try:
        parse_classes(recipe.only_classes)
    except StepwellError as error:
        yield str(error)
    if recipe.tracker in TRACKERS and find_spec(recipe.tracker) is None:
        yield f"tracker={recipe.tracker} needs a package that is not installed: pip install {recipe.tracker}"


def _of_captions(recipe: Recipe) -> Iterator[str]:
    """What captions need, and what they exclude."""
    takes_text = recipe.model in TEXT_MODELS
    if not recipe.captions:
        if recipe.text_encoder:
            yield "text_encoder= embeds captions: write captions=true, or leave it out"
        if takes_text:
            yield f"model={recipe.model} is told captions: write captions=true, or take another model"
        return
    if recipe.labels or recipe.only_classes:
        yield "captions=true takes the place of classes: leave labels and only_classes out"
    if not recipe.text_encoder:
        yield (
            "captions=true needs text_encoder=FOLDER: a CLIP text model with its tokenizer, or a folder with "
            "text_encoder/ and tokenizer/, as Stable Diffusion has"
        )
    if not takes_text and recipe.model != SAVED:
        yield f"model={recipe.model} cannot be told captions: write model={' or '.join(TEXT_MODELS)}"
    if find_spec("transformers") is None:
        yield "captions=true needs transformers, which is not installed: pip install 'stepwell[text]'"


def _not_sharded(recipe: Recipe) -> Iterator[str]:
    """What does not work on parts of a network, or was never tried on them."""
    if recipe.precision == "fp16":
        yield "sharding=full with precision=fp16 has not been tested: write precision=bf16, or no"
    if recipe.compile:
        yield "sharding=full with compile=true has not been tested: leave compile out"
    if recipe.channels_last:
        yield "sharding=full splits weights by rows, which channels_last=true scatters: leave it out"


def _unknown_names(recipe: Recipe) -> Iterator[str]:
    """Names of the process and of the method's parts that the catalogue does not have."""
    try:
        Spec.parse("process", recipe.process)
    except StepwellError as error:
        yield str(error)
    try:
        parse_method(recipe.method)
    except StepwellError as error:
        yield str(error)


def _built(recipe: Recipe, mistakes: list[str]) -> Plan | None:
    """Process and method built for real, so that their own checks speak; None adds to the mistakes."""
    from stepwell.catalogue import build

    process = None
    try:
        process = build.as_process(recipe.process)
        process.solver(recipe.solver)
    except StepwellError as error:
        mistakes.append(str(error))
    try:
        method = parse_method(recipe.method)
        weighting = build.weighting(method.weighting)
        if process is None:
            return None
        plan = Plan(recipe, method, process)
        plan.sampler()
        build.require_weights(weighting, method.weighting, process)
    except StepwellError as error:
        mistakes.append(str(error))
    return None if mistakes else plan
