"""Commands with words that cannot be meant, and with values at the edge of what can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fuzz_case import Case

from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import ENTRIES, SHAPING
from stepwell.recipes.schema import SETTINGS

LONG_NUMBER = "9" * 400
"""A whole number that no float holds."""
NO_NUMBER = (
    "nan", "inf", "-inf", "1e999", "-1e999", "", "abc", "[]", "()", "{}", "{[]:1}", "{1,2}", "-" * 3000 + "1",
    "(" * 300, "[" * 3000 + "]" * 3000, "1j", "b'1'", "...", "1if", "0777", LONG_NUMBER, f"-{LONG_NUMBER}",
    "[1, [2]]", "{'a': 1}", "true", "\\", "'", "lambda: 1", "__import__('os')", "1" * 5000,
)  # fmt: skip
NO_WHOLE_NUMBER = (*NO_NUMBER, "1.5", "none", "1e3", "2,3")
NO_BOOLEAN = ("yes", "no", "on", "off", "1", "0", "2", "", "[]", "truth", "nan", "{[]:1}", "none", "t")
NO_CHOICE = ("", "abc", "1", "[]", "true", "none", "{[]:1}", "a" * 3000)
EDGES = (
    "0", "-1", "1", "2", "1e308", "-1e308", "1e-308", "1e-45", "5e-324", "1e38", "1e18", "1e9", "99999999",
    "1000000", "0.5", "1e-9", "-0.5", "0.999999999999", "9223372036854775807", "18446744073709551616", "1e30",
)  # fmt: skip
TEXTS = (
    "2024_01_15", "1e3", "0x10", "007", "1.0", "true", "none", "None", "[1]", "(1,2)", "'quoted'", "5,7",
    "a b", "-x", "nan", "1_000", "b'x'", "...", "{}", "é", "日本", "a" * 200, "x=y", "+", "#", "%s", "{0}",
)  # fmt: skip
"""Names that are no numbers, however much they look like some."""
PATHS = (
    "~nosuchuser", "~nosuchuser/x", "a" * 300, "x/" * 3000, "/dev/null", "/dev/zero", "/", ".", "..", "", " ",
    "/proc/self/mem", "run", "run/recipe.json", "images.npz", "photos", "latents", "log.csv", "/root/x\n",
    "images.npz/x", "hub:", "hub:no/such", "nosuch", "small.toml", "-", "\udcff",
)  # fmt: skip

SMALL = ("train", "small.toml")
_TEXT_SETTINGS = ("data", "out", "autoencoder")
_MEANT = (("tracker", "none"), ("sharding", "none"), ("extractor", ""))
"""Choices with a meaning."""


def bad_setting(draw: Random) -> Case:
    """A setting with a value of no meaning."""
    name = draw.choice(sorted(SETTINGS))
    setting = SETTINGS[name]
    if setting.types == (str,):
        if setting.constraint is None:
            return text_setting(draw)
        values: Sequence[str] = [value for value in NO_CHOICE if (name, value) not in _MEANT]
    elif bool in setting.types:
        values = [value for value in NO_BOOLEAN if value != "none" or type(None) not in setting.types]
    elif float in setting.types:
        values = [*NO_NUMBER, "none"] if type(None) not in setting.types else NO_NUMBER
    else:
        values = [value for value in NO_WHOLE_NUMBER if value != "none" or type(None) not in setting.types]
    word = f"{name}={draw.choice(values)}"
    return Case("setting", _settled(draw, word), refused=True)


def unknown_setting(draw: Random) -> Case:
    """A setting that there is not, or a word that is none."""
    name = draw.choice(sorted(SETTINGS))
    place = draw.randrange(len(name))
    wrong = draw.choice([name + "s", name[:place] + "q" + name[place:], name.upper() + "_", "name", "x.y"])
    word = draw.choice([f"{wrong}=1", f"={name}", name, f"{name} = 1", "=", "==", f"--{name}=1", f"-{wrong}"])
    if word.startswith(f"{name} "):
        word = f"{wrong}=1"
    return Case("unknown setting", _settled(draw, word), refused=True)


def edge_setting(draw: Random) -> Case:
    """A number at the edge, with a measurement where it is accepted."""
    numbers = [name for name, setting in SETTINGS.items() if int in setting.types or float in setting.types]
    words = [f"{draw.choice(sorted(numbers))}={draw.choice(EDGES)}" for _ in range(draw.randint(1, 2))]
    return Case("edge setting", (*SMALL, *words, draw.choice(["--settings", "--dry-run"])))


def text_setting(draw: Random) -> Case:
    """A text that looks like a number stays as it was written."""
    name, text = draw.choice(_TEXT_SETTINGS), draw.choice(TEXTS)
    return Case("text setting", (*SMALL, f"{name}={text}", "--settings"), shows=f"= {text!r}")


def odd_path(draw: Random) -> Case:
    """A path that leads nowhere, or somewhere else."""
    path = draw.choice(PATHS)
    # To look for runs on the whole disk takes as long as the disk is large.
    folder = path if path != "/" else "."
    commands: Sequence[tuple[str, ...]] = (
        (*SMALL, f"data={path}", "--dry-run"),
        (*SMALL, f"from={path}", "--dry-run"),
        (*SMALL, f"out={path}", "--dry-run"),
        (*SMALL, f"method={path}.toml", "--dry-run"),
        ("train", f"{path}.toml", "--dry-run"),
        ("compare", f"{path}.toml", "--dry-run"),
        ("compare", "study.toml", f"out={path}", "--dry-run"),
        ("compare", "study.toml", "--records", path, "--dry-run"),
        ("report", folder, "--out", "out.html"),
        ("report", "run", "--out", path),
        ("report", "run", "--grids", f"{path}.png", "--out", "out.html"),
        ("generate", path, "--out", "x.png", "--dry-run"),
        ("generate", "run", "--out", path, "--dry-run"),
        ("evaluate", path, "-n", "0"),
        ("evaluate", path, "images.npz", "--extractor", "fashion16"),
        ("evaluate", "images.npz", path, "--extractor", "fashion16"),
        ("evaluate", "images.npz", "images.npz", "--extractor", "fashion16", "--weights", path),
        ("export", path),
        ("export", "run", "--out", path),
        ("watch", folder, "--port", "0", "--no-open"),
        ("data", "show", path),
        ("data", "encode", path, "--autoencoder", "vae", "--out", "x", "--dry-run"),
        ("data", "encode", "colour.npz", "--autoencoder", path, "--out", "x", "--dry-run"),
        ("fit", path),
        ("fit", "log.csv", "-f", "csv", "-o", path),
        ("fit", "log.csv", "--save", f"{path}.png"),
        ("table", "uniform", "-o", path),
        ("show", "uniform", "--save", f"{path}.png"),
        ("show", path),
        ("cp", "demo", f"{path}.toml"),
        ("analyze", "gain", path, "--strata", "2", "--rounds", "3", "--images", "1"),
        ("analyze", "densities", folder),
    )
    return Case("path", draw.choice(commands))


def bad_comparison(draw: Random) -> Case:
    """Words of a comparison that cannot be meant."""
    wrong = (
        "method=speed", "seed=7", "method=uniform", "seed=1", "seeds=0", "seeds=-1", "seeds=1.5", "seeds=nan",
        "seeds=abc", f"seeds={LONG_NUMBER}", "seeds=1000000", "seeds=99999999999", "seeds=true", "seeds=[-1]",
        "seeds=[]", "seeds=none", "seeds={}", "methods=", "methods=,", "methods=uniform,uniform", "tune=5",
        "methods=nosuch", "tune=nan,inf", "tune=1e-3", "tune=abc", "tune=1e999,1", "tune=",
        "tune=-1,1", f"tune={LONG_NUMBER},1", "metric=nosuch", "metric=5", "metric=[]", "metric={[]:1}",
        "metric=uncertainty", "baseline=nosuch", "baseline=5", "against=5", "judged_by=5", "effort=5",
        "effort={}", "workloads=", "workloads=nosuch", "workloads=5", "workload=5", "base=5", "nosuch=1",
        "steps=0", "lr=nan", "=", "seeds", "against={'a': 1}", "model=nosuch", "out",
    )  # fmt: skip
    word = draw.choice(wrong)
    study = draw.choice(["study.toml", "small.toml", "fashion16"])
    return Case("comparison", ("compare", study, word, "--dry-run"), refused=True)


_NUMBERS_OF_OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("compare", "study.toml", "--dry-run"): ("--workers",),
    ("generate", "run", "--out", "x.npz", "--dry-run"): ("-n", "--steps", "--batch", "--checkpoint"),
    ("evaluate", "images.npz", "photos", "--extractor", "fashion16"): ("-n", "--size", "--batch"),
    ("data", "encode", "colour.npz", "--autoencoder", "vae", "--out", "x", "--dry-run"): (
        "--size", "--batch", "--shard",
    ),
    ("data", "show", "photos"): ("--size",),
    ("table", "uniform"): ("--steps", "--batch"),
    ("fit", "log.csv"): ("--steps", "--batch"),
    ("watch", "run", "--no-open"): ("--port",),
    ("analyze", "gain", "run", "--images", "1"): ("--strata", "--rounds", "--images"),
    ("analyze", "variance", "run", "--images", "1"): ("--strata", "--rounds", "--images", "--at"),
    ("analyze", "interdependence", "run", "--images", "1", "--steps", "1"): (
        "--strata", "--rounds", "--images", "--ranges", "--steps", "--repeats", "--bands",
    ),
    ("analyze", "approximation", "run", "--grid", "3", "--largest", "1"): (
        "--grid", "--queue", "--scored", "--repeats", "--largest",
    ),
    ("analyze", "step-cost", "small.toml"): ("--rounds", "--batches"),
}  # fmt: skip
_MANY = ("99999999", "1000000", "9" * 18, "9" * 30)


def bad_option(draw: Random) -> Case:
    """An option whose number is none, or too large to be meant."""
    words = draw.choice(list(_NUMBERS_OF_OPTIONS))
    option = draw.choice(_NUMBERS_OF_OPTIONS[words])
    if draw.random() < 0.4:
        # A list of a million timesteps is written as it is asked for, in seconds.
        many = _MANY[:1] + _MANY[2:] if words[0] in ("table", "fit") else _MANY
        return Case("large option", (*words, f"{option}={draw.choice(many)}"))
    values = ("-1", "abc", "1.5", "", "nan", "1e3", LONG_NUMBER, "1" * 5000, "inf", "-5", "x,y", "１.")
    return Case("option", (*words, f"{option}={draw.choice(values)}"), refused=True)


def other_options(draw: Random) -> Case:
    """Options with words that they do not know."""
    wrong: Sequence[tuple[str, ...]] = (
        ("generate", "run", "--out", "x.png", "--solver", "nosuch", "--dry-run"),
        ("generate", "run", "--out", "x.png", "--labels", "a,b", "--dry-run"),
        ("generate", "run", "--out", "x.png", "--labels", "0", "--dry-run"),
        ("generate", "run", "--out", "x.png", "--guidance", "nan", "--dry-run"),
        ("generate", "run", "--out", "x.png", "--guidance", "inf", "--dry-run"),
        ("generate", "run", "--out", "x.png", "--eta", "nan", "--dry-run"),
        ("generate", "run", "--out", "x.png", "--eta", "-1", "--dry-run"),
        ("generate", "run", "--out", "x.png", "--seed", LONG_NUMBER, "--dry-run"),
        ("generate", "run", "--out", "x.png", "--seed", "-1", "--dry-run"),
        ("generate", "run", "--out", "x.png", "-n", "0", "--dry-run"),
        ("evaluate", "run", "-n", "-1"),
        ("evaluate", "run", "--steps", "0"),
        ("evaluate", "run", "--checkpoint", "99"),
        ("evaluate", "images.npz", "photos", "--extractor", "nosuch"),
        ("evaluate", "images.npz", "photos", "--resize", "nosuch", "--extractor", "fashion16"),
        ("data", "encode", "colour.npz", "--autoencoder", "vae", "--out", "x", "--scale", "nan", "--dry-run"),
        ("data", "encode", "colour.npz", "--autoencoder", "vae", "--out", "x", "--scale", "0", "--dry-run"),
        ("table", "uniform", "--shape", "1,2,3"),
        ("table", "flux", "--shape", "0,0,0"),
        ("table", "flux", "--shape", f"{LONG_NUMBER},1,1"),
        ("table", "uniform", "--format", "nosuch"),
        ("table", "uniform", "--seed", LONG_NUMBER),
        ("table", "neyman"),
        ("fit", "log.csv", "--columns", "a"),
        ("fit", "log.csv", "--units", "nosuch"),
        ("fit", "log.csv", "-p", "linear", "--units", "sigma"),
        ("analyze", "increments", "nosuch"),
        ("analyze", "increments", "linear", "--converged", "nan"),
        ("analyze", "increments", "linear", "--converged", "2"),
        ("analyze", "variance", "run", "--cap", "nan", "--images", "1", "--strata", "2", "--rounds", "3"),
        ("analyze", "interdependence", "run", "--range", "1,0"),
        ("analyze", "interdependence", "run", "--range", "nan,1"),
        ("analyze", "gain", "run", "steps=1"),
        ("ls", "nosuch"),
        ("cp", "nosuch", "x.toml"),
        ("cp", "demo", "x.txt"),
        ("show", "uniform", "--shape", "-1"),
        ("show", "uniform", "uniform=3"),
        ("watch", "run", "--port", "65536", "--no-open"),
        ("nosuch",),
        (),
    )
    return Case("options", draw.choice(wrong), refused=True)


_GOOD = ("steps=3", "lr=1e-4", "method=min-snr", "seed=5", "process=cosine")


def _settled(draw: Random, word: str) -> tuple[str, ...]:
    """A word among good ones, in a training or in a comparison."""
    good = draw.sample(
        ["steps=3", "lr=1e-4", "method=min-snr", "seed=5", "process=cosine"], draw.randint(0, 2)
    )
    # Of a setting the last value counts.
    words = [*(one for one in good if one.partition("=")[0] != word.partition("=")[0]), word]
    draw.shuffle(words)
    if draw.random() < 0.3 and not any(one.startswith(("method", "seed")) for one in words):
        return ("compare", "study.toml", *words, "--dry-run")
    return (*SMALL, *words, "--settings")


_NEEDED = {"table": "masses=[1,2]", "over-steps": "stages=[0 uniform; 3 jit]"}
_SHAPING_TYPES: dict[str, type] = {
    "shift": float, "floor": float, "warm_up_steps": int, "stratified": bool, "unbiased": bool,
}  # fmt: skip
_NO_NAN = ("[null", ", null")


def _named(draw: Random) -> tuple[Entry, str, Any]:
    entry = draw.choice(ENTRIES)
    kinds: dict[str, Any] = {one.name: type(one.default) for one in entry.parameters}
    if entry.kind == "sampler":
        kinds = {**_SHAPING_TYPES, **kinds}
    name = draw.choice(sorted(kinds) or ["name"])
    return entry, name, kinds.get(name, str)


def bad_parameter(draw: Random) -> Case:
    """A parameter of a process, sampler or weighting with a value of no meaning."""
    entry, name, kind = _named(draw)
    wrong: dict[type, Sequence[str]] = {
        float: [value for value in NO_NUMBER if value != "true"], int: NO_WHOLE_NUMBER, bool: NO_BOOLEAN,
        str: NO_CHOICE,
    }  # fmt: skip
    values = wrong.get(kind, ("nan", "1e999", "{[]:1}", "abc", "[]", "1j", "b''", LONG_NUMBER))
    if kind is int:
        values = [value for value in values if value not in ("none", "1e3")]
    if draw.random() < 0.15:
        name, values = draw.choice(["name", "kind", "process", "self", "nosuch", "entry", "", "x y"]), ("1",)
    if kind is bool:
        # None leaves it to the sampler.
        values = [value for value in values if value != "none"]
    text = f"{name}={draw.choice(values)}"
    return Case("parameter", _command_of(draw, entry, text), refused=kind is not str or not name)


def edge_parameter(draw: Random) -> Case:
    """A parameter at the edge: refused, or a density that is finite."""
    entry, name, _ = _named(draw)
    text = f"{name}={draw.choice(EDGES)}"
    return Case("edge parameter", _command_of(draw, entry, text), never=_NO_NAN)


def _command_of(draw: Random, entry: Entry, text: str) -> tuple[str, ...]:
    needed = [_NEEDED[entry.name]] if entry.kind == "sampler" and entry.name in _NEEDED else []
    pairs = [text] if needed and needed[0].startswith(text.partition("=")[0] + "=") else [*needed, text]
    spec = f"{entry.name}:{','.join(pairs)}"
    process = ("-p", entry.process) if entry.process else ()
    if entry.kind == "process":
        commands = [
            ("show", "uniform", "-p", spec, "--json"),
            (*SMALL, f"process={spec}", "--settings"),
            ("analyze", "increments", spec, "--json"),
            ("table", "uniform", "-p", spec, "--steps", "10"),
        ]
    elif entry.kind == "weighting":
        commands = [
            ("show", "uniform", "-w", spec, "--json", *process),
            (*SMALL, f"method={spec}", "--settings"),
        ]
    else:
        commands = [
            ("show", entry.name, *pairs, "--json", *process),
            ("show", entry.name, *pairs, "--json", *process),
            (
                *SMALL,
                f"method={spec}",
                "--settings",
                *([f"process={entry.process}"] if entry.process else ()),
            ),
        ]
    return tuple(draw.choice(commands))


Maker = Callable[[Random], Case]
MAKERS: dict[Maker, int] = {
    bad_setting: 18, unknown_setting: 5, edge_setting: 6, text_setting: 5, odd_path: 14, bad_comparison: 8,
    bad_option: 8, other_options: 5, bad_parameter: 20, edge_parameter: 20,
}  # fmt: skip
"""How often each is made."""
assert set(_SHAPING_TYPES) <= {one.name for one in SHAPING}
