"""`stepwell show`: where a sampler looks, before anybody pays for a run."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.catalogue.entry import Kind
from stepwell.catalogue.find import AMBIGUOUS, all_entries, canonical, find
from stepwell.catalogue.spec import Spec, split_pair, split_spec
from stepwell.cli import chart
from stepwell.core.errors import InvalidParameter, UnknownName
from stepwell.recipes.method import method_files, workload_files

if TYPE_CHECKING:
    from stepwell.cli.profile import Profile

_EXAMPLES = """examples:
  stepwell show logit-normal mean=0.5 --weighting min-snr
  stepwell show uniform logit-normal speed --process cosine --save densities.png
  stepwell show speed tau=auto --process flow:shift=3 --weighting p2:gamma=0.5
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser(
        "show",
        help="draw a sampler's density and effective weight over time",
        description="Draw where samplers look and what that and a weighting do to the objective.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument(
        "what",
        nargs="+",
        metavar="NAME [key=value ...]",
        help="samplers, each followed by its parameters; a weighting or process shows uniform draws with it",
    )
    verb.add_argument("-w", "--weighting", default=None, metavar="NAME[:key=value,...]")
    verb.add_argument("-p", "--process", default=None, metavar="NAME[:key=value,...]")
    verb.add_argument("--save", type=Path, metavar="FILE.png", help="draw a picture (.png, .svg or .pdf)")
    verb.add_argument("--json", action="store_true", help="the numbers, for programs")
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print, save or dump the profiles of everything named."""
    if options.save is not None:
        check_picture(options.save)
    recipes = {**workload_files(), **method_files()}
    if len(options.what) == 1 and options.what[0] in recipes and not _is_named(options.what[0]):
        text = recipes[options.what[0]].read_text()
        if options.what[0] in workload_files():
            print(json.dumps(tomllib.loads(text)) if options.json else text, end="")
            return
        print("" if options.json else text, end="")
    profiles = [_profile(name, given, options) for name, given in _grouped(options.what)]
    if options.save is not None:
        from stepwell.cli.chart import save

        save(profiles, options.save)
    if options.json:
        print(json.dumps([profile.plain() for profile in profiles]))
        return
    for profile in profiles:
        print(chart.text(profile, fancy=chart.can_draw_blocks(sys.stdout)))
    if options.save is not None:
        print(f"Saved {options.save}")


def _grouped(words: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Names with the key=value words that follow each."""
    groups: list[tuple[str, dict[str, Any]]] = []
    for word in words:
        if "=" not in word:
            groups.append((word, {}))
        elif ":" in word.partition("=")[0]:
            groups.append(split_spec(word))
        elif not groups:
            raise InvalidParameter(f"{word!r} comes before any name: write stepwell show NAME {word}")
        else:
            key, value = split_pair(word)
            groups[-1][1][key] = value
    return groups


def _is_named(name: str) -> bool:
    return any(canonical(name) == known for _, known in all_entries())


def _kind_of(name: str) -> Kind:
    kinds: tuple[Kind, ...] = ("sampler", "weighting", "process")
    for kind in kinds:
        if (kind, canonical(name)) in all_entries() or _is_alias(kind, name):
            return kind
    try:
        find("sampler", name)
    except UnknownName as error:
        if canonical(name) in AMBIGUOUS:
            raise
        known = ", ".join(other for of_kind, other in all_entries() if of_kind != "sampler")
        raise UnknownName(f"{error} Weightings and processes: {known}.") from None
    return "sampler"


def _is_alias(kind: str, name: str) -> bool:
    return any(canonical(name) in e.aliases for e in all_entries().values() if e.kind == kind)


def _profile(name: str, given: dict[str, Any], options: argparse.Namespace) -> Profile:
    from stepwell.cli.profile import profile

    specs: dict[str, Spec] = {
        "sampler": Spec("sampler", "uniform"),
        "weighting": Spec.parse("weighting", options.weighting or "none"),
        "process": Spec.parse("process", options.process or "linear"),
    }
    if canonical(name) in method_files() and not _is_named(name):
        from stepwell.recipes.method import parse_method

        method = parse_method(name)
        return profile(method.sampler, method.weighting, specs["process"])
    kind = _kind_of(name)
    if kind != "sampler" and getattr(options, kind) is not None:
        raise InvalidParameter(f"{name} is a {kind}, and --{kind} names another: give one of them.")
    specs[kind] = Spec(kind, find(kind, name).name, given)
    return profile(*(specs[key] for key in ("sampler", "weighting", "process")))


def check_picture(path: Path) -> None:
    """Whether a picture can be written there, before anything is measured for it."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidParameter(f"--save {path}: the picture must end in .png, .svg or .pdf.")
    if not path.parent.is_dir():
        raise InvalidParameter(f"--save {path}: there is no folder {path.parent}.")
    if path.is_dir():
        raise InvalidParameter(f"--save {path}: that is a folder.")
