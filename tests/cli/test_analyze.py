"""`stepwell analyze gain` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stepwell.analyze import gradient_rounds
from stepwell.analyze.gain import Gain
from stepwell.cli.analyze import gain as subject
from stepwell.cli.main import main, parser
from stepwell.core.estimates import Estimate
from stepwell.core.probe import GradientSpec
from stepwell.train import checkpoint

SMALL = ["model=micro", "steps=4", "batch=8", "evaluate_every=0", "checkpoint_every=4", "samples=0"]
QUICK = ["--rounds", "3", "--images", "2", "--strata", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analyze") / "run"
    assert main(["train", "fashion16", *SMALL, f"out={out}", "method=min-snr"]) == 0
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["analyze", "gain", *words]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.startswith("stepwell analyze: ")
    return error


def test_a_run_is_told_its_gain_in_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in run.rglob("*"))
    assert main(["analyze", "gain", str(run), *QUICK]) == 0
    text = capsys.readouterr().out
    assert f"{run}: min-snr on linear, after 4 steps; min-snr loss" in text
    assert "48 gradients of the averaged weights in Adam's metric" in text
    assert "999 noise" in text
    assert "would cut its variance to" in text
    assert "At batch 8 noise is" in text
    assert "benchmarks/RESULTS.md" in text
    assert text.rstrip().splitlines()[-1].startswith("Next: ")
    assert sorted(path.name for path in run.rglob("*")) == before, "nothing is written"


def test_the_same_run_gives_the_same_numbers_and_other_objectives_others(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for more in ([], [], ["--weighting", "min-snr"], ["--weighting", "none"], ["--raw"]):
        capsys.readouterr()
        assert main(["analyze", "gain", str(run), *QUICK, *more, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1] == found[2]
    assert found[0]["spread"] != found[3]["spread"]
    assert found[0]["spread"] != found[4]["spread"]
    assert [one["weights"] for one in found] == ["averaged"] * 4 + ["raw"]
    assert found[0]["steps"] == 4
    assert found[0]["batch"] == 8
    assert found[0]["metric"] == "adam"
    assert len(found[0]["spread"]) == len(found[0]["shares"]) == len(found[0]["borders"]) - 1 == 4
    for name in ("ratio", "ratio_floored", "noise_share", "images_ratio"):
        assert 0 <= found[0][name]["low"] <= found[0][name]["value"] <= found[0][name]["high"] <= 1, name


def test_it_measures_at_the_weights_that_it_names(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the checkpoint, averaged or raw."""
    stored, _ = checkpoint.newest(run / "checkpoints")
    assert stored is not None
    seen: list[list[torch.Tensor]] = []
    measure = gradient_rounds.GradientRounds.halves

    def noted(rounds: gradient_rounds.GradientRounds, spec: GradientSpec) -> torch.Tensor:
        network = rounds.setup.network
        assert network is not None
        seen.append([parameter.detach().clone() for parameter in network.parameters()])
        return measure(rounds, spec)

    monkeypatch.setattr(gradient_rounds.GradientRounds, "halves", noted)
    for more in ([], ["--raw"]):
        assert main(["analyze", "gain", str(run), *QUICK, *more]) == 0
    for weights, kept in zip(seen, (stored.tree["ema"], stored.tree["model"].values()), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(weights, kept, strict=True))


def test_a_workload_is_trained_a_little_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "gain", "fashion16", "model=micro", "steps=2", "batch=4", *QUICK]) == 0
    text = capsys.readouterr().out
    assert "Training 2 steps first; nothing is written." in text
    assert "after 2 steps" in text
    words = ["model=micro", "steps=1", "batch=4", "method=logit-normal", *QUICK]
    assert main(["analyze", "gain", "fashion16", *words]) == 0
    assert "logit-normal draws unevenly without correction" in capsys.readouterr().out


def test_what_cannot_be_analyzed_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "neither a run directory nor a workload (known: " in refused(capsys, str(tmp_path / "no"))
    assert "is not a run" in refused(capsys, str(tmp_path))
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "recipe.json").write_text((run / "recipe.json").read_text())
    assert "has no checkpoint that can be read" in refused(capsys, str(tmp_path / "bare"))
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["data"] = str(tmp_path / "gone")
    (tmp_path / "bare" / "recipe.json").write_text(json.dumps(recipe))
    assert "gone" in refused(capsys, str(tmp_path / "bare"))
    assert "only workloads take settings" in refused(capsys, str(run), "batch=4")
    assert "rounds must be a whole number of at least 3" in refused(capsys, str(run), "--rounds", "2")
    assert "'min-srn' is not a known weighting" in refused(capsys, str(run), "--weighting", "min-srn")
    assert "uncertainty learns its weights" in refused(capsys, str(run), "--weighting", "uncertainty")
    assert "give at most --images 6000" in refused(capsys, str(run), "--images", "6001")


def test_the_parser_knows_the_subject() -> None:
    options = parser().parse_args(["analyze", "gain", "fashion16", "data=x", "--json"])
    assert (options.what, options.settings, options.strata, options.rounds) == (
        "fashion16",
        ["data=x"],
        20,
        5,
    )


def told(images: float) -> Gain:
    of = Estimate(images, images - 0.01, images + 0.01)
    whole = Estimate(0.5, 0.45, 0.55)
    borders = tuple(torch.linspace(0, 1, 3).tolist())
    return Gain(borders, (1.5, 0.5), (0.5, 0.5), "adam", 64, 0.2, whole, whole, whole, whole, whole, of)


def test_a_run_of_the_plain_loss_is_told_a_method_that_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepwell.analyze.gain.gain", lambda rounds, batch: told(0.7))
    words = ["fashion16", "model=micro", "process=edm", "batch=4", "steps=2", *QUICK]
    assert main(["analyze", "gain", *words]) == 0
    text = capsys.readouterr().out
    assert "after 2 steps; simple loss" in text
    assert "would cut its variance to 0.50 of the reference's (" in text
    assert text.rstrip().endswith(" method=neyman")


def test_the_next_command_depends_on_what_was_found(run: Path) -> None:
    words = ["analyze", "gain", "fashion16", "steps=2", "batch=4", "method=min-snr"]
    options = parser().parse_args(words)
    after = subject._next(options, told(0.7), "min-snr:gamma=5")
    assert after == "Next: stepwell train fashion16 batch=4 method=neyman+min-snr:gamma=5"
    little = subject._next(options, told(0.98), "none")
    assert "keep what you have. Nothing to win here: at batch 64" in little
    assert "0.98 (0.97 to 0.99) of the images" in little
    options = parser().parse_args(["analyze", "gain", str(run)])
    assert "with method=neyman and another out=" in subject._next(options, told(0.7), "none")
