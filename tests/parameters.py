"""Parameters that users may try, for property tests: of every process, sampler, weighting and combinator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

import stepwell
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.core.process import NoiseProcess

NEVER = (0, -1, -0.5, math.nan, math.inf, -math.inf, True, None, "much")
"""Values that some parameter accepts and most do not."""


def _number(low: float, high: float) -> st.SearchStrategy[Any]:
    """A float of a range that users may try, or now and then something else."""
    within = st.floats(low, high, allow_subnormal=False)
    return st.one_of(within, within, within, within, st.sampled_from(NEVER))


COUNTS = st.one_of(st.integers(1, 8), st.integers(1, 3000), st.sampled_from([0, -1, 1.5, None]))
STEPS = st.one_of(st.integers(1, 4), st.integers(1, 3000))
FLAG = st.booleans()
DISCRETE = {"timesteps": STEPS, "prediction": st.sampled_from(["eps", "v", "x0"]), "zero_terminal_snr": FLAG}


def _optional(**parameters: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=parameters)


def _of_processes(
    number: Callable[[float, float], st.SearchStrategy[Any]],
) -> dict[str, st.SearchStrategy[dict[str, Any]]]:
    return {
        "linear": _optional(**DISCRETE, beta_start=number(1e-6, 0.1), beta_end=number(1e-4, 1)),
        "cosine": _optional(**DISCRETE, offset=number(0, 0.5)),
        "quadratic": _optional(**DISCRETE),
        "scaled-linear": _optional(**DISCRETE),
        "flow": _optional(
            shift=number(0.05, 20),
            timesteps=st.one_of(st.none(), STEPS),
            prediction=st.sampled_from(["velocity", "eps", "x0"]),
            reference=st.sampled_from(["uniform", "logit-normal"]),
        ),
        "edm": _optional(
            sigma_min=number(1e-4, 1),
            sigma_max=number(0.5, 1e3),
            sigma_data=number(0.05, 5),
            mean=number(-4, 4),
            std=number(0.1, 4),
        ),
        "vp": _optional(
            beta_min=number(1e-3, 5),
            beta_max=number(1, 50),
            cut_off=number(1e-6, 0.1),
            prediction=st.sampled_from(["eps", "v", "x0"]),
        ),
        "ve": _optional(sigma_min=number(1e-4, 1), sigma_max=number(0.5, 1e3)),
    }


PROCESS_PARAMETERS = _of_processes(_number)

STRATA = {
    "strata": st.integers(1, 40),
    "every_steps": st.integers(0, 50),
    "images": st.integers(0, 40),
    "decay": _number(0, 1),
    "floor": _number(0, 1),
    "metric": st.sampled_from(["adam", "plain", "adamw"]),
}
TARGETS = st.sampled_from([None, "vlb", "simple", "min-snr:gamma=3", "least-snr", 5])

BASES = st.sampled_from(["logit-normal", "uniform", "normal"])
EXAMPLE_SHAPES = st.sampled_from([(16, 128, 128), (7, 3), (4, 2, 8, 8), (5,), (3, 1, 1), (), "16"])

NEEDED: dict[str, dict[str, Any]] = {
    "table": {"masses": [1.0, 3.0, 2.0]},
    "over-steps": {"stages": "0 uniform; 3 jit"},
}
"""Parameters that have no default."""

SAMPLER_PARAMETERS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "uniform": st.just({}),
    "reference": st.just({}),
    "logit-normal": _optional(mean=_number(-8, 8), std=_number(0.02, 8), as_published=FLAG),
    "log-normal-sigma": _optional(mean=_number(-8, 8), std=_number(0.02, 8)),
    "mode": _optional(scale=_number(-1, 1.8)),
    "cosmap": st.just({}),
    "laplace": _optional(mean=_number(-20, 20), scale=_number(0.02, 10)),
    "beta": _optional(alpha=_number(0.02, 200), beta=_number(0.02, 200)),
    **dict.fromkeys(
        ("flux", "flux-2", "qwen-image", "krea"),
        _optional(base=BASES, std=_number(0.02, 8), shape=EXAMPLE_SHAPES),
    ),
    "resolution-shift": _optional(
        low=st.tuples(_number(1, 1e4), _number(-3, 3)),
        high=st.tuples(_number(1, 1e4), _number(-3, 3)),
        patch=st.integers(0, 4),
        base=BASES,
        std=_number(0.02, 8),
        shape=EXAMPLE_SHAPES,
    ),
    "dimension-shift": _optional(dimension=st.integers(0, 10**6), std=_number(0.02, 8), shape=EXAMPLE_SHAPES),
    "ltx-2": _optional(std=_number(0.02, 8), uniform_share=_number(0, 1), shape=EXAMPLE_SHAPES),
    "pi0": _optional(alpha=_number(0.02, 200), beta=_number(0.02, 200), least=_number(0, 1)),
    "style-friendly": _optional(mean=_number(-30, 30), std=_number(0.05, 12)),
    "jit": _optional(mean=_number(-8, 8), std=_number(0.02, 8)),
    "u-shaped": _optional(scale=_number(0.01, 100)),
    "over-steps": st.fixed_dictionaries(
        {
            "stages": st.sampled_from(
                ["0 uniform", "0 uniform; 3 jit", "0 mode;9 uniform; 4 beta", "2 jit", 5]
            )
        },
        optional={"blend": st.sampled_from(["switch", "linear", "quick"])},
    ),
    "speed": _optional(
        version=st.sampled_from(["current", "legacy", "lognorm", "newest"]),
        tau=st.one_of(_number(0, 1), st.just("auto")),
        suppression=_number(0.01, 100),
        dual=FLAG,
        as_published=FLAG,
    ),
    "table": st.fixed_dictionaries(
        {"masses": st.lists(st.one_of(st.floats(0, 1e6), st.just(0.0), st.just(-1.0)), max_size=40)}
    ),
    "loss-second-moment": _optional(history=st.integers(0, 12), uniform_share=_number(0, 1), bins=COUNTS),
    "loss-ema": _optional(bins=COUNTS, decay=_number(0, 1), uniform_share=_number(0, 1)),
    "auto": _optional(bins=st.integers(2, 300), floor=_number(1e-3, 1), least_gain=_number(0, 1)),
    "loss-root": _optional(bins=COUNTS, decay=_number(0, 1), uniform_share=_number(0, 1)),
    "info-noise": _optional(bins=COUNTS, decay=_number(0, 1), uniform_share=_number(0, 1)),
    "neyman": _optional(**STRATA),
    "gradient-variance": _optional(**STRATA),
    "alignment": _optional(**STRATA, target=TARGETS),
    "beta-policy": _optional(
        credit=st.sampled_from(["decrease", "alignment", "loss"]),
        target=TARGETS,
        every_steps=st.integers(0, 50),
        queue=st.integers(0, 20),
        subset=st.one_of(st.integers(0, 5), st.just("all")),
        selection=st.sampled_from(["f", "forward", "random", "grid", "best"]),
        grid=st.one_of(st.none(), st.integers(0, 60)),
        entropy=_number(0, 2),
        learning_rate=_number(0, 0.1),
        clip=_number(0, 10),
        hidden=st.integers(0, 32),
        conditional=FLAG,
        floor=_number(0, 1),
        as_published=FLAG,
        paper=FLAG,
    ),
}

WEIGHTING_PARAMETERS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "none": st.just({}),
    "min-snr": _optional(gamma=_number(1e-3, 1e3)),
    "soft-min-snr": _optional(gamma=_number(1e-3, 1e3)),
    "p2": _optional(gamma=_number(0, 5), k=_number(1e-4, 1e3)),
    "debiased": st.just({}),
    "vlb": _optional(
        variance=st.sampled_from(["fixed-large", "fixed-small", "learned"]),
        cap=st.one_of(st.none(), _number(1e-3, 1e3)),
    ),
    "likelihood": _optional(largest_snr=_number(1e-3, 1e8)),
    "speed": _optional(ceiling=_number(0.5, 1), tau=st.one_of(_number(0, 1), st.just("auto"))),
    "bsmntw": st.just({}),
    "linear-sigma": _optional(slope=_number(0, 20)),
    "uncertainty": _optional(features=COUNTS, learning_rate=_number(1e-4, 1)),
    "uncertainty-mean": _optional(bins=COUNTS),
}

SHAPING = _optional(
    shift=_number(0.05, 20),
    floor=_number(0, 1),
    warm_up_steps=st.integers(0, 3),
    within=st.tuples(_number(0, 1), _number(0, 1)),
    stratified=FLAG,
    unbiased=FLAG,
)


def built_or_none(build: Callable[[], Any]) -> Any:
    """What is built, or None where Stepwell refuses."""
    try:
        return build()
    except (InvalidParameter, Unsupported, UnknownName):
        return None


@st.composite
def processes(draw: st.DrawFn) -> NoiseProcess:
    """Any process that can be built."""
    name = draw(st.sampled_from(sorted(PROCESS_PARAMETERS)))
    parameters = draw(_of_processes(st.floats)[name])
    built = built_or_none(lambda: stepwell.process(name, **parameters))
    assume(built is not None)
    return built
