"""Logs of other trainers: which columns, which units, and one sentence for what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stepwell
from stepwell.analyze.loss_log import LossLog, read_log
from stepwell.core.errors import InvalidParameter


def log(
    folder: Path,
    text: str,
    process: str = "flow",
    columns: tuple[str, str] | None = None,
    units: str | None = None,
) -> LossLog:
    path = folder / "losses"
    path.write_text(text)
    return read_log(path, stepwell.process(process), columns, units)


@pytest.mark.parametrize(
    "text",
    [
        "step,timestep,loss\n0,250,0.5\n1,750,0.25\n",
        "step\tTimestep\tloss\n0\t250\t0.5\n1\t750\t0.25\n",
        "timesteps;lr;mse\n250;1e-4;0.5\n750;1e-4;0.25\n",
        "250,0.5\n750,0.25\n",
        '{"timestep": 250, "loss": 0.5}\n{"lr": 1}\n\n{"timestep": 750, "loss": 0.25}\n',
        '{"timesteps": [250, 750], "losses": [0.5, 0.25]}\n',
        "\ufefft,loss\n250,0.5\n,0.1\n750,0.25\n",
    ],
)
def test_pairs_are_found_in_usual_files(tmp_path: Path, text: str) -> None:
    found = log(tmp_path, text)
    assert found.u.tolist() == pytest.approx([0.25, 0.75])
    assert found.losses.tolist() == [0.5, 0.25]


def test_records_without_a_loss_are_counted(tmp_path: Path) -> None:
    assert log(tmp_path, "t,loss\n250,0.5\n,0.1\n750,\n").left_out == 2


@pytest.mark.parametrize(
    ("column", "values", "process", "units", "u", "read_as"),
    [
        ("timestep", (0.0, 1000.0), "flow", None, (0.0, 1.0), "1000 x sigma, 0 is data"),
        ("timestep", (1.0, 1001.0), "flow", None, (0.0, 1.0), "1000 x sigma + 1"),
        ("sigma", (0.25, 0.75), "flow", None, (0.25, 0.75), "sigma, 0 is data"),
        ("t", (0.25, 0.5), "flow", "from-noise", (0.75, 0.5), "0 (noise) to 1 (data)"),
        ("t", (0.25, 0.5), "flow", "sigma", (0.25, 0.5), "sigma, 0 is data"),
        ("timestep", (750.0, 1000.0), "flow:shift=3", None, (0.5, 1.0), "1000 x sigma"),
        ("timestep", (0, 999), "linear", None, (0.0005, 0.9995), "timesteps 0 to 999"),
        ("timestep", (1, 1000), "linear", None, (0.0005, 0.9995), "timesteps 1 to 1000"),
        ("u", (0.1, 0.9), "linear", None, (0.1, 0.9), "unit time"),
        ("sigma", (0.002, 80.0), "edm", None, (0.0, 1.0), "noise / signal"),
    ],
)
def test_units_are_found_and_said(
    tmp_path: Path,
    column: str,
    values: tuple[float, float],
    process: str,
    units: str | None,
    u: tuple[float, float],
    read_as: str,
) -> None:
    text = f"{column},loss\n{values[0]},1\n{values[1]},1\n"
    found = log(tmp_path, text, process, units=units)
    torch.testing.assert_close(found.u, torch.tensor(u, dtype=torch.float64), atol=1e-4, rtol=0)
    assert read_as in found.read_as


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("timestep,loss\n", "nothing below it"),
        ("timestep,lr\n1,2\n", "no loss among its columns, timestep, lr"),
        ("step,loss\n1,2\n", "no time among its columns"),
        ("timestep,loss,mse\n1,2,3\n", "more than one loss"),
        ("timestep,loss\n500,nan\n", "line 2: loss is 'nan'"),
        ("timestep,loss\n500,high\n", "line 2: loss is 'high'"),
        ("timestep,loss\n500,-1\n", "squared errors are 0 or more"),
        ("timestep,loss\n500,\n", "no record with both"),
        ("1,2,3\n", "3 columns without names"),
        ("t,loss\n0.2,1\n0.9,1\n", "0 may be data or noise"),
        ("t,loss\n0.2,1\n1500,1\n", "outside of 0 to 1000"),
        ("sigma,loss\n0.2,1\n80,1\n", "outside of 0 to 1"),
        ('{"timestep": 500, "loss"\n', "line 1 is not JSON"),
        ('{"timesteps": [1, 2], "loss": 0.5}\n', "log one loss per example"),
    ],
)
def test_what_cannot_be_read_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidParameter, match=r"losses|lies in|runs from") as error:
        log(tmp_path, text)
    assert said in str(error.value)


def test_other_columns_can_be_named(tmp_path: Path) -> None:
    text = "step,noise level,error\n1,250,0.5\n"
    assert log(tmp_path, text, columns=("noise level", "error")).losses.tolist() == [0.5]
    with pytest.raises(InvalidParameter, match="no column 'level': it has step, noise level, error"):
        log(tmp_path, text, columns=("level", "error"))


def test_a_chain_of_timesteps_takes_no_fractions_and_no_sigmas(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="has fractions"):
        log(tmp_path, "t,loss\n12.5,1\n", "linear")
    with pytest.raises(InvalidParameter, match="counts timesteps"):
        log(tmp_path, "sigma,loss\n0.5,1\n", "linear")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="No such file"):
        read_log(tmp_path / "none.csv", stepwell.process("flow"))
