"""Over all parameters: a clear error, or a sampler and a weighting that are sound. Never anything else.

`derandomize` gives every run the same examples; what longer searches found is pinned in `FOUND`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parameters import (
    FLAG,
    NEEDED,
    PROCESS_PARAMETERS,
    SAMPLER_PARAMETERS,
    SHAPING,
    WEIGHTING_PARAMETERS,
    processes,
)
from parameters import built_or_none as _built
from synthetic import cell_borders, cell_masses, feedback, teach
from torch import Tensor

import stepwell
from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import ENTRIES
from stepwell.core.density import edges
from stepwell.core.errors import StepwellError
from stepwell.core.probe import GradientSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tick import Tick

modest = settings(
    deadline=None,
    max_examples=12,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _assert_sound(sampler: TimestepSampler, *borders: Tensor) -> None:
    """`borders` are where the density may have steps."""
    # A policy runs a network on every example.
    tick, x0 = Tick(seed=1, step=5), torch.zeros(50_000 if sampler.probe is None else 2000, 1, 1)
    drawn = sampler.draw(x0, tick)
    assert ((drawn.u >= 0) & (drawn.u < 1)).all()
    assert not drawn.log_prob.isnan().any()
    assert drawn.correction.isfinite().all()
    assert (drawn.correction >= 0).all()
    # Cells between the sampler's own quantiles resolve any spike that it has.
    v = (torch.arange(8192, dtype=torch.float64) + 0.5) / 8192
    quantiles = sampler.from_uniform(v, torch.zeros(8192, 1, 1), tick).u
    cells = cell_borders(quantiles, edges(4096), *borders, even=16_000, logistic=4000)
    masses = cell_masses(sampler, cells)
    assert masses.isfinite().all()
    assert (masses >= 0).all()
    assert float(masses.sum()) == pytest.approx(1, abs=0.01)
    ends = sampler.cdf(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([0, 1], abs=1e-5)
    assert (sampler.cdf(cells).diff() >= -1e-6).all()


def _assert_sound_before_and_after_learning(sampler: TimestepSampler, *borders: Tensor) -> None:
    if isinstance(sampler.probe, GradientSpec):
        borders = (*borders, torch.tensor(sampler.probe.borders, dtype=torch.float64))
    _assert_sound(sampler, *borders)
    if sampler.probe is None:
        sampler.learn(feedback(Tick().uniform("anywhere", 500)))
    else:
        teach(sampler, 2, 64)
    _assert_sound(sampler, *borders)


def _bins(process: NoiseProcess, parameters: dict[str, Any]) -> Tensor:
    """Where densities over a process have steps: between its timesteps, or between given bins."""
    bins = parameters.get("bins") or len(parameters.get("masses", ())) or 1
    return torch.cat([edges(process.timesteps or 1000), edges(bins)])


def test_every_entry_of_the_catalogue_has_its_strategies() -> None:
    assert set(PROCESS_PARAMETERS) == {entry.name for entry in ENTRIES if entry.kind == "process"}
    assert set(SAMPLER_PARAMETERS) == {entry.name for entry in ENTRIES if entry.kind == "sampler"}
    assert set(WEIGHTING_PARAMETERS) == {entry.name for entry in ENTRIES if entry.kind == "weighting"}


@pytest.mark.parametrize("name", PROCESS_PARAMETERS)
@given(data=st.data())
@modest
def test_any_parameters_give_an_error_or_a_sound_process(name: str, data: st.DataObject) -> None:
    parameters = data.draw(PROCESS_PARAMETERS[name], label="parameters")
    process = _built(lambda: stepwell.process(name, **parameters))
    if process is None:
        return
    grid = process.grid()
    signal, noise = process.scales(grid)
    assert ((signal >= 0) & signal.isfinite() & (noise > 0) & noise.isfinite()).all()
    assert not process.log_snr(grid).isnan().any()
    assert (process.log_snr(grid).diff() < 0).all()
    assert torch.allclose(process.unit_time(process.time(grid)).double(), grid, atol=1e-5)
    heights = process.reference.pdf(grid)
    assert (heights.isfinite() & (heights >= 0)).all()


@pytest.mark.parametrize("name", SAMPLER_PARAMETERS)
@given(process=processes(), data=st.data())
@modest
def test_any_parameters_give_an_error_or_a_sound_sampler(
    name: str, process: NoiseProcess, data: st.DataObject
) -> None:
    parameters = data.draw(SAMPLER_PARAMETERS[name], label="parameters")
    corrected = data.draw(FLAG, label="unbiased")
    sampler = _built(lambda: stepwell.sampler(name, process, **parameters, unbiased=corrected))
    if sampler is not None:
        _assert_sound_before_and_after_learning(sampler, _bins(process, parameters))


FOUND: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    # One timestep, or one of finite SNR: no width in ln sigma, no log-SNR to make bins of.
    ("linear", {"timesteps": 1}, "info-noise", {}),
    ("linear", {"timesteps": 2, "zero_terminal_snr": True}, "info-noise", {}),
    ("flow", {"timesteps": 1}, "loss-ema", {}),
    ("flow", {"timesteps": 1}, "info-noise", {}),
    # f(log_snr) |d log_snr / du| is 0 x infinity where the noise or the signal ends.
    ("flow", {}, "log-normal-sigma", {"std": 6.0}),
    ("flow", {"shift": 3.0}, "log-normal-sigma", {}),
    ("flow", {"shift": 3.0}, "laplace", {"scale": 3.0}),
    # s u / (1 + (s - 1) u) rounds to a little more than 1 at u = 1, and the signal is negative.
    ("flow", {"shift": 0.1}, "laplace", {}),
    ("flow", {"shift": 0.45}, "log-normal-sigma", {}),
    ("flow", {"shift": 0.1, "timesteps": 1000}, "laplace", {}),
    ("flow", {"shift": 0.1, "timesteps": 1000}, "info-noise", {}),
    # A density cut off in its tail: float32 rounds its quantiles to 1, which is the other end of time.
    ("edm", {}, "log-normal-sigma", {"mean": 8.0, "std": 1.0, "unbiased": True}),
    # Each mass is finite and their sum is not.
    ("linear", {}, "table", {"masses": [1e308, 1e308]}),
    ("linear", {}, "mode", {"scale": 2 / (math.pi - 2), "unbiased": True}),
    ("linear", {}, "beta", {"alpha": 1e5, "beta": 1e5}),
]


@pytest.mark.parametrize(("process", "given", "name", "parameters"), FOUND, ids=str)
def test_what_searches_found_stays_found(
    process: str, given: dict[str, Any], name: str, parameters: dict[str, Any]
) -> None:
    over = stepwell.process(process, **given)
    sampler = _built(lambda: stepwell.sampler(name, over, **parameters))
    if sampler is not None:
        _assert_sound_before_and_after_learning(sampler, _bins(over, parameters))


@pytest.mark.parametrize("timesteps", [None, 1000])
@pytest.mark.parametrize("prediction", ["velocity", "eps", "x0"])
@pytest.mark.parametrize("name", WEIGHTING_PARAMETERS)
def test_no_shift_of_a_flow_makes_a_weight_undefined(
    name: str, prediction: str, timesteps: int | None
) -> None:
    undefined = []
    for shift in (0.02, 0.1, 0.2, 0.45, 1.0, 1.15, 3.0, 12.0):
        process = stepwell.process("flow", shift=shift, prediction=prediction, timesteps=timesteps)
        for dtype in (torch.float32, torch.float64):
            u = torch.tensor([2**-24, 0.5, 1 - 2**-24], dtype=dtype)
            weights = _built(lambda u=u, process=process: stepwell.weighting(name)(process, u))
            if weights is not None and not (weights.isfinite() & (weights >= 0)).all():
                undefined.append((shift, dtype, weights.tolist()))
    assert undefined == []


@pytest.mark.parametrize(
    "name", [case(name, quick=place % 3 == 0) for place, name in enumerate(SAMPLER_PARAMETERS)]
)
@given(process=processes(), shaping=SHAPING)
@modest
def test_any_shaping_gives_an_error_or_a_sound_sampler(
    name: str, process: NoiseProcess, shaping: dict[str, Any]
) -> None:
    own = NEEDED.get(name, {})
    sampler = _built(lambda: stepwell.sampler(name, process, **own, **shaping))
    if sampler is None:
        return
    borders = _bins(process, own)
    factor = shaping.get("shift") or 1
    low, high = shaping.get("within") or (0, 1)
    shifted = torch.cat([borders, factor * borders / (1 + (factor - 1) * borders)])
    _assert_sound_before_and_after_learning(sampler, borders, low + (high - low) * shifted)


@given(
    masses=st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=30).filter(any),
    data=st.data(),
)
@modest
def test_any_masses_between_any_borders_make_a_table(masses: list[float], data: st.DataObject) -> None:
    inner = st.floats(1e-3, 1 - 1e-3)
    count = len(masses) - 1
    borders = [0.0, *sorted(data.draw(st.lists(inner, min_size=count, max_size=count, unique=True))), 1.0]
    sampler = _built(lambda: stepwell.sampler("table", "linear", masses=masses, borders=borders))
    if sampler is not None:
        _assert_sound(sampler, torch.tensor(borders, dtype=torch.float64))


@pytest.mark.parametrize("name", WEIGHTING_PARAMETERS)
@given(process=processes(), data=st.data())
@modest
def test_any_parameters_give_an_error_or_sound_weights(
    name: str, process: NoiseProcess, data: st.DataObject
) -> None:
    parameters = data.draw(WEIGHTING_PARAMETERS[name], label="parameters")
    weighting = _built(lambda: stepwell.weighting(name, **parameters))
    if weighting is None:
        return
    # The first and the last uniform that a tick can give, and those between.
    u = torch.cat([torch.tensor([2**-24, 1 - 2**-24]), Tick().uniform("anywhere", 300)])
    for times in (u, process.grid()):
        weights = _built(lambda times=times: weighting(process, times))
        if weights is not None:
            assert weights.shape == times.shape
            assert weights.isfinite().all()
            assert (weights >= 0).all()


@pytest.mark.parametrize("name", WEIGHTING_PARAMETERS)
@pytest.mark.parametrize(
    ("process", "prediction"),
    [("linear", "x0"), ("cosine", "v"), ("flow", "velocity"), ("flow", "eps"), ("flow", "x0"), ("edm", None)],
    ids=str,
)
def test_weights_are_defined_at_time_zero(name: str, process: str, prediction: str | None) -> None:
    # [0, 1) includes it, though there a flow has no noise at all.
    over = stepwell.process(process, **({"prediction": prediction} if prediction else {}))
    weights = _built(lambda: stepwell.weighting(name)(over, torch.zeros(1)))
    assert weights is None or (weights >= 0).all()


MEANT = {
    ("edm", "mean", -1),
    ("logit-normal", "mean", -1),
    ("log-normal-sigma", "mean", -1),
    ("laplace", "mean", -1),
    ("style-friendly", "mean", -1),
    ("jit", "mean", -1),
    ("mode", "scale", -1),
    ("vlb", "cap", None),
    ("alignment", "target", None),
}
"""Values that look wrong and are not."""

WRONG = [
    pytest.param(entry, parameter.name, value, id=f"{entry.kind}-{entry.name}-{parameter.name}-{value}")
    for entry in ENTRIES
    for parameter in entry.parameters
    for value in (math.nan, math.inf, -1, "much", None)
    if not isinstance(parameter.default, bool) and not (value is None and parameter.default is None)
]


@pytest.mark.parametrize(("entry", "parameter", "value"), WRONG)
def test_a_value_of_the_wrong_kind_is_an_error_of_our_own(entry: Entry, parameter: str, value: Any) -> None:
    given = {"masses": [1.0, 2.0], parameter: value} if entry.name == "table" else {parameter: value}
    build = getattr(stepwell, entry.kind)
    over = ("linear",) if entry.kind == "sampler" else ()
    if (entry.name, parameter, value) in MEANT:
        build(entry.name, *over, **given)
    else:
        with pytest.raises(StepwellError):
            build(entry.name, *over, **given)
