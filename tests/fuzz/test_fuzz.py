"""Thousands of seeded commands that cannot work: each is refused in a sentence, or does what it says.

By hand, with counts and what broke: `PYTHONPATH=tests python tests/fuzz/test_fuzz.py 2000 7` (cases, seed),
and some of them again by their numbers: `... 2000 7 31 415`.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import fuzz_files
import fuzz_words
import pytest
from fuzz_case import OUTCOMES, Case, Result, run_case
from fuzz_home import make_home

MAKERS = {**fuzz_words.MAKERS, **fuzz_files.MAKERS}
NIGHTLY, OFTEN = 10_000, 500
WRONG = ("traceback", "silent", "slow")


Found = tuple[int, Case, Result]
"""A case by its number, and what became of it."""


def fuzz(home: Path, place: Path, numbers: Iterable[int], seed: int) -> Iterator[Found]:
    """These cases of a seed, each one independent of the others."""
    for number in numbers:
        draw = Random(f"{seed}/{number}")
        (maker,) = draw.choices(list(MAKERS), list(MAKERS.values()))
        case = maker(draw)
        yield number, case, run_case(case, home, place / str(number))


def counted(found: list[Found]) -> str:
    """How many cases had which outcome."""
    outcomes = Counter(result.outcome for _, _, result in found)
    return f"{len(found)} tried: " + ", ".join(f"{outcomes[name]} {name}" for name in OUTCOMES)


def wrong(found: list[Found]) -> list[str]:
    """What must not be, one line each."""
    return [
        f"{number}: {result.outcome} ({result.seconds:.1f} s, {case.family}): {_brief(case.words)}: "
        f"{result.detail}"
        for number, case, result in found
        if result.outcome in WRONG
    ]


def _brief(words: tuple[str, ...]) -> str:
    return " ".join(word if len(word) < 60 else f"{word[:40]}...({len(word)})" for word in words)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One real run, study, export and cache of latents, made once."""
    return make_home(tmp_path_factory.mktemp("fuzz") / "home")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(OFTEN, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
        pytest.param(NIGHTLY, marks=[pytest.mark.slow, pytest.mark.timeout(3 * 3600)]),
    ],
)
def test_every_command_is_refused_in_a_sentence_or_does_what_it_says(
    home: Path, tmp_path: Path, count: int
) -> None:
    found = list(fuzz(home, tmp_path, range(count), seed=18))
    print(counted(found))
    assert not wrong(found), "\n".join([counted(found), *wrong(found)])


if __name__ == "__main__":
    import os
    import time

    sys.path.insert(0, str(Path(__file__).parents[1]))
    with tempfile.TemporaryDirectory() as top:
        os.environ["STEPWELL_CACHE"] = f"{top}/cache"
        made, started = make_home(Path(top) / "home"), time.monotonic()
        found = []
        count, seed, *chosen = map(int, sys.argv[1:])
        for one in fuzz(made, Path(top), chosen or range(count), seed):
            found.append(one)
            if len(found) % 100 == 0:
                print(counted(found), file=sys.stderr, flush=True)
        print("\n".join([*wrong(found), counted(found), f"{time.monotonic() - started:.0f} s"]))
        families = Counter((case.family, result.outcome) for _, case, result in found)
        for (family, outcome), times in sorted(families.items()):
            print(f"  {family:24} {outcome:14} {times}")
