"""The loss weightings of the catalogue."""

from __future__ import annotations

from typing import Any

from stepwell.catalogue.entry import Entry, Parameter


def _weighting(name: str, factory: str, summary: str, source: str, *own: Parameter, **more: Any) -> Entry:
    """The entry of a class in stepwell.weightings.fixed, or of another file there as FILE:CLASS."""
    file, _, known = factory.rpartition(":")
    target = f"stepwell.weightings.{file or 'fixed'}:{known}"
    return Entry("weighting", name, target, summary, source, own, **more)


_GAMMA = Parameter("gamma", 5.0, "the SNR above which weights fall")

WEIGHTINGS = (
    _weighting(
        "none",
        "Unweighted",
        "1 on whatever the network predicts",
        "Ho et al. 2020 (DDPM's simple loss)",
        aliases=("simple",),
    ),
    _weighting(
        "min-snr",
        "MinSnr",
        "min(SNR, gamma) / SNR on eps",
        "Hang et al. 2023 (Min-SNR)",
        _GAMMA,
        spellings={"snr_gamma": "gamma", "min_snr_gamma": "gamma"},
    ),
    _weighting(
        "soft-min-snr",
        "SoftMinSnr",
        "gamma / (SNR + gamma) on eps",
        "Crowson et al. 2024 (HDiT)",
        _GAMMA,
        spellings={"snr_gamma": "gamma"},
    ),
    _weighting(
        "p2",
        "P2",
        "1 / (k + SNR)^gamma on eps; SpeeD's older weighting",
        "Choi et al. 2022 (P2)",
        Parameter("gamma", 1.0, "0 is no weighting; the authors used 0.5 and 1"),
        Parameter("k", 1.0, "keeps the weight finite"),
        spellings={"p2_gamma": "gamma", "p2_k": "k"},
    ),
    _weighting(
        "debiased",
        "Debiased",
        "1 / sqrt(SNR) on eps",
        "Yu et al. 2024 (Unmasking Bias, arXiv 2310.08442)",
        aliases=("debiased-estimation",),
    ),
    _weighting(
        "vlb",
        "Vlb",
        "the weight of the variational bound",
        "Ho et al. 2020; Kim et al. 2025, Eq. 7",
        Parameter(
            "variance",
            "fixed-large",
            "of the reverse step: fixed-large, fixed-small; fixed-large-clipped has Kim et al.'s t = 0",
        ),
        Parameter(
            "cap",
            "auto",
            "largest weight; auto: 1 on discrete chains (cosine's t = 999 is 97 % of the sum); none: no cap",
        ),
    ),
    _weighting(
        "likelihood",
        "Likelihood",
        "the weight of the bound in continuous time",
        "Song et al. 2021b (Maximum Likelihood Training, arXiv 2101.09258)",
        Parameter("largest_snr", 1e6, "the weight is constant above this SNR, where it has no limit"),
    ),
    _weighting(
        "speed",
        "Speed",
        "more where the noise grows faster",
        "Wang et al. 2024 (SpeeD)",
        Parameter("ceiling", 0.6, "weights lie in [1 - ceiling, ceiling] before tau"),
        Parameter("tau", 0.7, "weights are 1 after it; a share of time, or auto: where 1 % is signal"),
        spellings={"lam": "ceiling"},
    ),
    _weighting(
        "bsmntw",
        "flow:Bsmntw",
        "a bell over a flow's share of noise, 0 at both ends",
        "ai-toolkit; NVIDIA NeMo Automodel",
        aliases=("bell",),
        process="flow",
    ),
    _weighting(
        "linear-sigma",
        "flow:LinearSigma",
        "1 + slope x a flow's share of noise",
        "NVIDIA NeMo Automodel (loss_weighting_scheme linear)",
        Parameter("slope", 3.0, "NeMo's is its flow_shift: give the shift that you draw with"),
        aliases=("nemo-linear",),
        spellings={"flow_shift": "slope", "shift": "slope"},
        process="flow",
    ),
    _weighting(
        "uncertainty",
        "uncertainty:Learned",
        "1 / the expected loss at each time, by a small layer that is trained beside the network",
        "Karras et al. 2024 (EDM2, arXiv 2312.02696)",
        Parameter("features", 128, "Fourier features of the noise level"),
        Parameter("learning_rate", 0.005, "of the layer's own Adam"),
        aliases=("edm2",),
        spellings={"logvar_channels": "features"},
        learns=True,
    ),
    _weighting(
        "uncertainty-mean",
        "uncertainty:RunningMean",
        "1 / the running mean loss at each time: what uncertainty converges to, without parameters",
        "Stepwell; after Karras et al. 2024",
        Parameter("bins", 64, "of log-SNR, each with its mean"),
        learns=True,
    ),
)
