"""One table feeds everything: so it must be true."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch

import stepwell
from stepwell.catalogue import build
from stepwell.catalogue import find as finding
from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import ENTRIES, SHAPING
from stepwell.catalogue.spec import Spec
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.samplers.static import beta


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}:{entry.name}")
def test_parameters_and_defaults_are_the_factorys(entry: Entry) -> None:
    hidden = {"process", *entry.fixed} if entry.kind == "sampler" else set(entry.fixed)
    signature = inspect.signature(entry.factory()).parameters
    theirs = {key: value.default for key, value in signature.items() if key not in hidden}
    for parameter in entry.parameters:
        if parameter.required:
            assert theirs[parameter.name] is inspect.Parameter.empty
            theirs[parameter.name] = parameter.default
    assert {parameter.name: parameter.default for parameter in entry.parameters} == theirs


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}:{entry.name}")
def test_spellings_lead_to_parameters(entry: Entry) -> None:
    own = {parameter.name for parameter in entry.parameters}
    assert set(entry.spellings.values()) <= own
    assert not own & set(entry.spellings), "a spelling that is a parameter already"


def test_names_and_aliases_are_unique_within_a_kind() -> None:
    for kind in ("process", "sampler", "weighting"):
        all_names = [n for e in ENTRIES if e.kind == kind for n in (e.name, *e.aliases)]
        assert len(all_names) == len(set(all_names))
        assert all(name == finding.canonical(name) for name in all_names)


def test_other_tools_spellings_are_accepted() -> None:
    u = torch.linspace(0.01, 0.99, 50)
    linear = stepwell.process("linear", num_train_timesteps=500, prediction_type="v_prediction")
    assert (linear.timesteps, linear.prediction) == (500, "v")
    assert stepwell.weighting("min_snr", snr_gamma=3) == stepwell.weighting("min-snr", gamma=3)
    assert stepwell.weighting("p2", p2_gamma=0.5, p2_k=2) == stepwell.weighting("p2", gamma=0.5, k=2)
    theirs = stepwell.sampler("logit_normal", linear, logit_mean=0.3, logit_std=0.8)
    ours = stepwell.sampler("logit-normal", linear, mean=0.3, std=0.8)
    assert torch.equal(theirs.density(u), ours.density(u))
    ranged = stepwell.sampler("uniform", linear, min_timestep=100, max_timestep=200)
    assert torch.equal(ranged.density(u), stepwell.sampler("uniform", linear, within=(0.2, 0.4)).density(u))
    assert stepwell.process("flow", discrete_flow_shift=3).shift == 3
    assert repr(stepwell.process("squaredcos_cap_v2")) == repr(stepwell.process("cosine"))


def test_a_sampler_takes_a_process_its_name_or_a_scheduler() -> None:
    u = torch.linspace(0.01, 0.99, 50)

    class Scheduler:
        alphas_cumprod = stepwell.process("linear").scales(stepwell.process("linear").grid())[0] ** 2

    wanted = stepwell.sampler("laplace", stepwell.process("linear")).density(u)
    for given in ("linear", Scheduler()):
        assert torch.allclose(stepwell.sampler("laplace", given).density(u), wanted, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: stepwell.process("linaer"), UnknownName, "Did you mean 'linear'?"),
        (lambda: stepwell.sampler("lognorm", "linear"), UnknownName, "means two things"),
        (lambda: stepwell.sampler("min-snr", "linear"), UnknownName, "is a weighting, not a sampler"),
        (lambda: stepwell.weighting("cosine"), UnknownName, "is a process, not a weighting"),
        (lambda: stepwell.weighting(5), InvalidParameter, "named by a string"),
        (lambda: stepwell.weighting("min-snr", gama=5), InvalidParameter, "Did you mean 'gamma'?"),
        (lambda: stepwell.weighting("min-snr", gamma=5, snr_gamma=5), InvalidParameter, "twice"),
        (lambda: stepwell.weighting("min-snr", gamma=-1), InvalidParameter, "gamma must be above 0, not -1"),
        (lambda: stepwell.weighting("min-snr", gamma="x"), InvalidParameter, "finite number"),
        (lambda: stepwell.weighting("speed", ceiling=5), InvalidParameter, "between 0.5 and 1"),
        (lambda: stepwell.process("linear", timesteps=0), InvalidParameter, "at least 1, not 0"),
        (lambda: stepwell.process("linear", timesteps=10.0), InvalidParameter, "whole number"),
        (lambda: stepwell.process("linear", prediction="z"), UnknownName, "eps, v, x0"),
        (
            lambda: stepwell.process("edm", sigma_min=2, sigma_max=1),
            InvalidParameter,
            "must be above sigma_min",
        ),
        (lambda: stepwell.sampler("table", "linear"), InvalidParameter, "needs masses"),
        (lambda: stepwell.sampler("table", "linear", masses=[1, -1]), InvalidParameter, "0 or more"),
        (lambda: stepwell.sampler("table", "linear", masses=[]), InvalidParameter, "at least one mass"),
        (lambda: stepwell.sampler("table", "linear", masses=[1, 1], borders=[0, 1]), InvalidParameter, "3"),
        (lambda: stepwell.sampler("uniform", "linear", within=(0.5, 0.5)), InvalidParameter, "not empty"),
        (lambda: stepwell.sampler("uniform", "linear", within=3), InvalidParameter, "a pair"),
        (
            lambda: stepwell.sampler("uniform", "linear", min_timestep=900, max_timestep=100),
            InvalidParameter,
            "empty range",
        ),
        (lambda: stepwell.sampler("uniform", "edm", min_timestep=9), Unsupported, "within=(low, high)"),
        (lambda: stepwell.sampler("uniform", "linear", floor=2), InvalidParameter, "between 0 and 1"),
        (lambda: stepwell.sampler("uniform", object()), Unsupported, "alphas_cumprod"),
        (
            lambda: stepwell.sampler("alignment", "linear", target="min-srn:gamma=3"),
            UnknownName,
            "Did you mean 'min-snr'?",
        ),
        (lambda: stepwell.sampler("alignment", "linear", target=5), InvalidParameter, "such as 'vlb'"),
        (lambda: stepwell.sampler("speed", "flow", as_published=True), Unsupported, "continuous"),
        (
            lambda: stepwell.weighting("vlb")(stepwell.process("edm"), torch.rand(3)),
            Unsupported,
            "which edm does not have",
        ),
    ],
)
def test_bad_input_says_what_to_write(call: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        call()  # type: ignore[operator]
    assert said in str(caught.value)


def my_sampler(process: NoiseProcess, alpha: float = 0.5) -> TimestepSampler:
    """What a third party would register."""
    return beta(process, alpha)


def test_third_parties_register_through_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("my_sampler", f"{__name__}:my_sampler", "stepwell.sampler"),
        EntryPoint("uniform", f"{__name__}:my_sampler", "stepwell.sampler"),
    ]
    monkeypatch.setattr(finding, "entry_points", lambda group: EntryPoints(points).select(group=group))
    finding.all_entries.cache_clear()
    try:
        built = stepwell.sampler("my-sampler", "linear", alpha=0.7, floor=0.1)
        assert "beta(alpha=0.7" in repr(built)
        assert repr(stepwell.sampler("uniform", "linear")) == "uniform", "our names cannot be replaced"
        with pytest.raises(InvalidParameter, match="Did you mean 'alpha'"):
            stepwell.sampler("my-sampler", "linear", alhpa=0.7)
    finally:
        finding.all_entries.cache_clear()


def test_every_sampler_takes_the_shaping_keywords() -> None:
    values = {"shift": 2.0, "floor": 0.1, "warm_up_steps": 5, "within": (0.1, 0.9), "stratified": True,
              "min_timestep": None, "max_timestep": None, "unbiased": False}  # fmt: skip
    assert set(values) == {parameter.name for parameter in SHAPING}
    built = stepwell.sampler("uniform", "flow", **values)
    wanted = "stratified(within[0.1, 0.9](warm_up[5](mix(shift[2](uniform), uniform, 0.1))))"
    assert repr(built) == wanted


def test_names_are_taken_with_their_parameters() -> None:
    written = stepwell.process("linear:timesteps=100,prediction=v")
    built = stepwell.process("linear", timesteps=100, prediction="v")
    u = torch.linspace(0.05, 0.95, 7)
    assert written.timesteps == 100
    assert all(map(torch.equal, written.target_mix(u), built.target_mix(u)))
    assert stepwell.weighting("min_snr:snr_gamma=3") == stepwell.weighting("min-snr", gamma=3)
    neyman = stepwell.sampler("neyman:strata=8", "linear:timesteps=100", images=4)
    assert neyman.probe == stepwell.sampler("neyman", written, strata=8, images=4).probe
    ranged = stepwell.sampler("uniform:within=(0.2,0.4),stratified=true", "linear")
    assert repr(ranged) == "stratified(within[0.2, 0.4](uniform))"


def test_the_pacer_takes_names_with_their_parameters() -> None:
    pacer = stepwell.Pacer("loss-ema:bins=8", "flow:shift=3", "min-snr:gamma=3")
    assert pacer.process.shift == 3
    assert pacer.weighting == stepwell.weighting("min-snr", gamma=3)
    assert repr(pacer.sampler) == repr(stepwell.sampler("loss-ema", pacer.process, bins=8))


@pytest.mark.parametrize(
    "text",
    [
        "linear",
        "linear:timesteps=100,prediction=v",
        "cosine:zero_terminal_snr=true,offset=1e-05",
        "flow:timesteps=none,reference='5'",
    ],
)
def test_a_spec_is_written_as_it_is_read(text: str) -> None:
    spec = Spec.parse("process", text)
    assert str(spec) == text
    assert Spec.parse("process", str(spec)) == spec
    assert len({spec, Spec.parse("process", str(spec))}) == 1


def test_a_spec_knows_the_name_of_the_catalogue_and_builds() -> None:
    spec = Spec.parse("sampler", "InfoNoise:bins=8,within=(0.1, 0.9)")
    assert (spec.name, dict(spec.parameters)) == ("info-noise", {"bins": 8, "within": (0.1, 0.9)})
    assert repr(build.sampler(spec, Spec.parse("process", "flow"))).startswith("within[0.1, 0.9](info-noise(")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: Spec.parse("sampler", "uniform:floor"), InvalidParameter, "'floor' is not of the form"),
        (lambda: Spec.parse("weighting", "min-srn:gamma=3"), UnknownName, "Did you mean 'min-snr'?"),
        (lambda: stepwell.weighting("min-snr:gamma=3", gamma=5), InvalidParameter, "got 'gamma' twice."),
        (lambda: build.weighting(Spec.parse("sampler", "speed")), InvalidParameter, "is a sampler, not a"),
    ],
)
def test_bad_specs_say_what_is_wrong(call: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
