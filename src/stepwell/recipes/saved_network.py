"""What the folder that from= names says of its network: settings that need not be written again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stepwell.core.errors import StepwellError, Unsupported
from stepwell.core.reading import Unreadable, object_of
from stepwell.models.hub import folder_of
from stepwell.models.registry import SAVED
from stepwell.recipes.schema import SPELLINGS, Recipe
from stepwell.runs.directory import RECIPE

_CONFIG, SCHEDULER_CONFIG = "config.json", "scheduler_config.json"
OF_NETWORK = ("model", "network", "process", "learned_variance")
"""What a run that began from such a folder keeps of it."""


def network_home(folder: Path) -> Path | None:
    """Where a folder of diffusers has its network; None if it has none."""
    homes = (folder / "unet", folder / "transformer", folder)
    return next((home for home in homes if (home / _CONFIG).is_file()), None)


def scheduler_home(folder: Path) -> Path | None:
    """Where a folder of diffusers has its scheduler, beside its network in old ones; None if it has none."""
    homes = (folder / "scheduler", folder)
    return next((home for home in homes if (home / SCHEDULER_CONFIG).is_file()), None)


def config_of(recipe: Recipe) -> dict[str, Any] | None:
    """The configuration of a recipe's network, if that is none of ours."""
    if recipe.model != SAVED:
        return None
    try:
        config = json.loads(recipe.network)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise StepwellError(
            f"model={SAVED} is the network of a folder that diffusers wrote: name it with from=FOLDER."
        )
    return config


def class_name(recipe: Recipe) -> str:
    """The class of a recipe's network, if that is none of ours."""
    return str((config_of(recipe) or {}).get("_class_name", ""))


def told_by_start(settings: Mapping[str, Any], named: Collection[str]) -> dict[str, Any]:
    """The settings of the network at from= that nobody `named`, read without torch."""
    where = next((settings[word] for word in ("start", *SPELLINGS) if settings.get(word)), "")
    if not isinstance(where, str) or not where or {"model", "text_encoder"} <= set(named):
        # A run that is resumed names all: its folder may be gone, and a name on the hub out of reach.
        return {}
    folder = folder_of(where)
    told = _of_run(folder) if (folder / RECIPE).is_file() else _of_folder(folder)
    kept = {name: told[name] for name in OF_NETWORK if name in told and "model" not in named}
    if settings.get("captions") is True:
        encoder = where if (folder / "text_encoder").is_dir() else told.get("text_encoder")
        kept |= {"text_encoder": encoder} if encoder else {}
    return {name: value for name, value in kept.items() if name not in named}


def _of_run(run: Path) -> dict[str, Any]:
    try:
        saved = object_of(run / RECIPE)
    except Unreadable:
        # A checkpoint may have a copy; what does not fit is told when that is read.
        return {}
    return saved if saved.get("network") else {"text_encoder": saved.get("text_encoder")}


def _of_folder(folder: Path) -> dict[str, Any]:
    home = network_home(folder)
    if home is None:
        return {}
    config = object_of(home / _CONFIG)
    kept = {name: value for name, value in config.items() if name == "_class_name" or name[:1] != "_"}
    channels, out = config.get("in_channels"), config.get("out_channels")
    doubled = isinstance(channels, int) and out == 2 * channels
    return {"model": SAVED, "network": json.dumps(kept, sort_keys=True), "learned_variance": doubled}


def process_of_start(recipe: Recipe, named: Collection[str]) -> dict[str, str]:
    """The process of the scheduler beside the network at from=, unless one was `named`."""
    if not recipe.start or recipe.model != SAVED or {"process", "model"} & set(named):
        return {}
    folder = scheduler_home(folder_of(recipe.start))
    return {} if folder is None else {"process": process_spec(folder)}


def process_spec(folder: Path) -> str:
    """The process of a saved scheduler as a recipe writes it."""
    from stepwell.catalogue.build import as_process
    from stepwell.core.process import agree
    from stepwell.generate.diffusers_io import process_in

    config, theirs = object_of(folder / SCHEDULER_CONFIG), process_in(folder)
    for spec in _candidates(config, theirs.schedule(), theirs.prediction):
        try:
            if agree(as_process(spec), theirs, inputs=True):
                return spec
        except StepwellError:
            continue
    raise Unsupported(
        f"{folder} has a schedule that no process of `stepwell ls processes` has, so the network beside it "
        "cannot be trained here: use the pacer in the loop that trained it (docs/integrations)."
    )


def _candidates(config: Mapping[str, Any], published: str | None, prediction: str) -> list[str]:
    """Ways to write a scheduler's process, the shortest first."""
    timesteps = config.get("num_train_timesteps", 1000)
    if "shift" in config:
        shift = 1 if config.get("use_dynamic_shifting") else config["shift"]
        return [f"flow:shift={shift:g},timesteps={timesteps},time_scale={timesteps}"]
    more = [f"prediction={prediction}"] if prediction != "eps" else []
    more += [f"timesteps={timesteps}"] if timesteps != 1000 else []
    specs = [_spec(published, more)] if published else []
    betas = [f"{end}={config[end]}" for end in ("beta_start", "beta_end") if end in config]
    zero = ["zero_terminal_snr=true"] if config.get("rescale_betas_zero_snr") else []
    name = str(config.get("beta_schedule", "linear")).replace("_", "-")
    name = "cosine" if name == "squaredcos-cap-v2" else name
    return [*specs, _spec(name, [*more, *zero]), _spec(name, [*more, *betas, *zero])]


def _spec(name: str, parameters: list[str]) -> str:
    return f"{name}:{','.join(parameters)}" if parameters else name
