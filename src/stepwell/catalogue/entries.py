"""The catalogue itself. `tests/test_catalogue.py` compares every line with its factory's signature."""

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
            Parameter("time_scale", 1000.0, "the network is told time_scale x t"),
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
            Parameter("time_scale", 999.0, "the network is told time_scale x t"),
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
            Parameter("time_scale", 1.0, "the network is told time_scale x ln(sigma / 2)"),
        ),
        aliases=("vesde", "ve-sde"),
    ),
)

_LOSS_EMA = (
    Parameter("bins", 100, "bins of equal log-SNR"),
    Parameter("decay", 0.999, "memory of the running mean, per example"),
)

_STRATA = (
    Parameter("strata", 20, "parts of time, each as likely under the objective"),
    Parameter("every_steps", 16, "optimizer steps from one stratum's measurement to the next stratum's"),
    Parameter("images", 16, "examples in each of the two halves, over all ranks"),
    Parameter("decay", 0.7, "memory of the running means, per measurement of a stratum"),
)
_EVERY_24 = Parameter("every_steps", 24, "the same; its two passes cost more than neyman's one")
_METRIC = Parameter("metric", "adam", "measure gradients in Adam's preconditioner, or plain")
_METRIC_PLAIN = Parameter("metric", "plain", "plain, or adam: in Adam's preconditioner")

SAMPLERS = (
    Entry(
        "sampler",
        "uniform",
        "stepwell.samplers.static:uniform",
        "every timestep alike",
        "Ho et al. 2020 (DDPM)",
    ),
    Entry(
        "sampler",
        "logit-normal",
        "stepwell.samplers.static:logit_normal",
        "sigmoid of a normal: the middle of time (called log-normal by Kim et al.)",
        "Esser et al. 2024 (SD3)",
        (
            Parameter("mean", 0.0, "above 0: towards noise (diffusers' SD3 index runs the other way)"),
            Parameter("std", 1.0, "width"),
            Parameter("as_published", False, "t = round(u (T - 1)), as Kim et al.'s code maps it"),
        ),
        spellings={"logit_mean": "mean", "logit_std": "std", "sigmoid_scale": "std"},
    ),
    Entry(
        "sampler",
        "log-normal-sigma",
        "stepwell.samplers.static:log_normal_sigma",
        "normal in ln sigma: EDM's training density, on any process",
        "Karras et al. 2022 (EDM)",
        (
            Parameter("mean", -1.2, "mean of ln sigma; EDM2: -0.4"),
            Parameter("std", 1.2, "its standard deviation; EDM2: 1.0"),
        ),
        spellings={"P_mean": "mean", "P_std": "std"},
    ),
    Entry(
        "sampler",
        "mode",
        "stepwell.samplers.static:mode",
        "the middle of time with heavy tails",
        "Esser et al. 2024 (SD3)",
        (Parameter("scale", 1.29, "above 0: more of the middle"),),
        spellings={"mode_scale": "scale"},
    ),
    Entry(
        "sampler",
        "cosmap",
        "stepwell.samplers.static:cosmap",
        "what a cosine schedule would draw, in flow time",
        "Esser et al. 2024 (SD3)",
    ),
    Entry(
        "sampler",
        "laplace",
        "stepwell.samplers.static:laplace",
        "Laplace in log-SNR: sharply around equal signal and noise",
        "Hang et al. 2025 (Improved Noise Schedule, arXiv 2407.03297)",
        (
            Parameter("mean", 0.0, "centre of log-SNR"),
            Parameter("scale", 0.5, "width"),
        ),
    ),
    Entry(
        "sampler",
        "beta",
        "stepwell.samplers.static:beta",
        "Beta(alpha, beta); by default somewhat more of the data end",
        "Zheng et al. 2024 (B-TTDM)",
        (Parameter("alpha", 0.8, "below 1: the data end"), Parameter("beta", 1.0, "below 1: the noise end")),
        aliases=("b-ttdm",),
    ),
    Entry(
        "sampler",
        "speed",
        "stepwell.samplers.speed:speed",
        "fewer draws where the process has converged",
        "Wang et al. 2024 (SpeeD, A Closer Look at Time Steps)",
        (
            Parameter("version", "current", "current, legacy (what Kim et al. compare with) or lognorm"),
            Parameter("tau", 0.7, "where convergence begins, a share of time, or auto: from the increments"),
            Parameter("suppression", 5.0, "how many times fewer draws there"),
            Parameter("dual", True, "pair early with late timesteps"),
            Parameter("as_published", False, "pair within the batch; thresholds in absolute timesteps"),
        ),
        spellings={"k": "suppression"},
    ),
    Entry(
        "sampler",
        "table",
        "stepwell.samplers.static:table",
        "any piecewise-constant density of your own",
        "your own",
        (
            Parameter("masses", None, "one per bin, any scale", required=True),
            Parameter("borders", None, "rising from 0 to 1; equal bins by default"),
        ),
        spellings={"weights": "masses"},
    ),
    Entry(
        "sampler",
        "loss-second-moment",
        "stepwell.samplers.loss_second_moment:loss_second_moment",
        "in proportion to the root of the mean squared loss",
        "Nichol and Dhariwal 2021 (improved DDPM)",
        (
            Parameter("history", 10, "losses kept per bin; learned draws start when all are full"),
            Parameter("uniform_share", 0.001, "share of uniform draws"),
            Parameter("bins", None, "one per timestep by default"),
        ),
        spellings={"history_per_term": "history", "uniform_prob": "uniform_share"},
        learns=True,
        unbiased=True,
    ),
    Entry(
        "sampler",
        "loss-ema",
        "stepwell.samplers.loss_ema:loss_ema",
        "in proportion to the running mean of the weighted loss",
        "Kingma and Gao 2023 (Understanding Diffusion Objectives as the ELBO)",
        (*_LOSS_EMA, Parameter("uniform_share", 0.01, "share of uniform draws; bounds the correction")),
        learns=True,
        unbiased=True,
    ),
    Entry(
        "sampler",
        "loss-root",
        "stepwell.samplers.loss_ema:loss_root",
        "in proportion to weight x root of the loss: neyman without gradients",
        "Stepwell; after Katharopoulos and Fleuret 2018 (gradient at the output)",
        (*_LOSS_EMA, Parameter("uniform_share", 0.1, "share of the reference's own draws")),
        learns=True,
        stratified=True,
        unbiased=True,
    ),
    Entry(
        "sampler",
        "info-noise",
        "stepwell.samplers.info_noise:info_noise",
        "where noise destroys information fastest, from the losses (I-MMSE)",
        "Raya et al. 2026 (InfoNoise, arXiv 2602.18647)",
        _LOSS_EMA,
        aliases=("infonoise",),
        learns=True,
    ),
    Entry(
        "sampler",
        "neyman",
        "stepwell.samplers.gradient_spread:neyman",
        "in proportion to the gradient's standard deviation: least noise for the same objective",
        "Stepwell; Neyman 1934 (optimum allocation)",
        (*_STRATA, Parameter("floor", 0.2, "share of the reference's own draws"), _METRIC),
        learns=True,
        stratified=True,
        unbiased=True,
    ),
    Entry(
        "sampler",
        "gradient-variance",
        "stepwell.samplers.gradient_spread:gradient_variance",
        "in proportion to the gradient's variance, objective not kept: a control",
        "Kim et al. 2025, Table 4",
        (*_STRATA, Parameter("floor", 0.0, "share of the reference's own draws"), _METRIC_PLAIN),
        learns=True,
    ),
    Entry(
        "sampler",
        "alignment",
        "stepwell.samplers.alignment:alignment",
        "where an update lowers the target most, to first order",
        "Stepwell; the goal of Kim et al. 2025",
        (
            _STRATA[0],
            _EVERY_24,
            *_STRATA[2:],
            Parameter("floor", 0.2, "share of the reference's own draws"),
            Parameter(
                "target", "vlb", "the weighting whose objective should fall: vlb (the bound), simple, ..."
            ),
            _METRIC,
        ),
        learns=True,
        stratified=True,
    ),
    Entry(
        "sampler",
        "beta-policy",
        "stepwell.samplers.beta_policy:beta_policy",
        "a policy network chooses a Beta density for every example, and learns from what updates achieve",
        "Kim et al. 2025 (Adaptive Non-uniform Timestep Sampling, CVPR)",
        (
            Parameter("credit", "decrease", "who earns: each example its decrease (the paper), or alignment"),
            Parameter("target", None, "the weighting whose objective should fall; None: vlb (the paper)"),
            Parameter("every_steps", None, "steps between policy updates; None: 40, or 16 for alignment"),
            Parameter("queue", 20, "rows of measured decrease that the subset is chosen from"),
            Parameter("subset", 3, "timesteps that stand for all in the reward, or all"),
            Parameter("selection", "f", "how they are chosen: f (the paper), forward, random or grid"),
            Parameter("grid", None, "timesteps in a row; None: 50 (they fall alike), or all as_published"),
            Parameter("entropy", None, "weight of the bonus for broad draws; None: 0.01, alignment 0.5"),
            Parameter("learning_rate", None, "of the policy; None: 1e-2, on schedules like cosine 1e-3"),
            Parameter("clip", 1.0, "largest norm of the policy's gradient"),
            Parameter("hidden", None, "width of the policy; None: 128 (the paper), or 256 as_published"),
            Parameter("conditional", True, "whether the density depends on the example"),
            Parameter("floor", None, "share of the reference's own draws; None: 0.1, or 0 as_published"),
            Parameter("as_published", False, "as the official code, where it differs from the paper"),
        ),
        learns=True,
    ),
)

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
