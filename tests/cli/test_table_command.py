"""`stepwell table` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.cli.main import main


def test_the_content_and_the_words_go_different_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["table", "logit-normal", "mean=0.5", "--steps", "5", "--batch", "2", "--format", "sigmas"]) == 0
    )
    printed = capsys.readouterr()
    assert len([float(line) for line in printed.out.splitlines()]) == 10
    assert "0 is data, 1 is noise" in printed.err


def test_a_file_is_written_and_its_host_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "timesteps.json"
    assert main(["table", "uniform", "--format", "simpletuner", "--steps", "4", "-o", str(path)]) == 0
    assert json.loads(path.read_text())["flow_timesteps_mode"] == "round-robin"
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--flow_custom_timesteps" in printed.err
    assert "what is drawn more often also counts more" in printed.err


def test_settings_may_follow_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "uniform", "--steps", "1", "--format", "list", "within=0.5,1.0"]) == 0
    assert capsys.readouterr().out == "750.0\n"


def test_nearest_has_a_row_for_each_trainer_of_such_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "logit-normal", "--nearest"]) == 0
    rows = capsys.readouterr().out.splitlines()
    musubi = next(row for row in rows if row.startswith("musubi"))
    assert musubi.split()[1:4] == ["0.0000", "0.0", "%"]
    assert musubi.endswith("--timestep_sampling shift --discrete_flow_shift 1 --sigmoid_scale 1")
    assert not any(row.startswith("timestep-bias") for row in rows)
    assert main(["table", "logit-normal", "--nearest", "-p", "linear"]) == 0
    assert "timestep-bias" in capsys.readouterr().out


def test_a_trainer_without_lists_gets_its_nearest_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "table", "masses=1,2,4,1", "--format", "musubi"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("--timestep_sampling shift")
    assert "0.15" in printed.err
    assert "22.0 % of draws lie elsewhere" in printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("unifrom",), "Did you mean 'uniform'?"),
        (("auto",), "stepwell fit LOSSES.csv"),
        (("uniform", "--format", "musubbi"), "Did you mean 'musubi'?"),
        (("flux", "--shape", "16"), "have no tokens in patches of 2"),
        (("uniform", "--shape", "16,64,64"), "does not depend on the shape"),
        (("logit-normal", "shift=3", "-p", "linear"), "is for flows"),
        (("beta:alpha=2", "alpha=3"), "beta got 'alpha' twice"),
        (("uniform", "-o", "/no/such/folder/x"), "there is no folder"),
        (("uniform", "--format", "kohya"), "DDPM's timesteps"),
    ],
)
def test_bad_input_gets_one_clear_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["table", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert said in printed.err


@pytest.mark.parametrize("option", ["--steps", "--batch"])
def test_a_list_of_no_timesteps_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["table", "uniform", option, "0"])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"argument {option}: '0' must be from 1 to " in printed.err
