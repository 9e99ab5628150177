"""`stepwell ls` and `stepwell cp`: list everything that has a name, with its paper; copy a shipped recipe."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepwell.catalogue.entry import KINDS, Entry, Kind
from stepwell.catalogue.find import SHAPING, all_entries, find, kinds_of
from stepwell.cli.columns import folded, labelled
from stepwell.cli.options import add_command, add_json, path_of
from stepwell.core.errors import StepwellError, unknown
from stepwell.models.registry import MODELS, ModelEntry
from stepwell.recipes.method import (
    METHOD_KINDS,
    first_words,
    method_files,
    method_names,
    study_files,
    workload_files,
)
from stepwell.runs.io import write_atomic

_PLURALS: dict[Kind, str] = {"process": "processes", "sampler": "samplers", "weighting": "weightings"}
_RECIPES = {"workloads": workload_files, "methods": method_files, "studies": study_files}
_ONE = {"workloads": "workload", "methods": "method", "studies": "study"}


def register(verbs: Any) -> None:
    """Add both verbs to the command line."""
    verb = add_command(
        verbs,
        "ls",
        run,
        help="list everything that has a name",
        description="List every process, sampler, weighting, model and recipe, with its source.",
    )
    choices = [*_PLURALS.values(), "models", *_RECIPES]
    verb.add_argument("kind", nargs="?", choices=choices, help="list only these")
    verb.add_argument("-p", "--parameters", action="store_true", help="with parameters and defaults")
    add_json(verb)
    verb.add_argument("--markdown", action="store_true", help="as tables, for the documentation")
    copy = add_command(
        verbs,
        "cp",
        copy_recipe,
        help="copy a recipe into a file of your own",
        description="Copy a shipped recipe, or a sampler or weighting with its parameters, into a file.",
    )
    copy.add_argument("name", help="a workload, method, study, sampler or weighting of `stepwell ls`")
    copy.add_argument("file", type=path_of, nargs="?", help="where to write it (NAME.toml)")


def run(options: argparse.Namespace) -> None:
    """Print the catalogue and the recipes."""
    recipes = {kind: files() for kind, files in _RECIPES.items() if options.kind in (None, kind)}
    entries = [e for e in all_entries().values() if options.kind in (None, _PLURALS[e.kind])]
    models = list(MODELS.values()) if options.kind in (None, "models") else []
    if options.markdown:
        print(_markdown(entries))
        return
    if options.json:
        files = [
            {"kind": _ONE[kind], "name": name, "summary": first_words(path)}
            for kind, paths in recipes.items()
            for name, path in paths.items()
        ]
        networks = [{"kind": "model", **asdict(model)} for model in models]
        print(json.dumps([_plain(entry) for entry in entries] + networks + files, indent=2))
        return
    names = [entry.name for entry in entries] + [model.name for model in models]
    width = max(len(name) for name in [*names, *(name for paths in recipes.values() for name in paths)])
    for kind in KINDS:
        lines = [entry for entry in entries if entry.kind == kind]
        if lines:
            print(_PLURALS[kind].upper())
        for entry in lines:
            note = " (learns)" if entry.learns else ""
            print(labelled(f"  {entry.name:{width}}  ", f"{entry.summary}{note}"))
            print(labelled(f"  {'':{width}}  ", entry.source))
            if options.parameters:
                _print_parameters(entry, width)
        if lines and kind == "sampler":
            keywords = ", ".join(parameter.name for parameter in SHAPING)
            print(labelled("  Every sampler also takes: ", f"{keywords}."))
        if lines:
            print()
    _print_models(models, width)
    _print_recipes(recipes, width)


def _markdown(entries: list[Entry]) -> str:
    lines = ["# Everything that has a name", "", "Made by `stepwell ls --markdown`.", ""]
    for kind in KINDS:
        lines += [
            f"## {_PLURALS[kind].capitalize()}",
            "",
            "| name | what | source | parameters |",
            "|---|---|---|---|",
        ]
        for entry in (entry for entry in entries if entry.kind == kind):
            values = ", ".join(f"`{p.name}={p.default}`" for p in entry.parameters)
            lines.append(f"| `{entry.name}` | {entry.summary} | {entry.source} | {values} |")
        lines.append("")
    lines += ["Every sampler also takes:", "", *(f"- `{p.name}`: {p.meaning}" for p in SHAPING)]
    return "\n".join(lines)


def _print_models(models: list[ModelEntry], width: int) -> None:
    if not models:
        return
    print("MODELS")
    for model in models:
        print(labelled(f"  {model.name:{width}}  ", f"{model.summary} ({model.source})"))
    print()


def _print_recipes(recipes: dict[str, dict[str, Path]], width: int) -> None:
    for kind, paths in recipes.items():
        print(f"{kind.upper()} (copy one with `stepwell cp`)")
        for name, path in paths.items():
            print(labelled(f"  {name:{width}}  ", first_words(path)))
        if kind == "methods":
            print(folded("  Every sampler and weighting is a method too, and so is SAMPLER+WEIGHTING."))
        print()


def _print_parameters(entry: Entry, width: int) -> None:
    for parameter in entry.parameters:
        default = "required" if parameter.required else f"default {parameter.default}"
        said = f"{parameter.name}: {parameter.meaning} ({default})"
        print(labelled(f"  {'':{width}}    ", said, below=" " * 8))
    for one in entry.differences:
        said = f"paper: {one.paper}; default: {one.here}; why: {one.why}; what it changes: {one.changes}"
        print(labelled(f"  {'':{width}}    ", f"differs in {one.what}: {said}", below=" " * 8))


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "summary": entry.summary,
        "source": entry.source,
        "learns": entry.learns,
        "aliases": list(entry.aliases),
        "parameters": {parameter.name: parameter.default for parameter in entry.parameters},
        "differences": [asdict(difference) for difference in entry.differences],
    }


def copy_recipe(options: argparse.Namespace) -> None:
    """Copy a recipe; an existing file is never overwritten."""
    recipes = {**method_files(), **workload_files(), **study_files()}
    name, file = options.name, options.file or Path(f"{options.name}.toml")
    kinds = [] if name in recipes else [kind for kind in METHOD_KINDS if kind in kinds_of(name)]
    if name not in recipes and not kinds:
        raise unknown("recipe", name, [*recipes, *method_names()])
    if file.suffix != ".toml":
        raise StepwellError(f"{file} must end in .toml, so that it is not taken for a name.")
    if file.exists():
        raise StepwellError(f"{file} exists already: choose another name.")
    text = _method_file(find(kinds[0], name)) if kinds else recipes[name].read_text()
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        raise StepwellError(f"cannot write {file}: {error.strerror}.") from error
    verbs = {**dict.fromkeys(study_files(), "compare"), **dict.fromkeys(workload_files(), "train")}
    command = f"{verbs[name]} {file}" if name in verbs else f"train fashion16 method={file}"
    print(f"Wrote {file}. Edit it, then: stepwell {command}")


def _method_file(entry: Entry) -> str:
    """A method file of one sampler or weighting, with all its parameters as comments."""
    lines = [f"# {entry.summary} ({entry.source})", f"[{entry.kind}]", f'name = "{entry.name}"']
    lines += [f"# {one.name} = {_toml(one.default)}  # {one.meaning}" for one in entry.parameters]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML writes it; what TOML cannot write stays as it is printed."""
    return json.dumps(value) if isinstance(value, (str, bool)) else str(value)
