"""Nobody types a number into RESULTS.md: it is what the committed records say."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.compare.results import read
from stepwell.compare.stats import paired
from stepwell.compare.study import load_study
from stepwell.compare.trials import final_trials
from stepwell.compare.tuning import tuned
from stepwell.recipes.schema import DEFINES_RESULT

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def module(name: str) -> Any:
    """A benchmark script, which is no package."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_results_are_made_from_records() -> None:
    assert (BENCHMARKS / "RESULTS.md").read_text() == module("results").text(), "run benchmarks/results.py"


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


_PLACE = re.compile(r"""(^|[\s"'`=,(])(~|[A-Za-z]:)?[/\\]\w|/(tmp|home|root|work|mnt)/|\bout=|runs/results""")


def test_records_name_no_place_of_the_machine_that_made_them() -> None:
    """Absolute paths, homes, output folders and host names: nobody else has them."""
    kind = {"python", "packages", "commit", "system", "processor", "cores", "command", "device", "threads"}
    kind |= {"processes", "parameters", "parameters_that_learn", "class_names"}
    host = socket.gethostname()
    for path in (BENCHMARKS / "records").rglob("*.json"):
        record = json.loads(path.read_text())
        found = [text for text in _texts(record) if _PLACE.search(text) or (len(host) > 4 and host in text)]
        assert found == [], path
        environment = record if path.name == "environment.json" else record.get("environment", {})
        assert environment.keys() <= kind, path
    for path in (BENCHMARKS / "records").rglob("*.jsonl"):
        assert not _PLACE.search(path.read_text()), path
    results = (BENCHMARKS / "RESULTS.md").read_text()
    assert not _PLACE.search(results)


def test_every_table_says_the_command_and_the_scripts_that_make_it_again(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    made = module("made_data").MADE
    scripts = {str(path.relative_to(BENCHMARKS)) for path in BENCHMARKS.rglob("*.py")}
    for path in (BENCHMARKS / "records").glob("*.json"):
        record = json.loads(path.read_text())
        program, script, *words = shlex.split(record["command"])
        folder, _, name = script.partition("/")
        assert (program, folder) == ("python", "benchmarks"), path
        assert name in scripts, path
        for word in words:
            if word.startswith("data=") and word != "data=fashion16":
                assert made[word.removeprefix("data=")] in record["data"], path
    named = {name for how in made.values() for name in re.findall(r"benchmarks/(\w+\.py)", how)}
    assert named <= scripts


@pytest.mark.parametrize(
    "folder",
    [
        "runs",
        "runs-fig1",
        "runs-fig7",
        "runs-finetune",
        "runs-score-based",
        "runs-small-batch",
        "runs-table2",
        "runs-table3",
    ],
)
def test_a_record_is_found_by_its_own_command(folder: str) -> None:
    """The command of each kept run is of a study with a run of exactly these settings."""
    records = BENCHMARKS / "records" / folder
    by_command: dict[tuple[str, ...], list[Path]] = {}
    for path in records.rglob("environment.json"):
        by_command.setdefault(tuple(json.loads(path.read_text())["command"]), []).append(path.parent)
    for (program, verb, name, *words), places in by_command.items():
        assert (program, verb) in [("stepwell", "compare"), ("python", "benchmarks/studies.py")]
        study = load_study(name, words)
        # The weights that a study trains first are not kept: their digest is.
        settings = DEFINES_RESULT - {"start_digest"} - {"lr"}
        trials = [*tuned(study, Path(), records).trials, *final_trials(study, Path(), records)]
        wanted = {trial.folders[-1]: trial.recipe for trial in trials}
        for place in places:
            assert read(place).recipe.agrees(wanted[place], settings), place


def test_a_record_that_would_name_a_place_is_refused(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    with pytest.raises(SystemExit, match=r"which is only here\. Make data where"):
        module("results").keep("never", "t", "data=/scratch/photos", ["a"], [["1"]])
    monkeypatch.setattr("sys.argv", ["studies.py", "table2", "data=/scratch/latents"])
    with pytest.raises(SystemExit, match="data=runs/"):
        module("studies").main()


def test_only_what_is_sure_agrees_or_disagrees_with_the_paper(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    agrees = module("paper_tables")._agrees
    assert agrees(paired([0.5, 0.52, 0.51]), 0.8) == "agrees"
    assert agrees(paired([0.5, 0.52, 0.51]), 1.2) == "DISAGREES"
    assert agrees(paired([1.5, 1.52, 1.51]), 1.2) == "agrees"
    assert agrees(paired([0.5, 2.0, 1.0]), 1.2) == "undecided here"
