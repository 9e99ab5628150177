"""`stepwell compare` as a user types it, on runs that are there already."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from compare.made_runs import evaluations, write_run

from stepwell.cli.main import main
from stepwell.compare.study import load_study
from stepwell.compare.trials import final_trials

WORDS = ["methods=uniform,neyman", "seeds=3", "steps=290", "evaluate_every=10"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A study whose runs are all finished: neyman falls half again as fast."""
    for trial in final_trials(load_study("fashion16", WORDS), tmp_path / "out", None):
        recipe = asdict(trial.recipe)
        speed = 1.5 if trial.recipe.method == "neyman" else 1.0
        values = [(1 + 0.02 * trial.recipe.seed) / (1 + speed * t) for t in range(30)]
        assert evaluations(values)[-1]["step"] == trial.recipe.steps
        write_run(trial.folders[0], values, recipe.pop("method"), recipe.pop("seed"), **recipe)
    return tmp_path / "out"


def test_the_verdict_comes_first_then_the_table(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "fashion16", *WORDS, f"out={out}"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].startswith("neyman needs 0.6")
    text = "\n".join(lines)
    assert "images for same loss" in text
    assert "claims a difference in at most 5 % of studies" in text
    assert lines[-1] == f"Next: stepwell report {out}; stepwell watch {out}"


def test_numbers_for_programs_and_a_page(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "deep" / "page.html"
    assert main(["compare", "fashion16", *WORDS, f"out={out}", "--json", "--report", str(page)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [workload["name"] for workload in summary["workloads"]] == ["fashion16"]
    assert "neyman needs" in page.read_text()


def test_a_dry_run_tells_what_is_missing(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "fashion16", *WORDS, "seeds=4", f"out={out}", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines].count("there") == 6
    assert [line.split()[0] for line in lines].count("missing") == 2
    assert main(["compare", "fashion16", "--dry-run", *WORDS, "lr=0.5", f"out={out}"]) == 0
    assert "there  " not in capsys.readouterr().out, "another learning rate is another run"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["fashion61"], "is not a known study or workload. Did you mean 'fashion16'?"),
        (["fashion16", "methods=uniform,neymann"], "'neymann' is not a known method"),
        (["fashion16", "seeds=none"], "seeds must be"),
        (["fashion16", "--workers", "0"], "at least one run at a time"),
        (["images"], "data=PATH is to be filled in"),
        (["none.toml"], "there is no file none.toml"),
        (["fashion16", "out=/dev/null/x"], "cannot write to /dev/null/x"),
        (["fashion16", "metric=bond"], "'bond' is not a known metric"),
    ],
)
def test_mistakes_are_one_message(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    caught = capsys.readouterr()
    assert part in caught.err
    assert "Traceback" not in caught.err
    assert caught.out == ""
