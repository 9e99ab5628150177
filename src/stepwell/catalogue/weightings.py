"""The weightings of the catalogue."""

from __future__ import annotations

from stepwell.catalogue.entry import Entry, Parameter

_GAMMA = Parameter("gamma", 5.0, "the SNR above which weights fall")

WEIGHTINGS = (
    Entry(
        "weighting",
        "none",
        "stepwell.weightings:Unweighted",
        "1 on whatever the network predicts",
        "Ho et al. 2020 (DDPM's simple loss)",
        aliases=("simple",),
    ),
    Entry(
        "weighting",
        "min-snr",
        "stepwell.weightings:MinSnr",
        "min(SNR, gamma) / SNR on eps",
        "Hang et al. 2023 (Min-SNR)",
        (_GAMMA,),
        spellings={"snr_gamma": "gamma", "min_snr_gamma": "gamma"},
    ),
    Entry(
        "weighting",
        "soft-min-snr",
        "stepwell.weightings:SoftMinSnr",
        "gamma / (SNR + gamma) on eps",
        "Crowson et al. 2024 (HDiT)",
        (_GAMMA,),
        spellings={"snr_gamma": "gamma"},
    ),
    Entry(
        "weighting",
        "p2",
        "stepwell.weightings:P2",
        "1 / (k + SNR)^gamma on eps; SpeeD's older weighting",
        "Choi et al. 2022 (P2)",
        (
            Parameter("gamma", 1.0, "0 is no weighting; the authors used 0.5 and 1"),
            Parameter("k", 1.0, "keeps the weight finite"),
        ),
        spellings={"p2_gamma": "gamma", "p2_k": "k"},
    ),
    Entry(
        "weighting",
        "debiased",
        "stepwell.weightings:Debiased",
        "1 / sqrt(SNR) on eps",
        "Yu et al. 2024 (Unmasking Bias, arXiv 2310.08442)",
        aliases=("debiased-estimation",),
    ),
    Entry(
        "weighting",
        "vlb",
        "stepwell.weightings:Vlb",
        "the variational bound's own weight",
        "Ho et al. 2020; Kim et al. 2025, Eq. 7",
        (
            Parameter(
                "variance",
                "fixed-large",
                "of the reverse step: fixed-large, fixed-small; fixed-large-clipped has Kim et al.'s t = 0",
            ),
            Parameter("cap", 1.0, "largest weight: cosine's t = 999 alone is 97 % of the sum; None: no cap"),
        ),
    ),
    Entry(
        "weighting",
        "likelihood",
        "stepwell.weightings:Likelihood",
        "the bound's own weight in continuous time",
        "Song et al. 2021b (Maximum Likelihood Training, arXiv 2101.09258)",
        (Parameter("largest_snr", 1e6, "the weight is held above this SNR, where it has no limit"),),
    ),
    Entry(
        "weighting",
        "speed",
        "stepwell.weightings:Speed",
        "more where the noise grows faster",
        "Wang et al. 2024 (SpeeD)",
        (
            Parameter("ceiling", 0.6, "weights lie in [1 - ceiling, ceiling] before tau"),
            Parameter("tau", 0.7, "weights are 1 after it; a share of time, or auto"),
        ),
        spellings={"lam": "ceiling"},
    ),
)
