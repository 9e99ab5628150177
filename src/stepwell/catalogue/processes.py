"""The noise processes of the catalogue."""

from __future__ import annotations

from stepwell.catalogue.entry import Entry, Parameter

_DISCRETE = (
    Parameter("timesteps", 1000, "number of discrete timesteps"),
    Parameter("prediction", "eps", "what the network predicts: eps, v or x0"),
)
_BETAS = (
    Parameter("beta_start", None, "first beta; by default the published one, rescaled for other T"),
    Parameter("beta_end", None, "last beta"),
)
_ZERO_SNR = (Parameter("zero_terminal_snr", False, "make the last timestep pure noise (Lin et al. 2024)"),)
_SCHEDULER_SPELLINGS = {
    "num_train_timesteps": "timesteps",
    "prediction_type": "prediction",
    "rescale_betas_zero_snr": "zero_terminal_snr",
}


def _straight(name: str, summary: str, source: str, aliases: tuple[str, ...]) -> Entry:
    return Entry(
        "process",
        name,
        "stepwell.processes.discrete:straight",
        summary,
        source,
        _DISCRETE + _BETAS + _ZERO_SNR,
        fixed={"schedule": name},
        aliases=aliases,
        spellings=_SCHEDULER_SPELLINGS,
    )


PROCESSES = (
    _straight("linear", "betas on a line from 1e-4 to 0.02", "Ho et al. 2020 (DDPM)", ()),
    Entry(
        "process",
        "cosine",
        "stepwell.processes.discrete:cosine",
        "squared cosine of time; the last beta is capped at 0.999",
        "Nichol and Dhariwal 2021 (improved DDPM)",
        (*_DISCRETE, Parameter("offset", 0.008, "keeps the first betas above 0"), *_ZERO_SNR),
        aliases=("squaredcos-cap-v2",),
        spellings=_SCHEDULER_SPELLINGS,
    ),
    _straight("quadratic", "roots of betas on a line, 1e-4 to 0.02", "Song et al. 2021 (DDIM)", ("quad",)),
    _straight(
        "scaled-linear",
        "roots of betas on a line, 0.00085 to 0.012",
        "Rombach et al. 2022 (latent diffusion, which calls it linear)",
        ("ldm",),
    ),
    Entry(
        "process",
        "flow",
        "stepwell.processes.flow:FlowProcess",
        "a straight line from data to noise",
        "Liu et al. 2023 (rectified flow); Esser et al. 2024 (SD3)",
        (
            Parameter("prediction", "velocity", "what the network predicts: velocity, eps or x0"),
            Parameter("shift", 1.0, "timestep shift inside the process"),
            Parameter("timesteps", None, "discrete timesteps as in diffusers' schedulers; None: continuous"),
            Parameter("time_scale", 1000.0, "the network's time input is time_scale x t"),
            Parameter("reference", "uniform", "density the objective is stated against, or logit-normal"),
        ),
        aliases=("rectified-flow", "flow-matching"),
        spellings={
            "discrete_flow_shift": "shift",
            "flow_shift": "shift",
            "num_train_timesteps": "timesteps",
            "prediction_type": "prediction",
        },
    ),
    Entry(
        "process",
        "edm",
        "stepwell.processes.edm:EdmProcess",
        "variance exploding with preconditioning; time is linear in ln sigma",
        "Karras et al. 2022 (EDM)",
        (
            Parameter("sigma_min", 0.002, "noise at the data end"),
            Parameter("sigma_max", 80.0, "noise at the noise end"),
            Parameter("sigma_data", 0.5, "standard deviation of the data"),
            Parameter("mean", -1.2, "mean of ln sigma in the reference density"),
            Parameter("std", 1.2, "its standard deviation"),
        ),
        spellings={"P_mean": "mean", "P_std": "std"},
    ),
    Entry(
        "process",
        "vp",
        "stepwell.processes.vp:VpProcess",
        "variance preserving in continuous time: DDPM's linear betas with infinitely many timesteps",
        "Song et al. 2021 (score SDE)",
        (
            Parameter("beta_min", 0.1, "rate of noise at the data end"),
            Parameter("beta_max", 20.0, "rate of noise at the noise end"),
            Parameter("cut_off", 1e-5, "the smallest time t: the score has no bound at 0"),
            Parameter("prediction", "eps", "what the network predicts: eps, v or x0"),
            Parameter("time_scale", 999.0, "the network's time input is time_scale x t"),
        ),
        aliases=("vpsde", "vp-sde"),
    ),
    Entry(
        "process",
        "ve",
        "stepwell.processes.ve:VeProcess",
        "variance exploding: geometric noise levels, no preconditioning",
        "Song et al. 2021 (score SDE)",
        (
            Parameter("sigma_min", 0.02, "noise at the data end: 0.01 in the paper, for images in [0, 1]"),
            Parameter("sigma_max", 100.0, "noise at the noise end: 50 in the paper"),
            Parameter("prediction", "eps", "what the network predicts: eps or x0"),
            Parameter("time_scale", 1.0, "the network's time input is time_scale x ln(sigma / 2)"),
        ),
        aliases=("vesde", "ve-sde"),
    ),
)
