"""`stepwell analyze variance` and `interdependence` as a user types them."""

from __future__ import annotations

import builtins
import json
import math
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.analyze.interdependence import Alignments, Transfer
from stepwell.cli import chart
from stepwell.cli.analyze import interdependence
from stepwell.cli.main import main
from stepwell.recipes.experiment import trained

SMALL = ["model=micro", "steps=4", "batch=8", "evaluate_every=0", "checkpoint_every=2", "samples=0", "keep=3"]
QUICK = ["--rounds", "3", "--images", "2", "--strata", "3"]
SHORT = [*QUICK, "--steps", "2", "--bands", "4"]
WORKLOAD = ["fashion16", "model=micro", "batch=4", "evaluate_images=8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analyze") / "run"
    assert main(["train", "fashion16", *SMALL, "evaluate_images=8", f"out={out}"]) == 0
    return out


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["analyze", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["analyze", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("stepwell analyze: ")
    assert error.count("\n") == 1
    return error


def test_a_run_shows_its_variance_at_every_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, picture = contents(run), tmp_path / "variance.png"
    text = said(capsys, "variance", str(run), *QUICK, "--save", str(picture))
    assert f"{run}: uniform on linear" in text
    assert "12 gradients a stratum in the plain metric, after 4 steps" in text
    for title in ("simple: variance of one", "simple: loss", "bound: variance of one", "bound: loss"):
        assert title in text
    rows = [line.split()[:2] for line in text.splitlines() if line.split()[1:2] in (["simple"], ["bound"])]
    assert rows == [["2", "simple"], ["2", "bound"], ["4", "simple"], ["4", "bound"]]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert contents(run) == before


def test_numbers_of_the_variance(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["variance", str(run), *QUICK, "--json"]
    found = json.loads(said(capsys, *words))["moments"]
    assert [moment["steps"] for moment in found] == [2, 4]
    assert set(found[0]["curves"]) == {"simple", "bound"}
    assert found[0]["cap"] is None
    assert len(found[0]["curves"]["bound"]["variance"]) == len(found[0]["borders"]) - 1 == 3
    assert found[0]["curves"] != found[1]["curves"]
    (last,) = json.loads(said(capsys, *words, "--at", "4"))["moments"]
    assert last == found[1], "a moment does not depend on those before it"
    (scaled,) = json.loads(said(capsys, *words, "--at", "4", "--metric", "adam", "--held-out"))["moments"]
    assert scaled["metric"] == "adam"
    assert scaled["curves"]["simple"]["loss"] != last["curves"]["simple"]["loss"]


def test_a_cap_of_the_bound_is_named_wherever_it_is_shown(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr(
        chart, "write", lambda figure, path: drawn.append([axes.get_title() for axes in figure.axes[:2]])
    )
    words = ["variance", str(run), *QUICK, "--at", "4"]
    own = said(capsys, *words, "--save", str(tmp_path / "a.png"))
    capped = said(capsys, *words, "--cap", "0.25", "--save", str(tmp_path / "a.png"))
    assert "weights of the bound: its own" in own
    assert "capped" not in own
    assert "weights of the bound: at most 0.25" in capped
    assert "bound with weights capped at 0.25: loss" in capped
    assert drawn == [["simple", "bound"], ["simple", "bound with weights capped at 0.25"]]
    (found,) = json.loads(said(capsys, *words, "--cap", "0.25", "--json"))["moments"]
    assert found["cap"] == 0.25
    assert "cap must be above 0" in refused(capsys, *words, "--cap", "0")


@pytest.mark.full
def test_a_run_of_the_bounds_own_weights_and_its_variance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, process = tmp_path / "run", "cosine:timesteps=4"
    words = [*SMALL, f"process={process}", "method=vlb:cap=none", "evaluate_images=8"]
    assert main(["train", "fashion16", *words, f"out={out}"]) == 0
    assert trained(out).plan.objective().weighting == stepwell.weighting("vlb", cap=None)
    words = ["variance", str(out), *QUICK[:4], "--strata", "4", "--at", "4", "--json"]
    curves = [
        json.loads(said(capsys, *words, *more))["moments"][0]["curves"]["bound"]
        for more in ([], ["--cap", "1"])
    ]
    own, capped = ([one["loss"][-1]["value"], one["variance"][-1]["value"]] for one in curves)
    # One timestep in every stratum. Cosine's last has beta = 0.999: c = 0.999 / (2 x 0.001 x (1 - abar)).
    abar = math.prod(1 - min(1 - cosine(t + 1) / cosine(t), 0.999) for t in range(4))
    last = 0.999 / (2 * 0.001 * (1 - abar))
    assert own == pytest.approx([last * capped[0], last**2 * capped[1]], rel=1e-4)


def cosine(t: int) -> float:
    """f(t) of Nichol and Dhariwal 2021, Eq. 17, for 4 timesteps."""
    return math.cos((t / 4 + 0.008) / 1.008 * math.pi / 2) ** 2


@pytest.mark.full
def test_a_workload_is_measured_while_it_trains(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "variance", *WORKLOAD, "--at", "0,2", *QUICK)
    assert "Training 2 steps first; nothing is written." in text
    words = ["variance", *WORKLOAD, *QUICK, "--json", "--at"]
    both, late = (json.loads(said(capsys, *words, at))["moments"] for at in ("0,2", "2"))
    assert [moment["steps"] for moment in both] == [0, 2]
    assert both[1] == late[0], "measuring does not disturb the training"
    words = ["fashion16", "model=micro", "batch=4", "process=flow", "steps=1"]
    text = said(capsys, "variance", *words, *QUICK)
    assert "No bound: " in text
    assert "bound: variance" not in text


def test_what_has_no_variance_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "variance"
    assert "write whole numbers" in refused(capsys, name, str(run), "--at", "2,x")
    assert "keeps the checkpoints of steps 2, 4 only" in refused(capsys, name, str(run), "--at", "3")
    assert "comes after the last step" in refused(capsys, name, *WORKLOAD, "steps=1", "--at", "5")
    assert "rounds must be" in refused(capsys, name, str(run), "--rounds", "2")
    assert "strata must be" in refused(capsys, name, str(run), "--strata", "1")
    assert "neither a run directory nor" in refused(capsys, name, str(tmp_path / "no"))
    assert "only workloads take settings" in refused(capsys, name, str(run), "batch=4")
    assert "must end in .png" in refused(capsys, name, str(run), "--save", "a.jpeg")
    assert "there is no folder" in refused(capsys, name, str(run), "--save", str(tmp_path / "no" / "a.png"))
    imported = builtins.__import__

    def without(module: str, *more: Any, **named: Any) -> Any:
        if module.startswith("matplotlib"):
            raise ImportError(module)
        return imported(module, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    wanted = str(tmp_path / "a.png")
    assert "pip install 'stepwell[report]'" in refused(capsys, name, str(run), "--save", wanted)
    assert "pip install" in refused(capsys, "interdependence", str(run), "--save", wanted)


def test_checkpoints_that_cannot_be_read_are_passed_over(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    (copy / "checkpoints").mkdir(parents=True)
    (copy / "recipe.json").write_bytes((run / "recipe.json").read_bytes())
    for file in (run / "checkpoints").iterdir():
        (copy / "checkpoints" / file.name).write_bytes(file.read_bytes())
    (copy / "checkpoints" / "step-000000002.safetensors").write_bytes(b"torn")
    capsys.readouterr()
    assert main(["analyze", "variance", str(copy), *QUICK, "--json"]) == 0
    heard = capsys.readouterr()
    assert [moment["steps"] for moment in json.loads(heard.out)["moments"]] == [4]
    assert heard.err.startswith("Skipping ")


def test_a_run_shows_its_interdependence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, picture = contents(run), tmp_path / "interdependence.png"
    text = said(capsys, "interdependence", str(run), *SHORT, "--ranges", "2", "--save", str(picture))
    assert f"{run}: uniform on linear, after 4 steps" in text
    assert "Held-out loss after 2 more steps on one range of time" in text
    table = text.partition("trained on")[2].splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["0.00-0.50", "0.50-1.00", "0.00-1.00"]
    assert "of 4 cells" in text
    assert "Cosines of the strata's mean gradients, in Adam's metric" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert contents(run) == before


def test_numbers_of_the_interdependence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["interdependence", str(run), *SHORT, "--range", "0,0.25", "--range", "0.5,0.75", "--json"]
    found = json.loads(said(capsys, *words))
    moved = found["transfer"]
    assert moved["ranges"] == [[0.0, 0.25], [0.5, 0.75], [0.0, 1.0]]
    assert len(moved["before"]) == len(moved["borders"]) - 1 == 4
    assert [len(row) for row in moved["change"]] == [4, 4, 4]
    assert found["steps"] == 4
    assert [len(row) for row in found["alignments"]["cosine"]] == [3, 3, 3]


def test_the_interdependence_of_a_workload(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORKLOAD, "steps=1", "process=edm", *SHORT, "--ranges", "1", "--metric", "plain"]
    text = said(capsys, "interdependence", *words)
    assert "Training 1 steps first; nothing is written." in text
    assert "in the plain metric" in text


def test_what_has_no_interdependence_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "interdependence"
    for given in ("0.2", "a,b", "0,0.2,0.4", ""):
        assert "write LOW,HIGH in unit time" in refused(capsys, name, str(run), "--range", given)
    assert "is not a range of unit time" in refused(capsys, name, str(run), "--range", "0.4,0.2")
    assert "give at least 1" in refused(capsys, name, str(run), "--ranges", "0")
    assert "steps must be" in refused(capsys, name, str(run), "--steps", "0")
    assert "repeats must be" in refused(capsys, name, str(run), "--repeats", "2")
    assert "bands must be" in refused(capsys, name, str(run), "--bands", "0", *QUICK)


def test_text_shows_what_rose_and_what_fell(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (0.0, 1.0)
    moved = Transfer(
        ranges=((0.0, 0.5), whole),
        borders=(0.0, 0.5, 1.0),
        before=(2.0, 0.5),
        change=((-0.2, 0.1), (0.0, 0.0)),
        margin=((0.1, 0.05), (0.1, 0.1)),
        steps=5,
    )
    assert interdependence._changes(moved)[1].split() == ["0.00-0.50", "-10.0", "+20.0"]
    assert "rose in 1 and fell in 0 of 1 cells" in interdependence._counted(moved)
    square = ((1.0, -0.7), (-0.7, float("nan")))
    aligned = Alignments((0.0, 0.5, 1.0), "plain", square, square, square)
    monkeypatch.setattr(chart, "can_draw_blocks", lambda: True)
    fancy = interdependence._shaded(aligned)
    monkeypatch.setattr(chart, "can_draw_blocks", lambda: False)
    plain = interdependence._shaded(aligned)
    assert fancy[2].endswith("██≡≡")
    assert fancy[3].endswith("≡≡??")
    assert plain[2].endswith("##%%")
    assert "\n".join(plain).isascii()
