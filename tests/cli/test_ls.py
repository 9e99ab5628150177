"""`stepwell ls` lists the whole catalogue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.catalogue.find import ENTRIES
from stepwell.cli.main import main
from stepwell.models.registry import MODELS
from stepwell.recipes.method import method_files, study_files, workload_files


def test_everything_is_listed_with_its_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls"]) == 0
    text = capsys.readouterr().out
    for entry in ENTRIES:
        assert f"  {entry.name} " in text
        assert entry.source in text
    for model in MODELS.values():
        assert f"  {model.name} " in text
        assert f"{model.summary} ({model.source})" in text
    for name in {**workload_files(), **method_files(), **study_files()}:
        assert f"  {name} " in text


def test_one_kind_and_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "weightings", "--parameters"]) == 0
    text = capsys.readouterr().out
    assert "logit-normal" not in text
    assert "gamma: the SNR above which weights fall (default 5.0)" in text


def test_parameters_come_with_what_differs_from_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "samplers", "-p"]) == 0
    text = capsys.readouterr().out
    said = [line.strip() for line in text.splitlines() if line.strip().startswith("differs in ")]
    (policy,) = (entry for entry in ENTRIES if entry.differences)
    assert len(said) == len(policy.differences) >= 10
    for line, one in zip(said, policy.differences, strict=True):
        for part in (one.what, one.paper, one.here, one.why, one.changes):
            assert part in line


def test_the_documentation_has_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--markdown"]) == 0
    written = (Path(__file__).parents[2] / "docs" / "catalogue.md").read_text()
    assert written == capsys.readouterr().out, "run: stepwell ls --markdown > docs/catalogue.md"


def test_json_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    files = [*workload_files(), *method_files(), *study_files()]
    assert len(listed) == len(ENTRIES) + len(MODELS) + len(files)


def test_models_are_listed_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in listed] == list(MODELS)
    assert {model["kind"] for model in listed} == {"model"}
    code = (
        "import sys; from stepwell.cli.main import main; main(['ls', 'models']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
