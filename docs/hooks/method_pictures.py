"""The picture of a method, made while the site is built by the code behind `stepwell show` and `analyze`."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import find
from stepwell.catalogue.spec import Spec, split_pair

ROOT = Path(__file__).parents[2]
RECORDS = Path("benchmarks/records")
_PROCESSES = ("linear", "cosine", "flow")


def picture(entry: Entry, meta: Mapping[str, Any]) -> bytes:
    """An SVG: recorded draws over training, what known losses teach it, or its formula on some processes."""
    return _drawn(entry.kind, entry.name, json.dumps(meta, default=str))


@cache
def _drawn(kind: str, name: str, written: str) -> bytes:
    """Kept for as long as the server runs: pages change more often than formulas."""
    meta = json.loads(written)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        if "recorded" in meta:
            _recorded(meta["recorded"], path)
        else:
            _formula(kind, name, meta, path)
        return path.read_bytes()


def caption(meta: Mapping[str, Any]) -> str:
    """What the picture shows, in a sentence."""
    if "recorded" in meta:
        runs = " and ".join(f"`{RECORDS / run}`" for run in meta["recorded"])
        return f"Where it drew over training, as {runs} recorded it."
    if meta.get("taught"):
        return f"What it draws once it has seen the held-out losses of `{_TEACHER}`."
    return "Its density, and what it makes of the weight on the network's own loss."


def _recorded(runs: list[str], path: Path) -> None:
    from stepwell.cli.main import main

    words = ["analyze", "densities", *runs, "--save", str(path)]
    with contextlib.chdir(ROOT / RECORDS), contextlib.redirect_stdout(io.StringIO()):
        assert main(words) == 0, words


def _formula(kind: str, name: str, meta: Mapping[str, Any], path: Path) -> None:
    from stepwell.analyze.densities import profile
    from stepwell.cli.chart import save

    words = [word for word in shlex.split(str(meta.get("show", ""))) if "=" in word]
    given = dict(split_pair(word) for word in words)
    entry = find(kind, name)  # type: ignore[arg-type]
    processes = (entry.process,) if entry.process else _PROCESSES[:1] if meta.get("taught") else _PROCESSES
    # What depends on the shape is drawn at several.
    shapes = [{"shape": tuple(map(int, shape.split(",")))} for shape in meta.get("shapes", ())] or [{}]
    profiles = []
    for process in meta.get("processes", processes):
        for shape in shapes:
            parts = {"sampler": Spec("sampler", "uniform"), "weighting": Spec("weighting", "none")}
            parts[kind] = Spec(kind, name, {**given, **shape})  # type: ignore[arg-type]
            profiles.append(profile(parts["sampler"], parts["weighting"], Spec.parse("process", process)))
    save([_taught(name, one) for one in profiles] if meta.get("taught") else profiles, path)


_TEACHER = RECORDS / "runs" / "linear" / "uniform" / "0"
_EACH = 10
"""Losses for every timestep: as many as the sampler that remembers most of them wants."""


def _taught(name: str, untaught: Any) -> Any:
    """The profile of a sampler that has learned from recorded losses."""
    import torch

    import stepwell
    from stepwell.core.sampler import pmf

    process = stepwell.process("linear")
    sampler = stepwell.sampler(name, process)
    lines = (ROOT / _TEACHER / "metrics.jsonl").read_text().splitlines()
    bands = torch.tensor([json.loads(line) for line in lines if '"bands"' in line][-1]["bands"])
    u = process.grid().float().repeat(_EACH)
    losses = bands[(u * len(bands)).long()]
    sampler.learn(stepwell.Feedback(stepwell.Tick(), u, losses, losses))
    density = pmf(sampler, process) * len(untaught.u)
    effective = untaught.effective if untaught.unbiased else density / density.mean()
    return replace(untaught, density=density, effective=effective)
