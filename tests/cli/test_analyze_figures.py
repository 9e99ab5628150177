"""`stepwell analyze densities`, `approximation`, `cost` and `increments` as a user types them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.analyze.step_cost import split_methods
from stepwell.cli.main import main, parser

SMALL = ["model=micro", "steps=4", "batch=8", "evaluate_every=2", "checkpoint_every=4", "samples=0"]
SHORT = ["model=micro", "steps=1", "batch=8"]
QUICK = ["--grid", "6", "--queue", "3", "--scored", "3", "--repeats", "3", "--largest", "3"]
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figures") / "run"
    words = [*SMALL, f"out={out}", "method=neyman+min-snr", "evaluate_images=8"]
    assert main(["train", "fashion16", *words]) == 0
    return out


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["analyze", *words]) == 0
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, *words, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["analyze", *words]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.startswith("stepwell analyze: ")
    return error


def test_densities_of_a_run_and_of_formulas(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run)
    picture = tmp_path / "densities.png"
    text = said(capsys, "densities", str(run), "min-snr", "uniform", "neyman", "--save", str(picture))
    assert f"{run} (neyman+min-snr on linear)" in text
    assert "step 0: draws (uniform = 1)" in text
    assert "step 4: draws (uniform = 1)" in text
    assert "corrected: the objective is unchanged" in text
    assert "min-snr on linear\n\n         weight x draws, as a density" in text
    assert "uniform on linear\n\n         draws (uniform = 1)" in text
    assert "It learns: this is its density before training" in text
    assert picture.read_bytes().startswith(PNG)
    assert contents(run) == before, "a run is only read"


def test_densities_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "densities", str(run), "logit-normal+p2")
    assert [moment["step"] for moment in found[0]["moments"]] == [0, 2, 4]
    assert (found[0]["corrected"], found[1]["corrected"]) == (True, False)
    effective = found[1]["moments"][0]["effective"]
    assert len(effective) == 50
    assert sum(effective) / 50 == pytest.approx(1.0)
    cosine = told(capsys, "densities", "min-snr", "-p", "cosine")
    assert cosine != told(capsys, "densities", "min-snr")


def test_methods_take_the_process_of_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cosine"
    assert main(["train", "fashion16", *SMALL, f"out={out}", "process=cosine", "evaluate_images=8"]) == 0
    assert "min-snr on cosine" in said(capsys, "densities", str(out), "min-snr")


def test_densities_that_there_are_not(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'min-srn' is not a known method" in refused(capsys, "densities", "min-srn")
    assert "neither a run directory nor a method" in refused(capsys, "densities", str(tmp_path / "gone"))
    assert "has no runs in it" in refused(capsys, "densities", str(tmp_path))
    (tmp_path / "recipe.json").write_text((run / "recipe.json").read_text())
    assert "has not been trained yet" in refused(capsys, "densities", str(tmp_path))
    (tmp_path / "recipe.json").write_text("{")
    assert "recipe.json is not valid JSON" in refused(capsys, "densities", str(tmp_path))
    assert "must end in .png" in refused(capsys, "densities", "uniform", "--save", str(tmp_path / "x.txt"))
    assert "'lin' is not a known process" in refused(capsys, "densities", "uniform", "-p", "lin")


@pytest.mark.full
def test_approximation_of_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    picture = tmp_path / "approximation.png"
    text = said(capsys, "approximation", str(run), *QUICK, "--save", str(picture))
    assert f"{run}: neyman+min-snr on linear, after 4 steps" in text
    assert "12 updates at 6 timesteps each" in text
    assert "correlation of the mean over S with the total decrease" in text
    assert "With |S| = 3 the mean over S correlates with the total decrease by" in text
    assert picture.read_bytes().startswith(PNG)
    found = told(capsys, "approximation", str(run), *QUICK)
    assert found == told(capsys, "approximation", str(run), *QUICK), "the same run gives the same numbers"
    assert (found["steps"], found["target"], len(found["times"])) == (4, "vlb", 6)
    assert [(fit["selection"], fit["size"]) for fit in found["fits"]][2:4] == [("f", 3), ("forward", 1)]
    assert all(-1 <= fit["correlation"]["value"] <= 1 for fit in found["fits"])
    other = told(capsys, "approximation", str(run), *QUICK, "--target", "none")
    assert other["fits"] != found["fits"]
    assert contents(run) == before, "training goes on in memory only"


def test_approximation_of_a_workload(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "approximation", "fashion16", *SHORT, "process=flow", "--target", "none", *QUICK)
    assert "Training 1 steps first; nothing is written." in text
    assert "uniform on flow, after 1 steps" in text


def test_approximations_that_cannot_be(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("approximation", str(run))
    assert "neither a run directory nor a workload" in refused(capsys, "approximation", str(tmp_path / "no"))
    assert "only workloads take settings" in refused(capsys, *words, "batch=4")
    assert "repeats must be a whole number of at least 3" in refused(capsys, *words, "--repeats", "2")
    assert "grid must be a whole number of at least 2" in refused(capsys, *words, "--grid", "1")
    assert "there are 2 timesteps to choose from" in refused(capsys, *words, "--grid", "2")
    assert "'min-srn' is not a known weighting" in refused(capsys, *words, "--target", "min-srn")
    flow = refused(capsys, "approximation", "fashion16", *SHORT, "process=flow", *QUICK)
    assert "Choose another target, such as --target simple" in flow


@pytest.mark.full
def test_cost_against_uniform(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    words = ["cost", str(run), "--methods", "uniform,beta-policy:subset=2,every_steps=3", "--rounds", "1"]
    text = said(capsys, *words)
    assert "beta-policy:subset=2,every_steps=3" in text
    assert "21.6 passes, 1.41x" in text
    assert "here, batch 8: 256.0 passes" in text
    found = told(capsys, *words, "--batches", "4,8")
    assert [(cost["method"][:7], cost["batch"]) for cost in found["costs"]] == [
        ("uniform", 4),
        ("beta-po", 4),
        ("uniform", 8),
        ("beta-po", 8),
    ]
    for cost in found["costs"]:
        # Only that there are numbers: how long a step takes here is no matter of a test.
        assert 0 < cost["ratio"]["low"] <= cost["ratio"]["high"]
        assert cost["every_steps"] == (3 if cost["method"].startswith("beta") else 1)
    # 50 timesteps of a row in batches of 4, and 2 more, before and after, in every third step of four passes.
    assert found["costs"][1]["counted"] == pytest.approx(1 + 2 * (13 + 2) / 4 / 3)
    assert contents(run) == before


def test_costs_that_cannot_be_timed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'neymann' is not a known method" in refused(capsys, "cost", str(run), "--methods", "neymann")
    assert "names none" in refused(capsys, "cost", str(run), "--methods", ",")
    assert "--batches 4;8: write whole numbers" in refused(capsys, "cost", str(run), "--batches", "4;8")
    assert "batch must be a whole number of at least 1" in refused(capsys, "cost", str(run), "--batches", "0")
    assert "rounds must be a whole number" in refused(capsys, "cost", str(run), "--rounds", "0")


def test_methods_between_commas_keep_their_parameters() -> None:
    text = "uniform, neyman:strata=5,floor=0.1,neyman+min-snr:gamma=3,vlb"
    wanted = ["uniform", "neyman:strata=5,floor=0.1", "neyman+min-snr:gamma=3", "vlb"]
    assert split_methods(text) == wanted


def test_increments_of_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "increments.png"
    words = ["increments", "linear", "flow:shift=3", "edm:sigma_max=2", "linear:timesteps=100"]
    text = said(capsys, *words, "--save", str(picture))
    assert "convergence    0.674 to 1.000 of unit time, timesteps 674 to 999" in text
    assert "SpeeD's code begins convergence at timestep 700, and pairs timesteps about 642." in text
    assert "at timestep 700, which does not exist here" in text
    assert "It never converges" in text
    assert picture.read_bytes().startswith(PNG)
    found = told(capsys, *words)
    assert [each["process"] for each in found] == words[1:]
    assert found[0]["converges_from"] == pytest.approx(0.674)
    assert len(found[0]["variance"]) == 999


def test_increments_that_there_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'liner' is not a known process. Did you mean 'linear'" in refused(capsys, "increments", "liner")
    assert "'timestep' is not a known parameter" in refused(capsys, "increments", "linear:timestep=5")
    assert "areas need at least 4" in refused(capsys, "increments", "linear:timesteps=2")
    assert "converged must lie between" in refused(capsys, "increments", "linear", "--converged", "3")
    assert "there is no folder" in refused(
        capsys, "increments", "linear", "--save", str(tmp_path / "a" / "b.png")
    )


def test_the_parser_knows_the_subjects() -> None:
    options = parser().parse_args(["analyze", "approximation", "fashion16", "data=x", "--grid", "50"])
    assert (options.what, options.settings, options.grid, options.target) == (
        "fashion16",
        ["data=x"],
        50,
        "vlb",
    )
    assert parser().parse_args(["analyze", "cost", "fashion16"]).methods.startswith("uniform,neyman")
