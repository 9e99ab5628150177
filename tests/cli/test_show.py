"""`stepwell show` as a user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.catalogue.spec import Spec
from stepwell.cli import chart
from stepwell.cli.main import main

SPECS = Spec("sampler", "laplace"), Spec("weighting", "none"), Spec("process", "linear")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, "one line, no traceback"
    return printed.err


def test_a_sampler_is_drawn_with_its_weighting_and_process(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "logit-normal", "mean=0.5", "-w", "min-snr:gamma=3", "-p", "cosine:timesteps=500")
    assert "logit-normal(mean=0.5) · weighting min-snr(gamma=3) · cosine(timesteps=500)" in text
    assert "█" in text
    assert "499 noise" in text


def test_the_table_of_fifths_is_the_density(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "table", "masses=1,2,3,4,0")
    draws = next(line for line in text.splitlines() if line.strip().startswith("draws"))
    assert draws.split()[1::2] == ["10.0", "20.0", "30.0", "40.0", "0.0"]


def test_a_weighting_or_a_process_shows_uniform_draws_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "uniform · weighting p2 · linear" in shown(capsys, "p2")
    assert "uniform · weighting none · flow(shift=3)" in shown(capsys, "flow", "shift=3")


def test_effective_weight_of_corrected_draws_is_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    (profile,) = json.loads(shown(capsys, "speed", "unbiased=true", "--json"))
    assert profile["unbiased"]
    assert profile["effective"] == pytest.approx([1.0] * 1000)
    assert max(profile["density"]) > 1.3


def test_json_has_one_value_per_timestep_for_each_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    profiles = json.loads(
        shown(capsys, "uniform", "laplace", "scale=2", "--json", "-p", "cosine:timesteps=50")
    )
    assert [len(profile["density"]) for profile in profiles] == [50, 50]
    assert sum(profiles[1]["density"]) == pytest.approx(50)


def test_several_samplers_are_one_row_each_on_one_scale(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "uniform,logit-normal", "table", "masses=0,4", "-p", "cosine:timesteps=50")
    assert len(text.splitlines()) < 10
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "up to" in line}
    assert list(rows) == ["uniform", "logit-normal", "table(masses=(0,"]
    assert set(rows["uniform"][0]) == {"▃"}
    assert (rows["uniform"][-1], rows["logit-normal"][-1]) == ("1", "1.59")
    name, *levels = text.splitlines()[-1].split()
    assert name == "log-SNR"
    assert [float(level) for level in levels] == sorted(map(float, levels), reverse=True)
    assert (len(levels), levels[-1]) == (5, "-13.8")


def test_where_all_is_1_the_log_snr_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "cosine")
    assert "Every timestep is drawn equally often" in text
    assert "density (uniform = 1)" not in text
    levels = [
        float(line.split()[0])
        for line in text.splitlines()
        if "█" in line and line.strip()[0] in "-1234567890"
    ]
    assert levels == pytest.approx([7.83, -19.8], abs=0.1)


def test_several_processes_are_rows_of_their_log_snr(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "linear,cosine")
    assert "log-SNR (full height is 10" in text
    assert "density" not in text
    linear, cosine = (line.split() for line in text.splitlines() if " to " in line)
    assert (linear[0], linear[2:]) == ("linear", ["9.21", "to", "-10.1"])
    assert linear[1] != cosine[1]


def test_the_picture_of_a_process_is_its_log_snr(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("stepwell.cli.chart.write", lambda figure, path: drawn.append(figure))
    shown(capsys, "cosine", "--save", str(tmp_path / "cosine.png"))
    (axes,) = drawn[0].axes
    assert axes.get_ylabel() == "log-SNR"
    assert max(axes.lines[0].get_ydata()) > 10 > 0 > min(axes.lines[0].get_ydata())


def test_recipes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'data = "fashion16"' in shown(capsys, "fashion16")
    assert json.loads(shown(capsys, "fashion16", "--json"))["model"] == "tiny"
    (profile,) = json.loads(shown(capsys, "speed-legacy", "--json"))
    assert profile["title"].startswith("speed(version=legacy) · weighting p2")


def test_learners_say_that_this_is_where_they_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert "It learns" in shown(capsys, "loss-ema")


@pytest.mark.parametrize("timesteps", ["1", "2", "7"])
def test_few_timesteps_still_draw(capsys: pytest.CaptureFixture[str], timesteps: str) -> None:
    assert "noise" in shown(capsys, "uniform", "-p", f"linear:timesteps={timesteps}")


def test_a_picture_is_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    shown(capsys, "uniform", "logit-normal", "--save", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_terminals_without_block_characters_get_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.analyze.densities import profile

    with (tmp_path / "ascii").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert not chart.can_draw_blocks()
        text = chart.text(profile(*SPECS))
    text.encode("ascii")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("unifrom",), "Did you mean 'uniform'?"),
        (("log-normal",), "means two things"),
        (("logit-normal", "meen=1"), "Did you mean 'mean'?"),
        (("logit-normal", "std=-1"), "std must be above 0"),
        (("mean=1",), "comes before any name"),
        (("uniform", "-p", "linaer"), "Did you mean 'linear'?"),
        (("uniform", "-p", "linear:timesteps=0"), "timesteps must be a whole number"),
        (("uniform", "-w", "min-snr:gamma=-5"), "gamma must be above 0"),
        (("uniform", "-w", "vlb", "-p", "flow"), "does not have: use a weighting of the SNR"),
        (("uniform", "within=0.7,0.2"), "a range inside [0, 1] that is not empty"),
        (("uniform", "within=0.2,0.7", "unbiased=true"), "no correction can restore that"),
        (("logit-normal", "shift=3", "-p", "flow:shift=3"), "already shifts"),
        (("p2", "-w", "min-snr"), "names another"),
        (("table",), "needs masses"),
        (("uniform", "--save", "picture.jpeg"), "must end in .png"),
        (("uniform", "--save", "/no/such/folder/x.png"), "there is no folder"),
        (("uniform", "-w", "min-snr:5"), "not of the form key=value"),
    ],
)
def test_bad_input_gets_one_clear_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *words)
