"""Summaries made by hand: two workloads, four methods, three seeds, everything that a page can show."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import replace

from stepwell.analyze.noised import NoisedExample
from stepwell.compare.results import LeftOut
from stepwell.compare.samples import Sheet
from stepwell.compare.stats import Ratio
from stepwell.compare.views import (
    Answer,
    AnswerRow,
    Heat,
    MethodView,
    Profile,
    RunState,
    RunView,
    Summary,
    Table,
    Workload,
)
from stepwell.runs.metrics import Metric

METRICS = (
    Metric("objective/simple", "held-out simple loss"),
    Metric("objective/min-snr", "held-out Min-SNR loss"),
    Metric("objective/bound", "held-out variational bound"),
)
METHODS = ("uniform", "min-snr", "neyman", "alignment")
FINAL = {"uniform": 0.0345, "min-snr": 0.0352, "neyman": 0.0328, "alignment": 0.0337}
SPEED = {"uniform": 1.0, "min-snr": 1.0, "neyman": 1.06, "alignment": 1.04}


def ratio(mean: float, low: float, high: float) -> Ratio:
    """A ratio over three seeds."""
    return Ratio(mean, low, high, high, 3)


def good(points: int = 40, seeds: int = 3, methods: tuple[str, ...] = METHODS) -> Summary:
    """A finished study."""
    workloads = tuple(
        _workload(name, factor, points, seeds, methods)
        for name, factor in (("fashion16", 1.0), ("mnist16", 0.7))
    )
    return Summary(
        title="Which timesteps? fashion16 and mnist16",
        verdict=(
            "neyman needs 0.62 (0.55 to 0.70) of uniform's images for the same simple loss.",
            "alignment needs 0.78 of it (0.66 to 0.93); min-snr does not get there on the plain loss.",
        ),
        notes=(
            "Time is training seconds on the same machine; evaluation is not counted.",
            "Intervals are 95 %, a paired t on the logarithms of ratios over 3 seeds.",
            "Four comparisons were made: by luck alone, one in five such studies calls a winner.",
        ),
        metrics=METRICS,
        workloads=workloads,
        answers=tuple(_answer(name, methods) for name in ("All 2 workloads", "fashion16", "mnist16")),
        overall=Table(
            "Geometric mean over workloads of the time to the baseline's final loss",
            ("method", "time to target", "workloads won"),
            (
                ("uniform", "1", "–"),
                ("min-snr", "not reached", "0 of 2"),
                ("neyman", ratio(0.64, 0.57, 0.72), "2 of 2"),
                ("alignment", ratio(0.80, 0.69, 0.93), "1 of 2"),
            ),
        ),
        profiles=tuple(_profile(name, index) for index, name in enumerate(methods)),
        left_out=(LeftOut("runs/fashion16/neyman-7", "metrics.jsonl is missing: the run never started."),),
        environment={"python": "3.11.9", "torch": "2.13.0", "machine": "2 cores, 8 GB", "commit": "8f3a92b"},
        reproduce=(
            "git checkout 8f3a92b && make test",
            "stepwell compare fashion16 mnist16 --methods uniform,min-snr,neyman,alignment --out runs/study",
            "stepwell report runs/study --out report.html",
        ),
    )


def _answer(name: str, methods: tuple[str, ...]) -> Answer:
    ratios = {"neyman": ratio(0.62, 0.55, 0.70), "alignment": ratio(0.97, 0.90, 1.05)}
    rows = [AnswerRow(method, ratios.get(method, ratio(1.2, 1.1, 1.3))) for method in methods[1:]]
    return Answer(name, "images for the same simple loss", (*rows, AnswerRow(methods[0], None, "baseline")))


def like_the_demo() -> Summary:
    """One workload and four methods, as `make demo` leaves them."""
    summary = good()
    return replace(summary, workloads=summary.workloads[:1], answers=summary.answers[1:2], overall=None)


def states() -> tuple[RunState, ...]:
    """Two runs that train, one that failed, one that waits, one that is done."""
    sheet = Sheet(picture(3), "step 500")
    return (
        RunState("uniform, seed 0", "running", 1200, 3000, 12.5, 144.0, 0.0412, 0.008, sheet),
        RunState("neyman, seed 0", "running", 900, 3000, 11.0, 191.0, 0.0409, 0.008),
        RunState("neyman, seed 1", "failed", 50, 3000, message="the loss is not finite at step 50."),
        RunState("uniform, seed 1", "queued"),
        RunState("uniform, seed 2", "done", 3000, 3000),
    )


def growing(points: int, running: bool = True) -> Summary:
    """The same while its runs have come some way."""
    summary = good(points)
    workload = summary.workloads[0]
    runs = tuple(replace(run, finished=not running) for run in workload.runs)
    return replace(summary, workloads=(replace(workload, runs=runs),), overall=None, running=running)


def hostile(text: str) -> Summary:
    """Every text that comes from outside is the same bad text."""
    summary = good(6, 2)
    method = replace(summary.workloads[0].methods[0], name=text, sheet=Sheet(picture(0), text))
    runs = tuple(
        replace(run, method=text, path=text, warnings=(text,)) for run in summary.workloads[0].runs[:2]
    )
    workload = replace(
        summary.workloads[0],
        name=text,
        baseline=text,
        methods=(method,),
        runs=runs,
        table=Table(text, (text, text), ((text, text),)),
        settings={text: text, "nested": {"x": [text]}},
        forecasts=Table(text, (text, text), ((text, text),)),
    )
    return Summary(
        title=text,
        verdict=(text, text),
        notes=(text,),
        metrics=(Metric("objective/simple", text),),
        workloads=(workload,),
        answers=(
            Answer(text, text, (AnswerRow(text, ratio(0.5, 0.4, 0.6), text), AnswerRow(text, None, text))),
        ),
        overall=Table(text, (text,), ((text,),)),
        profiles=(Profile(text, 0, (1.0, 2.0), (0.5, 1.0)),),
        left_out=(LeftOut(text, text),),
        environment={text: text},
        reproduce=(text,),
        states=(RunState(text, "failed", 3, 4, message=text), RunState(text, "queued")),
    )


def _workload(name: str, factor: float, points: int, seeds: int, methods: tuple[str, ...]) -> Workload:
    views = tuple(_method(method, index, methods[0], points, seeds) for index, method in enumerate(methods))
    runs = tuple(_run(method, seed, name, factor, points) for method in methods for seed in range(seeds))
    rows = [
        ("uniform", "1", f"{0.0345 * factor:.4f}", "–", "12.4 s"),
        ("min-snr", "not reached", f"{0.0352 * factor:.4f}", ratio(1.02, 1.00, 1.04), "12.4 s"),
        ("neyman", ratio(0.62, 0.55, 0.70), f"{0.0328 * factor:.4f}", ratio(0.95, 0.93, 0.97), "13.1 s"),
        ("alignment", ratio(0.78, 0.66, 0.93), f"{0.0337 * factor:.4f}", ratio(0.98, 0.95, 1.00), "12.9 s"),
    ]
    columns = (
        "method",
        "time to uniform's final loss",
        "simple loss at the end",
        "against uniform",
        "per 1000 steps",
    )
    leading = columns[:4]
    caption = f"{seeds} seeds, paired; 95 % intervals"
    settings = {
        "model": "unet-small",
        "steps": 3000,
        "batch": 64,
        "lr": 0.008,
        "process": "cosine",
        "timesteps": 1000,
    }
    told = (
        ("uniform", ratio(1.0, 1.0, 1.0), "105 (78 to 169)", ratio(1.0, 1.0, 1.0), None),
        ("neyman", ratio(0.58, 0.55, 0.61), "105 (78 to 169)", ratio(0.65, 0.6, 0.7), ratio(0.62, 0.55, 0.7)),
    )
    expected = ("method", "variance left", "critical batch", "images expected", "images measured")
    table, forecasts = (
        Table(caption, columns, tuple(rows), leading),
        Table("What was expected", expected, told),
    )
    noise = NoisedExample((3.0, 0.0, -6.0), tuple((0, 128, 255) * 2 for _ in range(2)))
    return Workload(name, methods[0], table, views, runs, settings, forecasts, noise)


def _run(method: str, seed: int, workload: str, factor: float, points: int) -> RunView:
    steps = tuple(round(3000 * index / 39) for index in range(points))
    speed, final = SPEED.get(method, 1.0), FINAL.get(method, 0.034) * factor
    wobble = [
        1 + 0.006 * math.sin(7 * seed + index * 1.7) + 0.004 * math.sin(3 * seed + index * index)
        for index in range(points)
    ]
    base = [final * (1 + 30 / (1 + step / 6) + 0.9 * math.exp(-step / 700)) for step in steps]
    values = {
        key: tuple(scale * value * w for value, w in zip(base, wobble, strict=True))
        for key, scale in (("objective/simple", 1.0), ("objective/min-snr", 0.6), ("objective/bound", 0.011))
    }
    return RunView(
        method=method,
        seed=seed,
        path=f"runs/study/{workload}-{method}-{seed}",
        finished=True,
        steps=steps,
        images=tuple(64.0 * step for step in steps),
        seconds=tuple(0.0124 * speed * step * (1 + 0.02 * seed) for step in steps),
        values=values,
        warnings=("18 % of the losses were far from the rest at step 900.",)
        if (method, seed) == ("alignment", 1)
        else (),
    )


def _method(name: str, index: int, baseline: str, points: int, seeds: int) -> MethodView:
    bins, rows = 50, []
    for row in range(points):
        learnt = min(1.0, row / 12) if index >= 2 else 0.0
        heights = [
            1
            + learnt
            * (
                3.4 * math.exp(-((b / bins / 0.1) ** 2))
                + (index - 2) * 1.8 * math.exp(-(((b / bins - 0.6) / 0.14) ** 2))
                - 0.6
            )
            for b in range(bins)
        ]
        mean = sum(heights) / bins
        rows.append(tuple(height / mean for height in heights))
    snr = [min(1.0, 5 * (0.02 + (b / bins) ** 2)) for b in range(bins)]
    weight = snr if name == "min-snr" else [1.0] * bins
    mean = sum(weight) / bins
    bands = tuple(
        (0.9 * math.exp(-7 * (b + 0.5) / 20) + 0.004) * (1 + 0.08 * index * math.sin(b / 3))
        for b in range(20)
    )
    return MethodView(
        name=name,
        colour=index,
        against=None if name == baseline else baseline,
        seeds=tuple(range(seeds)),
        density=Heat(tuple(64.0 * 3000 * row / 39 for row in range(points)), tuple(rows)),
        effective_weight=tuple(value / mean for value in weight),
        bands=bands,
        sheet=Sheet(picture(index), "64 images after 3000 steps, seed 0"),
    )


def _profile(name: str, index: int) -> Profile:
    shares = {
        0: (0.0, 0.0, 0.33, 1.0),
        1: (0.0, 0.0, 0.0, 0.17),
        2: (0.83, 1.0, 1.0, 1.0),
        3: (0.17, 0.67, 1.0, 1.0),
    }
    return Profile(name, index, (1.0, 1.2, 1.6, 2.0), shares.get(index, shares[0]))


def picture(number: int) -> str:
    """A tiny grey PNG as a data: address."""
    side = 64
    lines = b"".join(
        b"\0" + bytes((x * 7 ^ y * (5 + number)) % 256 for x in range(side)) for y in range(side)
    )
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
