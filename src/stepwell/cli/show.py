"""`stepwell show`: draw a sampler's density and effective weight over time."""

from __future__ import annotations

import argparse
import tomllib
from typing import TYPE_CHECKING, Any

from stepwell.catalogue.entry import Kind
from stepwell.catalogue.find import AMBIGUOUS, all_entries, canonical, find, kinds_of
from stepwell.catalogue.spec import Spec, add_pair, split_spec
from stepwell.cli import chart
from stepwell.cli.options import SPEC, add_command, add_json, add_save, add_shape, output, print_json
from stepwell.core.errors import InvalidParameter, UnknownName
from stepwell.recipes.method import method_files, workload_files

if TYPE_CHECKING:
    from stepwell.analyze.densities import Profile

_EXAMPLES = """examples:
  stepwell show logit-normal mean=0.5 --weighting min-snr
  stepwell show uniform,logit-normal,speed --process cosine --save densities.png
  stepwell show speed tau=auto --process flow:shift=3 --weighting p2:gamma=0.5
  stepwell show flux --shape 16,64,64 --shape 16,128,128 --save flux.png
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(
        verbs,
        "show",
        run,
        help="draw a sampler's density and effective weight over time",
        description="Draw the density of samplers, and their effective weight on the loss with a weighting.",
        examples=_EXAMPLES,
    )
    verb.add_argument(
        "what",
        nargs="+",
        metavar="NAME [key=value ...]",
        help="samplers, each followed by its parameters; a weighting or process shows uniform draws with it",
    )
    verb.add_argument("-w", "--weighting", default=None, metavar=SPEC, help="the weighting (none)")
    verb.add_argument(
        "-p", "--process", default=None, metavar=SPEC, help="the process (linear, or what the sampler is for)"
    )
    add_shape(verb)
    add_save(verb)
    add_json(verb)


def run(options: argparse.Namespace) -> None:
    """Print or save the profiles of everything named; of a recipe, its file too."""
    chart.check_save(options.save)
    name = options.what[0] if len(options.what) == 1 else ""
    file = {**workload_files(), **method_files()}.get(name)
    if file is not None and not _in_catalogue(name):
        text = file.read_text()
        if not options.json:
            print(text, end="")
        elif name in workload_files():
            print_json(tomllib.loads(text))
        if name in workload_files():
            return
    named = [one for group in _grouped(options.what) for one in _at_shapes(*group, options.shape)]
    if not named:
        raise InvalidParameter("nothing is named: write stepwell show NAME, as `stepwell ls` prints it.")
    if options.shape and not any("shape" in parameters for _, parameters in named):
        raise InvalidParameter(
            f"--shape: none of {', '.join(name for name, _ in named)} depends on the shape."
        )
    profiles = [_profile(name, parameters, options) for name, parameters in named]
    text = chart.text(profiles[0]) if len(profiles) == 1 else chart.rows(profiles)
    values = [profile.plain() for profile in profiles]
    output(options, values, text, lambda path: chart.save(profiles, path))


def _grouped(words: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Each name with the key=value words after it."""
    groups: list[tuple[str, dict[str, Any]]] = []
    for word in words:
        if "=" not in word:
            groups += [(name, {}) for name in word.split(",") if name]
        elif ":" in word.partition("=")[0]:
            groups.append(split_spec(word))
        elif not groups:
            raise InvalidParameter(f"{word!r} comes before any name: write stepwell show NAME {word}")
        else:
            name, parameters = groups[-1]
            add_pair(parameters, word, name)
    return groups


def _at_shapes(
    name: str, parameters: dict[str, Any], shapes: list[tuple[int, ...]]
) -> list[tuple[str, dict[str, Any]]]:
    """A name at each shape of --shape, if its density depends on it."""
    entry = find("sampler", name) if "sampler" in kinds_of(name) else None
    if not shapes or entry is None or "shape" not in (one.name for one in entry.parameters):
        return [(name, parameters)]
    if "shape" in parameters:
        raise InvalidParameter(f"{name} got shape= and --shape: give one of them.")
    return [(name, {**parameters, "shape": shape}) for shape in shapes]


def _in_catalogue(name: str) -> bool:
    return any(canonical(name) == known for _, known in all_entries())


def _kind_of(name: str) -> Kind:
    kinds: tuple[Kind, ...] = ("sampler", "weighting", "process")
    for kind in kinds:
        if kind in kinds_of(name):
            return kind
    try:
        find("sampler", name)
    except UnknownName as error:
        if canonical(name) in AMBIGUOUS:
            raise
        known = ", ".join(other for of_kind, other in all_entries() if of_kind != "sampler")
        raise UnknownName(f"{error} Weightings and processes: {known}.") from None
    return "sampler"


def _own_process(name: str) -> str | None:
    """The only process that a sampler or weighting is for."""
    return next((find(kind, name).process for kind in kinds_of(name) if kind != "process"), None)


def _profile(name: str, parameters: dict[str, Any], options: argparse.Namespace) -> Profile:
    from stepwell.analyze.densities import profile

    specs: dict[str, Spec] = {
        "sampler": Spec("sampler", "uniform"),
        "weighting": Spec.parse("weighting", options.weighting or "none"),
        "process": Spec.parse("process", options.process or _own_process(name) or "linear"),
    }
    if canonical(name) in method_files() and not _in_catalogue(name):
        from stepwell.recipes.method import parse_method

        method = parse_method(name)
        return profile(method.sampler, method.weighting, specs["process"])
    kind = _kind_of(name)
    if kind != "sampler" and getattr(options, kind) is not None:
        raise InvalidParameter(f"{name} is a {kind}, and --{kind} names another: give one of them.")
    specs[kind] = Spec(kind, find(kind, name).name, parameters)
    return profile(*(specs[key] for key in ("sampler", "weighting", "process")))
