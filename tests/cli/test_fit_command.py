"""`stepwell fit` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stepwell.cli.main import main


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    """3,000 pairs with twice the loss in the half of the noise."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(3_000, generator=generator)
    noise = torch.randn(3_000, 4, generator=generator).square().mean(1)
    rows = (
        f"{1000 * at:.2f},{loss:.5f}" for at, loss in zip(u.tolist(), ((u > 0.5) + 1) * noise, strict=True)
    )
    path = tmp_path / "losses.csv"
    path.write_text("\n".join(["timestep,loss", *rows, ""]))
    return path


def test_a_log_is_fitted_drawn_and_written(
    capsys: pytest.CaptureFixture[str], losses: Path, tmp_path: Path
) -> None:
    picture, file = tmp_path / "fit.png", tmp_path / "timesteps.json"
    words = [
        "--save",
        str(picture),
        "--format",
        "simpletuner",
        "-o",
        str(file),
        "--steps",
        "400",
        "--nearest",
    ]
    assert main(["fit", str(losses), *words]) == 0
    printed = capsys.readouterr()
    assert "3,000 pairs of timestep and loss" in printed.out
    assert "read as 1000 x sigma, 0 is data" in printed.out
    assert "these timesteps leave 0.9" in printed.out
    assert "mean loss" in printed.out
    assert "musubi" in printed.out
    assert "counts more" in printed.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    sigmas = json.loads(file.read_text())["flow_custom_timesteps"].split(",")
    share = sum(float(sigma) > 0.5 for sigma in sigmas) / 400
    assert share == pytest.approx(2**0.5 / (1 + 2**0.5), abs=0.02), "the root of twice the loss"


def test_the_spec_is_the_same_density_in_stepwell(capsys: pytest.CaptureFixture[str], losses: Path) -> None:
    assert main(["fit", str(losses), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert main(["table", values["spec"], "--format", "density"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    noise = sum(float(row.split(",")[2]) for row in rows[500:])
    half = values["borders"].index(0.5)
    assert noise == pytest.approx(sum(values["masses"][half:]), abs=1e-3)


def test_few_pairs_are_said_to_be_few(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    path = tmp_path / "few.csv"
    both = torch.stack(
        [torch.rand(120, generator=generator), torch.randn(120, generator=generator).mul(1.5).exp()]
    )
    path.write_text("u,loss\n" + "".join(f"{u},{loss}\n" for u, loss in both.T.tolist()))
    assert main(["fit", str(path)]) == 0
    assert "too few pairs. With about" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("timestep,loss\n" + "500,1\n" * 50, (), "50 pairs are too few"),
        ("timestep,loss\n" + "500,1\n" * 200, (), "one timestep"),
        ("timestep,lr\n1,1\n", (), "no loss among its columns"),
        ("", (), "is empty"),
        ("timestep,loss\n1,1\n", ("--columns", "t"), "write the names of two columns"),
        ("timestep,loss\n500,1\n", ("--units", "degrees"), "not a known units"),
        ("timestep,loss\n1,1\n", ("--format", "csv"), "belong together"),
        ("timestep,loss\n500,1\n", ("-w", "vlb"), "does not have"),
    ],
)
def test_bad_input_gets_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "losses.csv"
    path.write_text(text)
    assert main(["fit", str(path), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert said in printed.err
