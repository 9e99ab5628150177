"""How often does a comparison claim a difference where there is none, and find one that is there?

    python benchmarks/false_claims.py [FAMILY ...]     simulates, a family at a time, on two processes
    python benchmarks/false_claims.py table            only the table and the picture, from what is there

Pairs of learning curves of the same method are drawn from families that look like training, and judged by
the code that judges studies (`stepwell.compare`). Both runs of a pair come from one family, so every claim is
false. Then one of them is made to need 0.85 of the images, and the claims are counted again. Beside it: the
measure that was used until November 2026, images to the baseline's end.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from results import HERE, keep

from stepwell.compare.curves import end_ratio, same_loss_ratio
from stepwell.compare.results import Outcome
from stepwell.compare.stats import RATE, Ratio, paired
from stepwell.core.estimates import t_quantile
from stepwell.recipes.schema import Recipe

STUDIES, SEEDS, POWER_STUDIES, EFFECT = 20_000, (3, 5, 8, 20), 4_000, 0.85
EVALUATIONS = 20
KEY = "loss"
PARTS = HERE / "records" / "false-claims"
PICTURE = HERE.parent / "docs" / "false-claims.png"
Shape = Callable[[float, random.Random], Callable[[float], float]]
"""(images needed over the usual, chance) -> one run's true log loss over the share of training done."""


@dataclass(frozen=True)
class Family:
    """Runs of one kind: a shape, and how much runs and evaluations differ."""

    title: str
    shape: Shape
    level: float
    """Standard deviation of a run's own level, in logarithms."""
    walk: float
    """Of what a run drifts from its course until the end."""
    noise: float
    """Of a single evaluation."""


def power_law(need: float, chance: random.Random) -> Callable[[float], float]:
    """A loss that goes on falling, as long runs of diffusion models do."""
    return lambda t: -0.3 * math.log(t / need)


def to_a_floor(length: float) -> Shape:
    """0.1 + exp(-t / 2), for t up to `length`."""
    return lambda need, chance: lambda t: math.log(0.1 + math.exp(-t / need * length / 2))


def plateau(need: float, chance: random.Random) -> Callable[[float], float]:
    """A power law for three tenths of training, then nothing."""
    return lambda t: -0.3 * math.log(min(t / need, 0.3))


def nothing(need: float, chance: random.Random) -> Callable[[float], float]:
    """No progress at all."""
    return lambda t: 0.0


def crossing(need: float, chance: random.Random) -> Callable[[float], float]:
    """Power laws of different exponents, which cross at four tenths of training."""
    exponent = chance.gauss(0.3, 0.05)
    return lambda t: -exponent * math.log(t / need / 0.4)


def decayed(need: float, chance: random.Random) -> Callable[[float], float]:
    """A power law, and what a cosine decay of the learning rate adds: a quarter of the loss, late."""
    return lambda t: -0.2 * math.log(t / need) + math.log(0.75 + 0.125 * (1 + math.cos(math.pi * t)))


def fine_tuning(need: float, chance: random.Random) -> Callable[[float], float]:
    """A loss that falls by eight per cent in all."""
    return lambda t: math.log(1 + 0.08 * math.exp(-3 * t / need))


FAMILIES = {
    "power-law": Family("power law", power_law, 0.01, 0.005, 0.003),
    "noisy-power-law": Family("power law, noisy", power_law, 0.03, 0.01, 0.01),
    "floor-10": Family("to a floor, reached late", to_a_floor(10), 0.03, 0, 0.003),
    "floor-20": Family("to a floor, half of training on it", to_a_floor(20), 0.03, 0, 0.003),
    "floor-40": Family("to a floor, most of training on it", to_a_floor(40), 0.03, 0, 0.003),
    "plateau": Family("plateau, noisy evaluations", plateau, 0.01, 0.003, 0.01),
    "nothing": Family("no progress, only noise", nothing, 0.005, 0.005, 0.01),
    "crossing": Family("crossing curves", crossing, 0.003, 0.003, 0.002),
    "decay": Family("learning-rate decay", decayed, 0.01, 0.003, 0.003),
    "fine-tuning": Family("fine-tuning, a small fall", fine_tuning, 0.003, 0.003, 0.002),
}
RECIPE = Recipe(steps=1000 * EVALUATIONS)


def run(family: Family, need: float, chance: random.Random) -> Outcome:
    """One run of a family."""
    course = family.shape(need, chance)
    level = chance.gauss(0, family.level)
    drift = 0.0
    records = []
    for index in range(1, EVALUATIONS + 1):
        drift += chance.gauss(0, family.walk) / math.sqrt(EVALUATIONS)
        log = course(index / EVALUATIONS) + level + drift + chance.gauss(0, family.noise)
        records.append({"step": 1000 * index, "images": 1000 * index, KEY: math.exp(log)})
    return Outcome(Path("simulated"), RECIPE, tuple(records))


def old_ratio(one: Outcome, two: Outcome) -> float:
    """Images to the baseline's end, of means of three evaluations: the measure until November 2026."""

    def smoothed(each: Outcome) -> list[float]:
        values = each.values(KEY)
        return [
            sum(values[max(0, i - 2) : i + 1]) / len(values[max(0, i - 2) : i + 1])
            for i in range(len(values))
        ]

    def reached(values: Sequence[float], target: float) -> float:
        for index, value in enumerate(values):
            if value <= target:
                if index == 0:
                    return 1.0
                before = values[index - 1]
                return index + ((before - target) / (before - value) if before > value else 1.0)
        return math.inf

    own, base = smoothed(one), smoothed(two)
    return reached(own, base[-1]) / reached(base, base[-1])


def at_95(ratio: Ratio) -> Ratio:
    """With the interval that Student's t gives, without the margin that there is now."""
    if ratio.missed:
        return ratio
    narrower = t_quantile(ratio.seeds - 1, 0.95) / t_quantile(ratio.seeds - 1, 1 - RATE)
    half = math.log(ratio.high / ratio.mean) * narrower
    return replace(ratio, low=ratio.mean * math.exp(-half), high=ratio.mean * math.exp(half))


Claims = dict[str, dict[str, Any]]
"""By measure: the shares of studies that claim lower and higher, that say something, and the mean ratio."""


def claims(family: Family, seeds: Sequence[int], studies: int, need: float, key: str) -> dict[str, Claims]:
    """What studies claim, by their number of seeds; the first seeds of a large study are a small one."""
    chance = random.Random(f"{family.title} {need} {key}")
    counts = {
        str(count): {name: dict.fromkeys(("lower", "higher", "said", "logs"), 0.0) for name in MEASURES}
        for count in seeds
    }
    for _ in range(studies):
        ratios: dict[str, list[float]] = {name: [] for name in MEASURES}
        for _ in range(max(seeds)):
            one, two = run(family, need, chance), run(family, 1.0, chance)
            for name, measure in MEASURES.items():
                ratios[name].append(measure(one, two))
        for count in seeds:
            judged = {name: paired(own[:count]) for name, own in ratios.items()}
            judged["old"] = at_95(judged["old"])
            judged["verdict"] = judged["end" if judged["same loss"].missed else "same loss"]
            for name, ratio in judged.items():
                told = counts[str(count)].setdefault(
                    name, dict.fromkeys(("lower", "higher", "said", "logs"), 0.0)
                )
                told["lower"] += ratio.lower
                told["higher"] += ratio.higher
                if not ratio.missed:
                    told["said"] += 1
                    told["logs"] += math.log(ratio.mean)
    return {
        count: {name: _shares(told, studies) for name, told in by.items()} for count, by in counts.items()
    }


def _shares(told: dict[str, float], studies: int) -> dict[str, Any]:
    shares: dict[str, Any] = {name: told[name] / studies for name in ("lower", "higher", "said")}
    return shares | {"mean": math.exp(told["logs"] / told["said"]) if told["said"] else None}


MEASURES: dict[str, Callable[[Outcome, Outcome], float]] = {
    "same loss": lambda one, two: same_loss_ratio(one, two, KEY),
    "end": lambda one, two: end_ratio(one, two, KEY),
    "old": old_ratio,
}


def simulate(name: str) -> str:
    """Both kinds of studies of one family, kept."""
    family = FAMILIES[name]
    found = {
        "null": claims(family, SEEDS, STUDIES, 1.0, "null"),
        "effect": claims(family, (3, 8), POWER_STUDIES, EFFECT, "effect"),
    }
    PARTS.mkdir(exist_ok=True)
    (PARTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return name


def table() -> None:
    """The record and the picture, from the families that are there."""
    parts = {
        name: json.loads((PARTS / f"{name}.json").read_text())
        for name in FAMILIES
        if (PARTS / f"{name}.json").exists()
    }
    rows = []
    for name, part in parts.items():
        null, effect = part["null"], part["effect"]
        rows.append(
            [
                FAMILIES[name].title,
                *(_percent(null[str(count)]["verdict"]) for count in SEEDS),
                _mean(null["3"]["same loss"]),
                _percent(null["3"]["old"]),
                _mean(null["3"]["old"]),
                *(f"{effect[count]['verdict']['lower']:.2f}" for count in ("3", "8")),
                *(f"{effect[count]['old']['lower']:.2f}" for count in ("3", "8")),
                f"{effect['3']['same loss']['said']:.2f}",
                _mean(effect["3"]["same loss"]),
            ]
        )
    columns = ["family", *(f"false claims in %, {count} seeds" for count in SEEDS), "mean ratio, 3 seeds"]
    columns += ["the old measure's claims", "its mean", "found with 3 seeds", "with 8", "old, 3", "old, 8"]
    columns += ["images told", "mean told"]
    keep("false-claims", "How often a comparison errs", HOW, columns, rows, command=COMMAND)
    picture(parts)


def _mean(told: dict[str, Any]) -> str:
    return "" if told["mean"] is None else f"{told['mean']:.3f}"


def _percent(told: dict[str, float]) -> str:
    return f"{100 * told['lower']:.1f} below, {100 * told['higher']:.1f} above"


COMMAND = "python benchmarks/false_claims.py"
HOW = (
    f"{STUDIES:,} simulated studies of each family in which nothing "
    "differs (standard error of a share of 2.5 %: 0.1), each judged as `stepwell compare` does: by the "
    "images for the same loss, or by the final loss where the curves do not say. A claim is an interval that "
    "excludes 1. Mean ratio: of the images for the same loss. Then "
    f"{POWER_STUDIES:,} studies in which one method needs {EFFECT} of the images: the share that finds it, "
    "the share in which the curves say how many images, and the mean of what they say. Old: images to the "
    "baseline's end, as judged until November 2026; where a run never got there, it told nothing, and so its "
    "means lean low."
)


def picture(parts: dict[str, dict[str, dict[str, Claims]]]) -> None:
    """False claims by family and seeds, below and above 1, of the old measure and of this one."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, 2, figsize=(11, 0.42 * len(parts) + 1.8), sharex=True, sharey=True, layout="constrained"
    )
    places = list(range(len(parts)))[::-1]
    for axis, measure, title in zip(
        axes,
        ("old", "verdict"),
        ("until November 2026: images to the baseline's end", "now: images for the same loss"),
        strict=True,
    ):
        axis.axvspan(-2.5, 2.5, color="0.93")
        axis.axvline(0, color="0.6", linewidth=0.8)
        for shift, count in zip((0.24, 0.08, -0.08, -0.24), SEEDS, strict=True):
            for side, sign in (("lower", -1), ("higher", 1)):
                shares = [sign * 100 * part["null"][str(count)][measure][side] for part in parts.values()]
                shade = {3: "C0", 5: "C1", 8: "C2", 20: "C3"}[count]
                label = f"{count} seeds" if side == "lower" else None
                axis.plot(
                    shares, [place + shift for place in places], "o", color=shade, markersize=4, label=label
                )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("% of null studies that claim: fewer images  |  more images")
    axes[0].set_yticks(places, [FAMILIES[name].title for name in parts])
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(SEEDS))
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    """Simulate what is named, or everything; then the table."""
    names = [name for name in sys.argv[1:] if name != "table"] or list(FAMILIES)
    if "table" not in sys.argv:
        with multiprocessing.Pool(2) as pool:
            for name in pool.imap_unordered(simulate, names):
                print(name, flush=True)
    table()


if __name__ == "__main__":
    main()
