"""Pairs of timestep and loss from any trainer's log: CSV, TSV or JSON lines, in units that trainers use."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.reading import regular_file

TIMES = ("timestep", "timesteps", "t", "time", "sigma", "sigmas", "u")
LOSSES = ("loss", "losses", "mse", "mse_loss", "train_loss", "train/loss", "loss/current", "loss/train")
UNITS = ("timestep", "sigma", "u", "from-noise")
"""What a time column may hold; `from-noise`: in [0, 1], where 0 is noise."""

Rows = list[tuple[int, Mapping[str, Any]]]
"""Each record with the number of its line."""


@dataclass(frozen=True)
class LossLog:
    """What a log says, in the order it was written."""

    u: Tensor
    """[N]: unit time, in float64."""
    losses: Tensor
    """[N]: as they were logged."""
    columns: tuple[str, str]
    """The names of the time and of the loss."""
    read_as: str
    """What the times were taken for."""
    left_out: int
    """Records without a time or without a loss."""


def read_log(
    path: Path, process: NoiseProcess, columns: tuple[str, str] | None = None, units: str | None = None
) -> LossLog:
    """The pairs of a log for models of a process."""
    rows = _rows(path)
    known = list(dict.fromkeys(key for _, row in rows for key in row))
    time, loss = columns or (_guessed(path, "time", known, TIMES), _guessed(path, "loss", known, LOSSES))
    for name in (time, loss):
        if name not in known:
            raise InvalidParameter(f"{path} has no column {name!r}: it has {', '.join(known)}.")
    pairs = list(_pairs(path, rows, time, loss))
    if not pairs:
        raise InvalidParameter(f"{path} has no record with both {time} and {loss}.")
    times, losses = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    u, read_as = unit_times(times, process, time, units)
    found = sum(_present(row.get(time)) and _present(row.get(loss)) for _, row in rows)
    return LossLog(u, losses, (time, loss), read_as, len(rows) - found)


def _rows(path: Path) -> Rows:
    try:
        if path.exists():
            regular_file(path)
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidParameter(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidParameter(f"{path} is no text: give a CSV, TSV or JSON-lines file.") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InvalidParameter(f"{path} is empty: give a log with one timestep and one loss per line.")
    if lines[0][1].lstrip().startswith("{"):
        return [(number, _record(path, number, line)) for number, line in lines]
    first = lines[0][1]
    delimiter = next((mark for mark in "\t;" if mark in first), ",")
    try:
        cells = [(number, next(csv.reader([line], delimiter=delimiter))) for number, line in lines]
    except csv.Error as error:
        raise InvalidParameter(f"{path} is no table: {error}.") from None
    header = [cell.strip() for cell in cells[0][1]]
    if all(map(_is_number, header)):
        return [(number, dict(zip(_unnamed(path, len(header)), row, strict=False))) for number, row in cells]
    if len(cells) == 1:
        raise InvalidParameter(f"{path} has a header and nothing below it.")
    return [(number, dict(zip(header, row, strict=False))) for number, row in cells[1:]]


def _record(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"{path}, line {number} is not JSON: {error}.") from None
    if not isinstance(record, dict):
        raise InvalidParameter(f"{path}, line {number} is no object: write {{'timestep': 500, 'loss': 0.1}}.")
    return record


def _unnamed(path: Path, count: int) -> tuple[str, str]:
    if count != 2:
        raise InvalidParameter(
            f"{path} has {count} columns without names: add a first line with them, as in timestep,loss."
        )
    return "timestep", "loss"


def _guessed(path: Path, what: str, known: Sequence[str], usual: Sequence[str]) -> str:
    found = [name for name in known if name.strip().lower() in usual]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidParameter(
            f"{path} has more than one {what}, {' and '.join(found)}: write --columns TIMESTEP,LOSS "
            "with the names of two."
        )
    raise InvalidParameter(
        f"{path} has no {what} among its columns, {', '.join(known) or 'none'}: write --columns "
        "TIMESTEP,LOSS with the names of two."
    )


def _present(value: Any) -> bool:
    return value is not None and value != "" and value != []


def _pairs(path: Path, rows: Rows, time: str, loss: str) -> Iterator[tuple[float, float]]:
    """Every pair; a record of a batch has a list of times and one of losses."""
    for line, row in rows:
        times, losses = row.get(time), row.get(loss)
        if not _present(times) or not _present(losses):
            continue
        several = times if isinstance(times, list) else [times]
        values = losses if isinstance(losses, list) else [losses]
        if len(several) != len(values):
            raise InvalidParameter(
                f"{path}, line {line} has {len(several)} of {time} and {len(values)} of {loss}: the mean "
                "loss of a batch belongs to none of its timesteps, so log one loss per example."
            )
        for at, value in zip(several, values, strict=True):
            yield _number(path, line, time, at), _loss(path, line, loss, value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(path: Path, line: int, name: str, value: Any) -> float:
    is_plain = isinstance(value, (int, float)) and require.is_finite(value)
    number = float(value) if is_plain or _is_number(str(value)) else math.nan
    if not math.isfinite(number):
        raise InvalidParameter(f"{path}, line {line}: {name} is {value!r}, and must be a number.")
    return number


def _loss(path: Path, line: int, name: str, value: Any) -> float:
    number = _number(path, line, name, value)
    if number < 0:
        raise InvalidParameter(
            f"{path}, line {line}: {name} is {value}, and squared errors are 0 or more: log the plain loss."
        )
    return number


def unit_times(
    times: Tensor, process: NoiseProcess, name: str, units: str | None = None
) -> tuple[Tensor, str]:
    """Unit times [N] of logged times [N], and what these were taken for; units are guessed if not given."""
    known = name.strip().lower()
    if units is None:
        units = "u" if known == "u" else "sigma" if known in ("sigma", "sigmas") else "timestep"
        if units == "timestep" and process.interpolates and float(times.max()) <= 1:
            raise InvalidParameter(
                f"{name} lies in [0, 1], where 0 may be data or noise: write --units sigma if 0 is data, "
                "--units from-noise if 0 is noise."
            )
    require.one_of("units", units, UNITS)
    if units == "u":
        return _inside(times, name, 1.0), "unit time, 0 is data and 1 is noise"
    if process.interpolates:
        return _of_flow(times, process, name, units)
    if process.timesteps is None:
        return _of_continuous(times, process, name, units)
    if units != "timestep":
        raise InvalidParameter(
            f"{process} counts timesteps, which --units {units} does not: log whole timesteps, or give "
            "--process flow for a flow."
        )
    return _of_discrete(times, process.timesteps, process, name)


def _inside(values: Tensor, name: str, most: float) -> Tensor:
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > most:
        raise InvalidParameter(
            f"{name} runs from {low:g} to {high:g}, outside of 0 to {most:g}: say what it is with --units "
            f"{', '.join(UNITS)}, or name another column with --columns."
        )
    return values.clamp(max=most)


def _of_flow(times: Tensor, process: NoiseProcess, name: str, units: str) -> tuple[Tensor, str]:
    if units == "from-noise":
        sigma, read_as = 1 - _inside(times, name, 1.0), "a time from 0 (noise) to 1 (data)"
    elif units == "sigma":
        sigma, read_as = _inside(times, name, 1.0), "sigma, 0 is data and 1 is noise"
    elif float(times.max()) > 1000 and float(times.min()) >= 1:
        # musubi-tuner adds 1 to what the noise was mixed with.
        sigma, read_as = _inside(times - 1, name, 1000.0) / 1000, "1000 x sigma + 1, 1 is data, 1001 is noise"
    else:
        sigma, read_as = _inside(times, name, 1000.0) / 1000, "1000 x sigma, 0 is data and 1000 is noise"
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    scale = process.time(ends)[1]
    return process.unit_time(sigma * scale).double().clamp(0, 1), read_as


def _of_continuous(times: Tensor, process: NoiseProcess, name: str, units: str) -> tuple[Tensor, str]:
    if units == "from-noise":
        raise InvalidParameter(
            f"--units from-noise is for flows, and {process} is none: write sigma or timestep."
        )
    if units == "sigma":
        if float(times.min()) <= 0:
            raise InvalidParameter(f"{name} is {float(times.min()):g}, and noise / signal is above 0.")
        u, read_as = process.at_log_snr(-2 * times.log()), "sigma = noise / signal"
    else:
        u, read_as = process.unit_time(times), "the network's time input"
    if float(u.min()) < -1e-3 or float(u.max()) > 1 + 1e-3:
        raise InvalidParameter(
            f"{name} lies outside of {process}, read as {read_as}: say what it is with --units."
        )
    return u.double().clamp(0, 1), read_as


def _of_discrete(times: Tensor, count: int, process: NoiseProcess, name: str) -> tuple[Tensor, str]:
    if bool((times != times.round()).any()):
        raise InvalidParameter(
            f"{name} has fractions, and {process} counts whole timesteps: give --process flow for a flow."
        )
    first = 1 if float(times.max()) == count and float(times.min()) >= 1 else 0
    index = _inside(times - first, name, count - 1.0)
    return (index + 0.5) / count, f"timesteps {first} to {count - 1 + first}, {first} is data"
