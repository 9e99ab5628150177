"""The catalogue itself. `tests/test_catalogue.py` compares every line with its factory's signature."""

from __future__ import annotations

from stepwell.catalogue.entry import Parameter
from stepwell.catalogue.processes import PROCESSES as PROCESSES
from stepwell.catalogue.samplers import SAMPLERS as SAMPLERS
from stepwell.catalogue.weightings import WEIGHTINGS as WEIGHTINGS

ENTRIES = PROCESSES + SAMPLERS + WEIGHTINGS

SHAPING = (
    Parameter("shift", None, "towards noise for s > 1: u -> s u / (1 + (s - 1) u)"),
    Parameter("floor", None, "share of uniform draws mixed in"),
    Parameter("warm_up_steps", None, "uniform for this many optimizer steps"),
    Parameter("within", None, "(low, high): the whole density inside this range of unit time"),
    Parameter("min_timestep", None, "the same range in timesteps, lower end"),
    Parameter("max_timestep", None, "upper end, excluded"),
    Parameter("stratified", None, "spread draws evenly over batch, ranks and accumulation"),
    Parameter("unbiased", None, "correct by reference / density, so that the objective is kept"),
)
"""Keywords that every sampler takes: each is a combinator, applied in this order."""

AMBIGUOUS = {
    "log-normal": "Kim et al.'s log-normal over timesteps is 'logit-normal'; EDM's is 'log-normal-sigma'",
}
"""Names that two papers use for different things."""
AMBIGUOUS["lognormal"] = AMBIGUOUS["lognorm"] = AMBIGUOUS["log-normal"]
