"""Lists, densities and settings for trainers that no code is added to: what each would draw from them."""

from __future__ import annotations

import ast
import csv
import io
import json
import math

import pytest
import torch
from scipy.interpolate import PchipInterpolator
from torch import Tensor

import stepwell
from stepwell.catalogue import build
from stepwell.catalogue.spec import Spec
from stepwell.core.density import centres, edges
from stepwell.core.errors import Unsupported
from stepwell.integrations.host_densities import HOSTS
from stepwell.integrations.host_formats import FORMATS
from stepwell.integrations.nearest import divergence, nearest
from stepwell.integrations.timestep_lists import TimestepDensity, density_of, stratified_times

FORMAT, HOST = {each.name: each for each in FORMATS}, {each.name: each for each in HOSTS}


def density(sampler: str, process: str = "flow") -> TimestepDensity:
    return density_of(Spec.parse("sampler", sampler), stepwell.process(process))


def distance(u: Tensor, wanted: TimestepDensity) -> float:
    """Kolmogorov-Smirnov, of values against the density."""
    drawn = u.double().sort().values.clamp(0, 1 - 1e-12)
    return float((wanted.table.cdf(drawn) - centres(len(drawn))).abs().max())


@pytest.mark.parametrize(
    "sampler", ["uniform", "logit-normal:shift=3,within=(0.2,0.9)", "table:masses=(1,0,3)"]
)
def test_a_list_is_spread_evenly_over_the_density_and_so_is_each_batch(sampler: str) -> None:
    wanted = density(sampler)
    u = stratified_times(wanted.table, steps=50, batch=8, seed=0)
    assert distance(u, wanted) < 1e-3, "random draws would be 0.04 away"
    parts = (wanted.table.cdf(u).reshape(50, 8) * 8).long().sort(1).values
    assert (parts == torch.arange(8)).all(), "one of each eighth"


def test_the_seed_shuffles_the_list() -> None:
    table = density("logit-normal").table
    one, same, other = (stratified_times(table, 100, 1, seed) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    torch.testing.assert_close(one.sort().values, other.sort().values)
    assert float(torch.corrcoef(torch.stack([one, centres(100)]))[0, 1]) < 0.3


def test_rows_have_the_weight_that_keeps_the_objective() -> None:
    wanted = density("table:masses=(1,3)", "linear")
    u = stratified_times(wanted.table, 400, 1, 0)
    rows = list(csv.DictReader(io.StringIO(FORMAT["csv"].text(wanted, u))))
    assert [int(row["timestep"]) for row in rows] == (u * 1000).long().tolist()
    assert {row["weight"] for row in rows} == {"2.0", "0.666667"}
    assert sum(float(row["weight"]) for row in rows) == pytest.approx(400, rel=1e-4)
    columns = json.loads(FORMAT["json"].text(wanted, u))["density"]
    assert sum(columns["probability"]) == pytest.approx(1, abs=1e-4)
    assert FORMAT["list"].text(wanted, u).split() == [row["timestep"] for row in rows]


def test_sigmas_of_a_shifted_flow_are_after_its_shift() -> None:
    wanted = density("uniform", "flow:shift=3")
    u = torch.tensor([0.5], dtype=torch.float64)
    assert FORMAT["sigmas"].text(wanted, u) == "0.75\n"
    config = json.loads(FORMAT["simpletuner"].text(wanted, u))
    assert config == {"flow_custom_timesteps": "0.75", "flow_timesteps_mode": "round-robin"}


@pytest.mark.parametrize(
    ("sampler", "process", "most"),
    [("logit-normal", "flow", 1e-4), ("uniform", "flow", 1e-9), ("logit-normal", "flow:shift=3", 1e-3)],
)
def test_simpletuners_cubic_through_our_weights_is_the_density(
    sampler: str, process: str, most: float
) -> None:
    wanted = density(sampler, process)
    config = json.loads(FORMAT["simpletuner-cubic"].text(wanted, torch.empty(0)))
    weights = config["flow_cubic_schedule_weights"]
    assert config["flow_schedule_shift"] == 0
    borders, masses = wanted.over_sigma()
    cubic = PchipInterpolator(edges(len(weights) - 1).numpy(), weights).antiderivative()
    own = torch.from_numpy(cubic(borders.numpy())).diff()
    assert divergence(masses, own / own.sum()) < most


def test_ranges_of_steps_draw_the_density() -> None:
    wanted = density("speed", "linear")
    u = stratified_times(wanted.table, 300, 1, 0)
    text = FORMAT["kohya-dynamic"].text(wanted, u)
    assert text.startswith('--dynamic_timestep_schedule="[(0, ')
    drawn = torch.zeros(1000, dtype=torch.float64)
    for step, (at, low, end) in enumerate(ast.literal_eval(text.split('"')[1])):
        assert at == step
        assert low <= 1000 * float(u[step]) < end + 1
        drawn[low:end] += 1 / (end - low) / 300
    # Ranges end at whole timesteps, of which a step has one to four.
    assert float((drawn - wanted.probabilities()).cumsum(0).abs().max()) < 0.005
    with pytest.raises(Unsupported, match="one range for all examples of a step"):
        FORMAT["kohya-dynamic"].text(wanted, u, batch=2)


WANTED = "logit-normal:mean=0.5,std=0.8"


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("musubi", "--timestep_sampling shift --discrete_flow_shift 1.649 --sigmoid_scale 0.8"),
        ("kohya-flow", "--timestep_sampling shift --discrete_flow_shift 1.649 --sigmoid_scale 0.8"),
        ("kohya-sd3", "--weighting_scheme logit_normal --training_shift 1 --logit_mean 0.5 --logit_std 0.8"),
        ("diffusers", "--weighting_scheme logit_normal --logit_mean -0.5 --logit_std 0.8"),
        ("simpletuner-flags", "--flow_sigmoid_scale 0.8 --flow_schedule_shift 1.649"),
        ("diffusion-pipe", "timestep_sample_method = 'logit_normal', sigmoid_scale = 0.8, shift = 1.649"),
    ],
)
def test_a_density_that_a_host_has_is_written_in_its_words(host: str, written: str) -> None:
    own = nearest(HOST[host], density(WANTED))
    assert own.written == written
    assert own.divergence < 1e-6


def test_a_range_is_set_where_the_host_can() -> None:
    wanted = density("logit-normal:shift=3,within=(0.2,0.9)")
    assert nearest(HOST["musubi"], wanted).written.endswith("--min_timestep 200 --max_timestep 900")
    assert nearest(HOST["musubi"], wanted).divergence < 1e-4
    assert nearest(HOST["kohya-flow"], wanted).divergence > 0.03
    kohya = nearest(HOST["kohya"], density("uniform:within=(0.2,0.7)", "linear"))
    assert (kohya.written, kohya.moved) == (
        "--min_timestep 200 --max_timestep 700",
        pytest.approx(0, abs=1e-9),
    )


def test_settings_before_a_shift_leave_it_to_the_process() -> None:
    wanted = density("logit-normal", "flow:shift=3")
    assert "--logit_mean 0 --logit_std 1" in nearest(HOST["diffusers"], wanted).written
    assert "--discrete_flow_shift 3 " in nearest(HOST["musubi"], wanted).written


def test_the_best_biased_range_of_a_step_is_that_step() -> None:
    own = nearest(
        HOST["timestep-bias"], density("table:masses=(1,6,1),borders=(0,0.3,0.6,1)", "scaled-linear")
    )
    assert "--timestep_bias_begin 300 --timestep_bias_end 600" in own.written
    assert float(own.written.split()[-1]) == pytest.approx((6 / 0.3) / (2 / 0.7), rel=0.02)


@pytest.mark.parametrize(
    ("family", "parameters"), [("beta", {"alpha": 1.5, "beta": 1.0}), ("mode", {"scale": 0.9})]
)
def test_parameters_are_found_again(family: str, parameters: dict[str, float]) -> None:
    host = HOST["lerobot" if family == "beta" else "kohya-flow"]
    own = nearest(host, density(str(Spec("sampler", family, parameters))))
    assert own.spec.parameters == pytest.approx(parameters, rel=1e-3)


def test_nothing_lies_nearer_than_the_nearest() -> None:
    wanted = density("table:masses=(1,2,4,1)")
    own = nearest(HOST["diffusion-pipe"], wanted)
    assert own.spec.name == "logit-normal"
    borders, masses = wanted.over_sigma()
    for mean in (-0.05, 0.05):
        for std in (-0.05, 0.05):
            parameters = {"mean": own.spec.parameters["mean"] + mean, "std": own.spec.parameters["std"] + std}
            other = build.sampler("logit-normal", "flow", **parameters).masses(borders)
            assert divergence(masses, other) > own.divergence


@pytest.mark.parametrize(
    ("sampler", "process", "said"),
    [
        ("auto", "flow", "stepwell fit"),
        ("neyman", "linear", "stepwell fit"),
        ("logit-normal:shift=3", "linear", "is for flows"),
        ("logit-normal:warm_up_steps=10,stratified=true", "flow", "changes its density while training runs"),
        ("over-steps:stages=[0 uniform; 9 cosmap]", "flow", "changes its density while training runs"),
    ],
)
def test_what_has_no_one_density_is_refused(sampler: str, process: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        density(sampler, process)


def test_formats_are_for_their_models() -> None:
    with pytest.raises(Unsupported, match="is for flow matching"):
        FORMAT["simpletuner"].text(density("uniform", "linear"), centres(3))
    with pytest.raises(Unsupported, match="DDPM's timesteps"):
        nearest(HOST["kohya"], density("uniform"))
    with pytest.raises(Unsupported, match="counts 1,000 timesteps"):
        nearest(HOST["kohya"], density("uniform", "linear:timesteps=500"))


def test_a_density_may_depend_on_the_shape() -> None:
    # musubi-tuner's flux_shift: exp(mu) for 1,024 and 4,096 tokens.
    for shape, shift in (("(16,64,64)", 1.8776), ("(16,128,128)", 3.1582), ("(4096,64)", 3.1582)):
        own = nearest(HOST["nemo"], density(f"flux:shape={shape}"))
        assert own.divergence < 1e-6
        assert own.spec.parameters == pytest.approx({"mean": math.log(shift), "std": 1.0}, abs=1e-3)
