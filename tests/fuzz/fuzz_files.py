"""Commands that read damaged files: recipes, studies, methods, runs, checkpoints, data, latents,
statistics."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fuzz_damage
import torch
from fuzz_case import Case
from fuzz_damage import Damage
from fuzz_words import SMALL, Maker
from safetensors import safe_open
from safetensors.torch import save_file

from stepwell.train import checkpoint

_TEXT_DAMAGE: tuple[Damage, ...] = (fuzz_damage.bytes_of, fuzz_damage.encoding_of, fuzz_damage.kind_of)


def _damaged(file: str, damage: Damage, seed: int, home: Path) -> None:
    """Called in the copy of a home: the same damage for the same seed."""
    matching = sorted(home.glob(file))
    damage(Random(seed).choice(matching), Random(seed))


def _case(draw: Random, family: str, words: tuple[str, ...], file: str, damage: Damage, **more: Any) -> Case:
    return Case(family, words, partial(_damaged, file, damage, draw.randrange(2**32)), **more)


def toml_file(draw: Random) -> Case:
    """A workload, method or study that was written by hand."""
    damage = draw.choice((fuzz_damage.toml_line, fuzz_damage.toml_line, fuzz_damage.toml_line, *_TEXT_DAMAGE))
    commands: dict[str, Sequence[tuple[str, ...]]] = {
        "small.toml": (
            (*SMALL, "--settings"), ("compare", "study.toml", "--dry-run"), (*SMALL, "--dry-run"),
            ("analyze", "densities", "uniform"), ("compare", "small.toml", "--dry-run"),
        ),
        "method.toml": (
            (*SMALL, "method=method.toml", "--settings"), ("compare", "small.toml", "methods=method.toml",
            "--dry-run"),
            ("analyze", "densities", "method.toml"),
        ),
        "study.toml": (("compare", "study.toml", "--dry-run"),),
    }  # fmt: skip
    file = draw.choice([*commands, "study.toml"])
    return _case(draw, f"toml {file}", draw.choice(commands[file]), file, damage)


def _wrong_toml(text: str, file: str, home: Path) -> None:
    (home / file).write_text(text)


def wrong_toml(draw: Random) -> Case:
    """A method or study file that cannot be meant."""
    methods = (
        "[samplr]\nname = 'speed'\n", "sampler = 'speed'\n", "sampler = 5\n", "[sampler]\nmean = 1.0\n",
        "[sampler]\nname = 5\n", "[sampler]\nname = 'uniform'\nname_ = 1\n",
        "[sampler]\nname = 'uniform'\nmean = 1\n",
        "[sampler]\nname='logit-normal'\nmean = nan\n",
        "[sampler]\nname='logit-normal'\nas_published = 'no'\n",
        "[sampler]\nname='logit-normal'\nstd = inf\n", "[sampler]\nname='neyman'\nunbiased = 'no'\n",
        "steps = 5\n",
        "[weighting]\nname = 'min-snr'\ngamma = nan\n", "[[sampler]]\nname = 'uniform'\n",
        "name = 'uniform'\n", "",
        "[sampler]\nname='beta'\nalpha=1e308\n", "[sampler]\nname = 'nosuch'\n",
        "[sampler.x]\nname='speed'\n",
        "[sampler]\nname = 'neyman'\nstrata = 99999999\n", "[process]\nname = 'linear'\n",
    )  # fmt: skip
    whole = 'methods = ["uniform", "min-snr"]\nworkloads = ["small.toml"]\n'
    studies = (
        'methods = ["uniform"]\n', 'methods = ["uniform"]\nworkloads = []\n', f"{whole}tune = 5\n",
        f"{whole}tune = []\n", f"{whole}[tune]\nlr = 5\n", f"{whole}[tune]\nlr = [nan, 1]\n",
        f"{whole}[tune]\nlr = [1e-3, inf]\n", f"{whole}[tune]\nlr = [1, 2]\nshare = 'x'\n",
        f"{whole}[tune]\nlr = [1, 2]\nshare = nan\n", f"{whole}[tune]\nlr = [1, 2]\ntie = []\n",
        f"{whole}[tune]\nlr = [1, 2]\nseeds = 'x'\n", f"{whole}[tune]\nlr = [1, 2]\nworkload = 5\n",
        f"{whole}[tune]\nlr = [[], 2]\n", f"{whole}[tune]\nlr = [1, 2]\nwiden = 1.5\n", f"{whole}name = 5\n",
        f"{whole}seeds = 'x'\n", f"{whole}seeds = [1.5]\n", f"{whole}[settings]\nlr = nan\n",
        f"{whole}[settings]\nmethod = 'speed'\n", f"{whole}[settings]\nseed = 3\n", f"{whole}metric = []\n",
        f"{whole}[settings]\nout = 'x'\n", f"{whole}[settings]\nnosuch = 1\n", f"{whole}[workload]\nx = 5\n",
        f"{whole}[workload.x]\nrecipe = 5\n", f"{whole}[base]\nsteps = 1\n",
        f"{whole}[base]\nrecipe = 'nosuch'\n",
        f"{whole}[against]\nmin-snr = 5\n", f"{whole}[judged_by]\nmin-snr = []\n", f"{whole}baseline = []\n",
        "methods = 5\nworkloads = ['small.toml']\n", "methods = [5]\nworkloads = ['small.toml']\n",
        "methods = ['uniform']\nworkloads = 5\n", "methods = ['uniform']\nworkloads = [5]\n",
        f"{whole}nosuch = 1\n",
        "methods = [[]]\nworkloads = ['small.toml']\n", "methods = {}\nworkloads = ['small.toml']\n",
        f"{whole}[settings]\nclip = inf\n", f"{whole}[settings]\nweight_decay = nan\n",
        f"{whole}command = 5\n",
        f"{whole}[effort]\ngenerated = nan\n", f"{whole}[effort]\nnosuch = 1\n",
        f"{whole}[effort]\nsteps = 1e3\n",
        f"{whole}seeds = 1000000\n", f"{whole}[workload.'small.toml']\nmethod = 'speed'\n",
    )  # fmt: skip
    workloads = tuple(
        f'data = "images.npz"\nmodel = "micro"\n{line}\n'
        for line in (
            "lr = nan", "weight_decay = nan", "seconds = nan", "seconds = inf", "guidance = nan",
            "clip = inf",
            "ema = nan", "beta1 = nan", "dropout = nan", "steps = 1e3", "steps = nan", "labels = 'no'",
            "labels = 1",
            "out = 2024_01_15", "out = 1e3", "out = 5", "method = 5", "method = []", "process = 5",
            "size = []",
            f"lr = {'9' * 400}", f"steps = {'9' * 400}", "seed = -1", "data_ = 1", "[data]",
            "only_classes = {}",
            "bands = 1000000", "batch = 99999999999", "method = 'beta:alpha=1e308'", "flips = 'yes'",
            "tracker = 5",
        )
    )  # fmt: skip
    file, texts, words = draw.choice(
        [
            ("method.toml", methods, (*SMALL, "method=method.toml", "--settings")),
            ("study.toml", studies, ("compare", "study.toml", "--dry-run")),
            ("small.toml", workloads, (*SMALL, "--settings")),
        ]
    )
    return Case(f"wrong {file}", words, partial(_wrong_toml, draw.choice(texts), file), refused=True)


_OF_A_RUN: Sequence[tuple[str, ...]] = (
    ("report", "run", "--out", "out.html"),
    ("report", "run", "runs", "--out", "out.html", "--grids", "grids.png"),
    ("evaluate", "run", "-n", "0"),
    ("generate", "run", "--out", "x.npz", "--dry-run"),
    ("export", "run", "--out", "exported"),
    ("analyze", "densities", "run", "--json"),
    ("analyze", "gain", "run", "--strata", "2", "--rounds", "3", "--images", "1"),
    ("train", "small.toml", "method=neyman", "out=run", "steps=3"),
    ("train", "small.toml", "from=run", "--dry-run"),
    ("evaluate", "images.npz", "run", "--extractor", "fashion16"),
    ("watch", "run", "--port", "0", "--no-open"),
)
_OF_A_STUDY: Sequence[tuple[str, ...]] = (
    ("report", "runs/mine", "--out", "out.html"),
    ("compare", "small.toml", "methods=uniform", "seeds=1", "samples=0", "out=runs/mine", "--dry-run"),
    ("watch", "runs", "--port", "0", "--no-open"),
)


def run_file(draw: Random) -> Case:
    """A file of a run, a pipeline or a study with odd values or damage."""
    places = ("run/recipe.json", "run/environment.json", "run/metrics.jsonl")
    studies = ("runs/mine/**/recipe.json", "runs/mine/**/score.json", "runs/mine/**/environment.json",
               "runs/mine/**/metrics.jsonl", "runs/mine/study.json")  # fmt: skip
    pipeline = ("pipeline/model_index.json", "pipeline/unet/config.json",
                "pipeline/scheduler/scheduler_config.json")  # fmt: skip
    kind = draw.random()
    if kind < 0.15:
        file, words = draw.choice(pipeline), (*SMALL, "from=pipeline", "--dry-run")
    elif kind < 0.55:
        file, words = draw.choice(studies), draw.choice(_OF_A_STUDY)
    else:
        file, words = draw.choice(places), draw.choice(_OF_A_RUN)
    damage = fuzz_damage.json_values if draw.random() < 0.75 else draw.choice(_TEXT_DAMAGE)
    return _case(draw, "run directory", words, file, damage)


def _crafted(path: Path, draw: Random) -> None:
    """A checkpoint with a right checksum and odd contents."""
    with safe_open(path, framework="pt") as stored:
        body = json.loads(stored.metadata()["stepwell"])
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    name = draw.choice(sorted(tensors))
    match draw.randrange(7):
        case 0 | 1:
            body = fuzz_damage.changed(body, draw)
        case 2:
            tensors[name] = torch.zeros(draw.choice([(), (0,), (3,), (2, 2), (1, 1, 1, 1, 1)]))
        case 3:
            kinds = [torch.float16, torch.int8, torch.bool, torch.float64, torch.bfloat16]
            tensors[name] = tensors[name].to(draw.choice(kinds))
        case 4:
            del tensors[name]
        case 5:
            tensors[name] = torch.full_like(tensors[name].float(), float("nan"))
        case _:
            body["info"] = fuzz_damage.changed(body.get("info"), draw)
    text = json.dumps(body)
    path.unlink()
    save_file(tensors, path, {"stepwell": text, "digest": checkpoint._digest(text, tensors)})


def checkpoint_file(draw: Random) -> Case:
    """A checkpoint that is cut, flipped, something else, or made to look right."""
    damage = draw.choice([_crafted, _crafted, _crafted, fuzz_damage.bytes_of, fuzz_damage.kind_of])
    words = draw.choice([words for words in _OF_A_RUN if words[0] not in ("report", "watch")])
    if draw.random() < 0.2:
        words = (*SMALL, "from=run/checkpoints/step-000000002.safetensors", "--dry-run")
    return _case(draw, "checkpoint", words, "run/checkpoints/step-*2.safetensors", damage)


def data_file(draw: Random) -> Case:
    """Arrays and pictures that are none, or not what they announce."""
    arrays: Sequence[Damage] = (fuzz_damage.npz_of, fuzz_damage.npz_of, fuzz_damage.bytes_of,
    fuzz_damage.kind_of,
                                fuzz_damage.bomb)  # fmt: skip
    pictures: Sequence[Damage] = (fuzz_damage.picture, fuzz_damage.bytes_of, fuzz_damage.kind_of)
    if draw.random() < 0.6:
        file = draw.choice(["images.npz", "packed.npz"])
        return _case(draw, "data file", _reading(draw, file), file, draw.choice(arrays))
    return _case(draw, "picture", _reading(draw, "photos"), "photos/*/*.png", draw.choice(pictures))


def _reading(draw: Random, file: str) -> tuple[str, ...]:
    commands: Sequence[tuple[str, ...]] = (
        ("data", "show", file),
        ("data", "show", file, "--labels"),
        ("data", "show", file, "--size", "8"),
        (*SMALL, f"data={file}", "--dry-run"),
        ("evaluate", file, "colour.npz", "--extractor", "fashion16"),
        ("evaluate", "colour.npz", file, "--extractor", "fashion16", "--size", "16"),
        ("data", "encode", file, "--autoencoder", "vae", "--out", "x", "--dry-run"),
    )
    return draw.choice(commands)


def _loops(kind: int, home: Path) -> None:
    """Folders that link to each other, and a pipe among pictures."""
    photos = home / "photos"
    if kind == 0:
        os.mkfifo(photos / "cats" / "pipe.png")
        return
    for one, other in (("cats", "dogs"), ("dogs", "cats")):
        for number in range(1 + kind):
            (photos / one / f"link{number}").symlink_to(f"../{other}")
    if kind == 3:
        (photos / "all").symlink_to("..")


def folder(draw: Random) -> Case:
    """A folder of images in which one could wait or walk for ever."""
    words = _reading(draw, "photos")
    return Case("folder", words, partial(_loops, draw.randrange(4)))


def latents(draw: Random) -> Case:
    """A folder of latents, or an autoencoder, that was damaged."""
    commands: Sequence[tuple[str, ...]] = (
        ("data", "show", "latents"),
        (*SMALL, "data=latents", "--dry-run"),
        (*SMALL, "data=latents", "labels=true", "--dry-run"),
    )
    if draw.random() < 0.3:
        words = ("data", "encode", "colour.npz", "--autoencoder", "vae", "--out", "x", "--dry-run")
        damage = draw.choice([fuzz_damage.json_values, fuzz_damage.json_values, *_TEXT_DAMAGE])
        return _case(draw, "autoencoder", words, "vae/config.json", damage)
    if draw.random() < 0.7:
        damage = draw.choice([fuzz_damage.json_values, fuzz_damage.json_values, *_TEXT_DAMAGE])
        return _case(draw, "latents", draw.choice(commands), "latents/manifest.json", damage)
    damage = draw.choice([fuzz_damage.bytes_of, fuzz_damage.kind_of])
    return _case(draw, "latents", draw.choice(commands), "latents/*.safetensors", damage)


def statistics(draw: Random) -> Case:
    """Statistics of features that are none."""
    damage = draw.choice([fuzz_damage.npz_of, fuzz_damage.npz_of, fuzz_damage.bytes_of, fuzz_damage.kind_of])
    words = ("evaluate", "images.npz", "statistics.npz", "--extractor", "fashion16")
    return _case(draw, "statistics", words, "statistics.npz", damage)


def log_file(draw: Random) -> Case:
    """A log of losses that is none."""
    damage = draw.choice([fuzz_damage.bytes_of, fuzz_damage.encoding_of, fuzz_damage.kind_of, _log_line])
    return _case(draw, "log", ("fit", "log.csv", *draw.choice([(), ("-p", "linear")])), "log.csv", damage)


def _log_line(path: Path, draw: Random) -> None:
    lines = path.read_text().splitlines()
    odd = (
        "nan,1",
        "1,nan",
        "1,inf",
        f"{'9' * 400},1",
        "1,1e308",
        "-1,1",
        "1,-1",
        ",",
        "a,b",
        "1;2",
        "1,2,3",
        '"',
    )
    lines[draw.randrange(len(lines))] = draw.choice(odd)
    path.write_text("\n".join(lines))


MAKERS: dict[Maker, int] = {
    toml_file: 14, wrong_toml: 12, run_file: 14, checkpoint_file: 6, data_file: 12, folder: 2, latents: 6,
    statistics: 4, log_file: 4,
}  # fmt: skip
