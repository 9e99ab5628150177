"""Values printed in shared/methods.md, as text: their digits are the tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

SCHEDULES = ("linear", "cosine", "quadratic")

# Section 2, "Schedules": checksums, twelve decimals.
SUM_OF_BETAS = {"linear": "10.050000000000", "cosine": "12.441496417056", "quadratic": "7.174285997747"}
SUM_OF_ALPHAS_CUMPROD = {
    "linear": "275.513233396806",
    "cosine": "495.577512582486",
    "quadratic": "422.655728545506",
}

# Section 2.0, the master table: six significant digits with trailing zeros dropped.
MASTER_TIMESTEPS = (0, 1, 100, 250, 500, 999)
ALPHAS_CUMPROD = {
    "linear": "0.9999 0.99978 0.895142 0.521423 0.0777967 4.03583e-05",
    "cosine": "0.999959 0.999913 0.971576 0.845888 0.492285 2.42877e-09",
    "quadratic": "0.9999 0.999797 0.971176 0.82001 0.331275 7.33412e-04",
}
SNR = {
    "linear": "9999 4546.36 8.53667 1.08953 0.0843595 4.03599e-05",
    "cosine": "24221.3 11437.5 34.1811 5.48879 0.96961 2.42877e-09",
    "quadratic": "9999 4933.91 33.6935 4.55587 0.495382 7.33951e-04",
}
MIN_SNR_EPS = {
    "linear": "5.0005e-4 1.09978e-3 0.585709 1 1 1",
    "cosine": "2.0643e-4 4.37159e-4 0.146279 0.910948 1 1",
    "quadratic": "5.0005e-4 1.0134e-3 0.148397 1 1 1",
}
MIN_SNR_V = {
    "linear": "5e-4 1.09954e-3 0.524292 0.521423 0.0777967 4.03583e-05",
    "cosine": "2.06421e-4 4.3712e-4 0.142122 0.77056 0.492285 2.42877e-09",
    "quadratic": "5e-4 1.01319e-3 0.144119 0.82001 0.331275 7.33412e-04",
}
MIN_SNR_X0 = {"linear": "5 5 5 1.08953 0.0843595 4.03599e-05"}
P2_GAMMA_1 = {
    "linear": "1e-4 2.19908e-4 0.104858 0.478577 0.922203 0.99996",
    "cosine": "4.12842e-05 8.74241e-05 0.0284243 0.154112 0.507715 1",
    "quadratic": "1e-4 2.02638e-4 0.0288239 0.17999 0.668725 0.999267",
}
P2_GAMMA_HALF = {
    "linear": "0.01 0.0148293 0.323818 0.691793 0.960314 0.99998",
    "cosine": "0.00642528 0.00935008 0.168595 0.392571 0.712541 1",
    "quadratic": "0.01 0.0142351 0.169776 0.424252 0.817756 0.999633",
}
P2_GAMMA_0 = dict.fromkeys(SCHEDULES, "1 1 1 1 1 1")
VLB_FIXED_LARGE = {
    "linear": "0.50005 0.272692 0.00999623 0.00533448 0.00550973 0.0102045",
    "cosine": "0.500021 0.263908 0.00936139 0.00431176 0.00311758 499.5",
    "quadratic": "0.50005 0.253306 0.00930574 0.00511915 0.00431809 0.0102116",
}
VLB_FIXED_SMALL = {
    "linear": "inf 0.599672 0.0101784 0.00536432 0.00551446 0.0102045",
    "cosine": "inf 0.558856 0.00953483 0.00434344 0.00312718 499.501",
    "quadratic": "inf 0.513295 0.00947704 0.00516249 0.00433048 0.0102117",
}
SOFT_MIN_SNR = {
    "linear": "4.998e-4 1.09857e-3 0.369367 0.821082 0.983408 0.999992",
    "cosine": "2.06387e-4 4.36968e-4 0.127612 0.4767 0.837576 1",
    "quadratic": "4.998e-4 1.01237e-3 0.129221 0.523239 0.909855 0.999853",
}
DEBIASED = {
    "linear": "0.0100005 0.0148309 0.34226 0.958034 3.44297 157.407",
    "cosine": "0.00642541 0.00935049 0.171044 0.426837 1.01555 20291.2",
    "quadratic": "0.0100005 0.0142365 0.172277 0.468505 1.42079 36.9119",
}

# Section 2.0, below the table: first t with SNR < 5 and with SNR < 1.
FIRST_BELOW = {"linear": (130, 259), "cosine": (261, 496), "quadratic": (242, 418)}

# Section 2.0, below the table: mean weight under uniform t (linear, cosine, quadratic).
MEAN_MIN_SNR_EPS = "0.913073 0.824022 0.832431"
MEAN_P2_GAMMA_1 = "0.724487 0.504422 0.577344"
MEAN_P2_GAMMA_HALF = "0.805892 0.641949 0.690116"
MEAN_VLB_FIXED_LARGE = "0.00986105 0.512609 0.00849124"

# Section 1.1 (row "Equivalence") and 2.8: what every DDPM code takes for the infinite term of t = 0.
VLB_FIRST_TERM_LINEAR = "0.916987"

# Section 2.4: bin probabilities of logit-normal(0, 1) under three mappings to timesteps.
LOGIT_NORMAL_FLOOR = "2.47933e-12 2.58086e-10 3.99653e-4 1.16551e-3 1.59577e-3 2.47935e-12"
LOGIT_NORMAL_ROUND = "1.48752e-14 4.0202e-11 3.97589e-4 1.16575e-3 1.59736e-3 1.4877e-14"
LOGIT_NORMAL_FLOOR_SHORT = "2.49689e-12 2.59736e-10 4.00673e-4 1.1676e-3 1.59736e-3 0"

# Section 2.4: EDM's ln sigma ~ N(mean, std) on discrete schedules, and its median timestep.
EDM_TIMESTEPS = (0, 100, 500, 999)
EDM_ON_TIMESTEPS = (
    (-1.2, 1.2, "linear", "3.75433e-3 3.31683e-3 2.32278e-4 9.36659e-8", 88),
    (-1.2, 1.2, "cosine", "1.14449e-3 2.79715e-3 6.20539e-4 2.6e-15", 179),
    (-1.2, 1.2, "quadratic", "3.56786e-3 2.79106e-3 6.21827e-4 3.12854e-5", 173),
    (-0.4, 1.0, "linear", "3.06071e-5 3.19336e-3 5.73911e-4 2.46543e-8", 187),
)

# Section 2.5, SpeeD. "=" in the table repeats its left neighbour.
SPEED_TIMESTEPS = (0, 1, 100, 250, 500, 699, 700, 750, 999)
SPEED_MEANINGFUL_STEPS = {"linear": 642, "cosine": 959, "quadratic": 829}
SPEED_LEGACY_DIRECT = {
    "linear": ".00140236 " * 5 + ".000280473 " * 4,
    "cosine": ".00103455 " * 8 + ".00020691",
    "quadratic": ".00115998 " * 8 + ".000231996",
}
SPEED_LEGACY_MARGINAL = {
    "linear": ".00087907 .0012183 .0015426 .0015426 .00140236 .000140236 .000140236 .000140236 .000140236",
    "cosine": ".000621949 .000837414 " + ".00103455 " * 6 + ".000103455",
    "quadratic": ".000700793 .000859943 .00127598 " + ".00115998 " * 5 + ".000115998",
}
SPEED_LEGACY_MARGINAL_OF_128 = {
    "linear": ".000887246 .00122118 .00154041 .00154041 .00140236 " + ".000142428 " * 4,
}
SPEED_CURRENT_DIRECT = dict.fromkeys(SCHEDULES, ".00131579 " * 6 + ".000263158 " * 3)
SPEED_CURRENT_MARGINAL = {
    "linear": ".00131579 .00197368 .00144737 .00144737 .00131579 .000657895 " + ".000131579 " * 3,
    "cosine": ".000789474 .000921053 .000789474 .000789474 .00131579 .00131579 "
    ".000789474 .000789474 .000131579",
    "quadratic": ".000789474 .000921053 .000921053 .00131579 .00131579 .00131579 "
    ".000789474 .000789474 .000131579",
}
SPEED_WEIGHT = {
    "linear": ".408786 .40952 .538903 .596249 .458032 .407203 1 1 1",
    "cosine": ".405618 .40593 .466436 .544386 .599976 .560859 1 1 1",
    "quadratic": ".408346 .408473 .44844 .542733 .580491 .465743 1 1 1",
}
SPEED_WEIGHT_THEORY = {
    "linear": ".226358 .22856 .616709 .788748 .374095 .22161 .221335 .210895 .2",
}
SPEED_LOGNORM = {
    "linear": "8.87e-9 5.17e-8 5.57958e-4 2.53987e-3 1.32627e-3 3.13e-6 2.97e-6 1.52e-7 3.4e-20",
}
# Defect S1: the official class default for the ceiling of the weights.
SPEED_CEILING_THAT_GOES_NEGATIVE = 5
# Defect S2: what SpeeD's own "min_snr" gives on linear at t = 500 and 999; the formula gives 1 and 1.
SPEED_WRONG_MIN_SNR = {500: "4.61102", 999: "4.9998"}
# Defect S5: m / T of the official per-step threshold on the rescaled linear schedule.
SPEED_MEANINGFUL_SHARE = {
    100: "0.80",
    250: "0.748",
    500: "0.698",
    1000: "0.642",
    2000: "0.579",
    4000: "0.504",
}

# Section 2.6: loss-second-moment with constant losses 1, 2, 3, 4 at four timesteps.
SECOND_MOMENT_LOSSES = (1.0, 2.0, 3.0, 4.0)
SECOND_MOMENT_PROBABILITIES = ".10015 .20005 .29995 .39985"
SECOND_MOMENT_WEIGHTS = "2.49626 1.24969 .833472 .625234"

# Section 2.7 (and D11 for the digit): the share of cosine's last timestep in the sum of c_t, in percent.
VLB_COSINE_LAST_PERCENT = "97.4"

# Section 2.8: bins of round(u 999), for Beta(a0, a0) and for uniform u.
BETA_POLICY_START = 0.9740869842
BETA_POLICY_BINS = "5.93915e-4 1.13784e-3 1.01137e-3 9.92322e-4 9.84969e-4 5.93915e-4"
UNIFORM_ROUNDED_END, UNIFORM_ROUNDED_INSIDE = "5.00501e-4", "1.001001e-3"
# Section 2.8: c_t / ln 2 on linear, fixed-large as coded (t = 0 has the variance of t = 1).
BITS_TIMESTEPS = (0, 1, 100, 500, 999)
BITS_PER_DIMENSION = "1.32293203 0.39341152 0.01442151 0.00794887 0.01472197"

# Section 4: SD3's mode sampling at scale 1.29 (its u -> t) and CosMap's density.
MODE = {0.1: ".802569", 0.25: ".616416", 0.5: ".5", 0.9: ".197431"}
# shared/modern.md, section 1: the median on a flow, and the density at 0 and 1/2.
MEDIANS = {"pi0": "0.63033", "style-friendly": "0.95257", "jit": "0.68997"}
U_SHAPED = "2.0746 0.5514"
COSMAP = {0.1: ".776366", 0.5: "1.273240"}
# Section 4: Laplace(0, 0.5) in log-SNR: lambda(t = 0.25), and on discrete schedules.
LAPLACE_LOG_SNR_AT_QUARTER = ".346574"
LAPLACE_ON_TIMESTEPS = {"linear": {100: "2.75e-4", 500: "7.81e-5"}, "cosine": {500: "5.86e-3"}}
LAPLACE_MEDIAN_LINEAR = 258
# Section 4: B-TTDM, Beta(0.8, 1), floor bins.
BETA_TIMESTEPS = (0, 100, 500, 999)
BETA = "3.98107e-3 1.26665e-3 9.18775e-4 8.0008e-4"


def assert_printed(values: Tensor | Iterable[float], printed: str, digits: int | None = None) -> None:
    """Each value rounds to the number printed: half a unit of its last digit, and 2 % for ties.

    `digits` significant ones, for tables that drop trailing zeros; else as many as are written.
    """
    values, texts = [float(value) for value in values], printed.split()
    assert len(values) == len(texts)
    for value, text in zip(values, texts, strict=True):
        off = abs(value - float(text))
        allowed = 1.02 * _half_unit(text, digits)
        assert off <= allowed, f"{value!r} is not {text}: off by {off:.2e}, allowed {allowed:.1e}"


def _half_unit(text: str, digits: int | None) -> float:
    if float(text) == 0:
        return 0.0
    if digits is not None:
        return 0.5 * 10.0 ** (math.floor(math.log10(abs(float(text)))) - digits + 1)
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)
