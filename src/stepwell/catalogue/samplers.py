"""The timestep samplers of the catalogue."""

from __future__ import annotations

from typing import Any

from stepwell.catalogue.differences import BETA_POLICY
from stepwell.catalogue.entry import Entry, Parameter


def _sampler(name: str, factory: str, summary: str, source: str, *own: Parameter, **more: Any) -> Entry:
    """The entry of a factory `module:function` in stepwell.samplers."""
    return Entry("sampler", name, f"stepwell.samplers.{factory}", summary, source, own, **more)


_LOSS_EMA = (
    Parameter("bins", 100, "bins of equal log-SNR"),
    Parameter("decay", 0.999, "decay of the running mean, per example"),
)

_STRATA = (
    Parameter("strata", 20, "parts of time that the reference density draws equally often"),
    Parameter(
        "every_steps",
        None,
        "optimizer steps between measurements, one stratum each; None: 16, or more below batch 64",
    ),
    Parameter(
        "images",
        None,
        "examples in each half of a measurement, over all ranks; None: 16, or fewer below batch 64",
    ),
    Parameter("decay", 0.7, "decay of the running means, per measurement of a stratum"),
)
_EVERY_24 = Parameter(
    "every_steps", None, "the same; None: 24, since its two passes cost more than neyman's one"
)
_METRIC = Parameter("metric", "adam", "measure gradients in Adam's preconditioner, or plain")
_METRIC_PLAIN = Parameter("metric", "plain", "plain, or adam: in Adam's preconditioner")


def _floor(default: float | None, more: str = "") -> Parameter:
    return Parameter("floor", default, f"share of draws from the process's reference density{more}")


def _shape(default: tuple[int, ...]) -> Parameter:
    meaning = "of one example, for densities that are asked for before the first draw"
    return Parameter("shape", default, meaning)


_SHAPED = (
    Parameter(
        "base", "logit-normal", "what is shifted: logit-normal (kohya, musubi) or uniform (ai-toolkit)"
    ),
    Parameter("std", 1.0, "width of the logit-normal"),
    _shape((16, 128, 128)),
)
_RESOLUTION: dict[str, Any] = {"spellings": {"sigmoid_scale": "std"}, "process": "flow"}


SAMPLERS = (
    _sampler("uniform", "static:uniform", "every timestep equally often", "Ho et al. 2020 (DDPM)"),
    _sampler(
        "reference",
        "static:reference",
        "the density of the process's own objective: uniform for DDPM, log-normal sigma for EDM",
        "the process's paper",
    ),
    _sampler(
        "logit-normal",
        "static:logit_normal",
        "sigmoid of a normal: the middle of time (called log-normal by Kim et al.)",
        "Esser et al. 2024 (SD3)",
        Parameter("mean", 0.0, "above 0: towards noise (diffusers' SD3 index runs the other way)"),
        Parameter("std", 1.0, "width"),
        Parameter("as_published", False, "t = round(u (T - 1)), as Kim et al.'s code maps it"),
        spellings={"logit_mean": "mean", "logit_std": "std", "sigmoid_scale": "std"},
    ),
    _sampler(
        "log-normal-sigma",
        "static:log_normal_sigma",
        "normal in ln sigma: EDM's training density, on any process",
        "Karras et al. 2022 (EDM)",
        Parameter("mean", -1.2, "mean of ln sigma; EDM2: -0.4"),
        Parameter("std", 1.2, "its standard deviation; EDM2: 1.0"),
        spellings={"P_mean": "mean", "P_std": "std"},
    ),
    _sampler(
        "mode",
        "static:mode",
        "the middle of time with heavy tails",
        "Esser et al. 2024 (SD3)",
        Parameter("scale", 1.29, "above 0: more of the middle"),
        spellings={"mode_scale": "scale"},
    ),
    _sampler(
        "cosmap",
        "static:cosmap",
        "the density of a cosine schedule, in flow time",
        "Esser et al. 2024 (SD3)",
    ),
    _sampler(
        "laplace",
        "static:laplace",
        "Laplace in log-SNR: concentrated where signal and noise are equal",
        "Hang et al. 2025 (Improved Noise Schedule, arXiv 2407.03297)",
        Parameter("mean", 0.0, "mean log-SNR"),
        Parameter("scale", 0.5, "width"),
    ),
    _sampler(
        "beta",
        "static:beta",
        "Beta(alpha, beta); by default somewhat more of the data end",
        "Zheng et al. 2024 (B-TTDM)",
        Parameter("alpha", 0.8, "below 1: the data end"),
        Parameter("beta", 1.0, "below 1: the noise end"),
        aliases=("b-ttdm",),
    ),
    _sampler(
        "flux",
        "by_shape:resolution_shift",
        "logit-normal, shifted towards noise for more tokens by FLUX.1's line: 256, 0.5 to 4096, 1.15",
        "Black Forest Labs 2024 (FLUX.1); as kohya and musubi-tuner train it",
        *_SHAPED,
        fixed={"low": (256, 0.5), "high": (4096, 1.15), "patch": 2},
        aliases=("flux-shift", "flux.1"),
        **_RESOLUTION,
    ),
    _sampler(
        "flux-2",
        "by_shape:resolution_shift",
        "FLUX.1's line for FLUX.2, whose latents are packed already: one token per position",
        "Black Forest Labs 2025 (FLUX.2); as musubi-tuner trains it",
        *_SHAPED,
        fixed={"low": (256, 0.5), "high": (4096, 1.15), "patch": 1},
        aliases=("flux2", "flux2-shift", "flux.2"),
        **_RESOLUTION,
    ),
    _sampler(
        "qwen-image",
        "by_shape:resolution_shift",
        "the same by Qwen-Image's line: 256, 0.5 to 8192, 0.9",
        "Wu et al. 2025 (Qwen-Image); as musubi-tuner trains it",
        *_SHAPED,
        fixed={"low": (256, 0.5), "high": (8192, 0.9), "patch": 2},
        aliases=("qwen", "qwen-shift"),
        **_RESOLUTION,
    ),
    _sampler(
        "krea",
        "by_shape:resolution_shift",
        "the same by Krea 2's line: 256, 0.5 to 6400, 1.15",
        "Krea (Krea 2); as musubi-tuner trains it",
        *_SHAPED,
        fixed={"low": (256, 0.5), "high": (6400, 1.15), "patch": 2},
        aliases=("krea-2", "krea2-shift"),
        **_RESOLUTION,
    ),
    _sampler(
        "resolution-shift",
        "by_shape:resolution_shift",
        "the same by a line and a patch size of your own",
        "Esser et al. 2024 (SD3), Section 5.3.2; the line after FLUX.1",
        Parameter("low", (256, 0.5), "(tokens, mu): one point of the line; the shift is exp(mu)"),
        Parameter("high", (4096, 1.15), "(tokens, mu): another point"),
        Parameter("patch", 2, "side of the squares of the latent that are one token"),
        *_SHAPED,
        **_RESOLUTION,
    ),
    _sampler(
        "dimension-shift",
        "by_shape:dimension_shift",
        "logit-normal, shifted by sqrt(numbers in an example / 4096)",
        "Zheng et al. 2025 (RAE, Diffusion Transformers with Representation Autoencoders)",
        Parameter("dimension", 4096, "numbers at which the shift is 1"),
        Parameter("std", 1.0, "width of the logit-normal"),
        _shape((768, 16, 16)),
        spellings={"time_dist_shift_base": "dimension"},
        aliases=("rae",),
        process="flow",
    ),
    _sampler(
        "ltx-2",
        "by_shape:ltx_2",
        "logit-normal, shifted by the count of tokens and stretched over all of time, a tenth uniform",
        "Lightricks (LTX-2, its trainer)",
        Parameter("std", 1.0, "width of the logit-normal"),
        Parameter("uniform_share", 0.1, "share of uniform draws"),
        _shape((128, 1, 32, 32)),
        spellings={"uniform_prob": "uniform_share"},
        aliases=("ltx", "shifted-logit-normal"),
        process="flow",
    ),
    _sampler(
        "pi0",
        "static:pi0",
        "Beta(1.5, 1) above 0.001: mostly noise, as robot policies train",
        "Black et al. 2024 (pi0); also GR00T and SmolVLA, in LeRobot",
        Parameter("alpha", 1.5, "above 1: the noise end"),
        Parameter("beta", 1.0, "above 1: the data end"),
        Parameter("least", 0.001, "the least unit time"),
        spellings={
            "time_sampling_beta_alpha": "alpha",
            "time_sampling_beta_beta": "beta",
            "time_sampling_offset": "least",
        },
        aliases=("groot", "smolvla", "openpi"),
    ),
    _sampler(
        "style-friendly",
        "static:style_friendly",
        "normal in log-SNR at -6: nearly only noise, where style is decided",
        "Choi et al. 2024 (Style-Friendly SNR Sampler, arXiv 2411.14793)",
        Parameter("mean", -6.0, "mean log-SNR"),
        Parameter("std", 2.0, "its standard deviation"),
        spellings={"logit_mean": "mean", "logit_std": "std"},
        aliases=("logsnr",),
    ),
    _sampler(
        "jit",
        "static:jit",
        "logit-normal with mean 0.8 towards noise (-0.8 in their time, where 1 is data)",
        "Li and He 2025 (JiT, arXiv 2511.13720)",
        Parameter("mean", 0.8, "above 0: towards noise"),
        Parameter("std", 0.8, "width"),
    ),
    _sampler(
        "u-shaped",
        "static:u_shaped",
        "both ends of time: for a second rectification (reflow)",
        "Lee et al. 2024 (Improving the Training of Rectified Flows, arXiv 2405.20320)",
        Parameter("scale", 4.0, "e^(scale u) + e^(scale (1 - u)); larger: more of the ends"),
        aliases=("reflow",),
    ),
    _sampler(
        "speed",
        "speed:speed",
        "fewer draws where the process has converged",
        "Wang et al. 2024 (SpeeD, A Closer Look at Time Steps)",
        Parameter("version", "current", "current, legacy (what Kim et al. compare with) or lognorm"),
        Parameter("tau", 0.7, "where convergence begins, a share of time; auto: where 1 % is signal"),
        Parameter("suppression", 5.0, "how many times fewer draws there"),
        Parameter("dual", True, "pair early with late timesteps"),
        Parameter("as_published", False, "pair within the batch; thresholds in absolute timesteps"),
        spellings={"k": "suppression"},
    ),
    _sampler(
        "table",
        "static:table",
        "your own density, piecewise constant",
        "your own",
        Parameter("masses", None, "one per bin, any scale", required=True),
        Parameter("borders", None, "rising from 0 to 1; equal bins by default"),
        spellings={"weights": "masses"},
    ),
    Entry(
        "sampler",
        "over-steps",
        "stepwell.catalogue.stages:staged",
        "one sampler for each stage of training, by optimizer step",
        "your own",
        (
            Parameter(
                "stages",
                None,
                "[0 uniform; 2000 logit-normal:mean=1]: from which optimizer step on which sampler",
                required=True,
            ),
            Parameter("blend", "switch", "switch at the step, or linear: move over between the steps"),
        ),
    ),
    _sampler(
        "loss-second-moment",
        "losses:loss_second_moment",
        "in proportion to the root of the mean squared loss",
        "Nichol and Dhariwal 2021 (improved DDPM)",
        Parameter("history", 10, "losses kept per bin; uniform draws until all bins are full"),
        Parameter("uniform_share", 0.001, "share of uniform draws"),
        Parameter("bins", None, "one per timestep by default"),
        spellings={"history_per_term": "history", "uniform_prob": "uniform_share"},
        learns=True,
        unbiased=True,
    ),
    _sampler(
        "loss-ema",
        "losses:loss_ema",
        "in proportion to the running mean of the weighted loss",
        "Kingma and Gao 2023 (Understanding Diffusion Objectives as the ELBO)",
        *_LOSS_EMA,
        Parameter("uniform_share", 0.01, "share of uniform draws; bounds the correction"),
        learns=True,
        unbiased=True,
    ),
    _sampler(
        "loss-root",
        "losses:loss_root",
        "in proportion to weight x root of the loss: neyman without gradients",
        "Stepwell; after Katharopoulos and Fleuret 2018 (gradient at the output)",
        *_LOSS_EMA,
        Parameter("uniform_share", 0.1, "share of draws from the process's reference density"),
        learns=True,
        stratified=True,
        unbiased=True,
    ),
    _sampler(
        "auto",
        "auto:auto",
        "by the root of the loss, as far as it is known; the reference where that saves little",
        "Stepwell; after Neyman 1934 and Katharopoulos and Fleuret 2018",
        Parameter("bins", 64, "bins of time that losses are averaged in; neighbours are smoothed"),
        Parameter("floor", 0.2, "share of draws from the process's reference density"),
        Parameter(
            "least_gain",
            0.02,
            "share of the gradient's variance that must be saved, or it draws the reference",
        ),
        learns=True,
        stratified=True,
        unbiased=True,
    ),
    _sampler(
        "info-noise",
        "losses:info_noise",
        "where noise destroys information fastest, from the losses (I-MMSE)",
        "Raya et al. 2026 (InfoNoise, arXiv 2602.18647)",
        *_LOSS_EMA,
        Parameter("uniform_share", 0.001, "share of uniform draws: no time is lost for good"),
        aliases=("infonoise",),
        learns=True,
    ),
    _sampler(
        "neyman",
        "gradients:neyman",
        "in proportion to the gradient's standard deviation: least noise for the same objective",
        "Stepwell; Neyman 1934 (optimum allocation)",
        *_STRATA,
        _floor(0.2),
        _METRIC,
        learns=True,
        stratified=True,
        unbiased=True,
    ),
    _sampler(
        "gradient-variance",
        "gradients:gradient_variance",
        "in proportion to the gradient's variance, which changes the objective: a control",
        "Kim et al. 2025, Table 4",
        *_STRATA,
        _floor(0.0),
        _METRIC_PLAIN,
        learns=True,
    ),
    _sampler(
        "alignment",
        "gradients:alignment",
        "where an update lowers the target most, to first order",
        "Stepwell; the goal of Kim et al. 2025",
        _STRATA[0],
        _EVERY_24,
        *_STRATA[2:],
        _floor(0.2),
        Parameter("target", "vlb", "weighting of the objective to lower: vlb (the bound), simple, ..."),
        _METRIC,
        learns=True,
        stratified=True,
    ),
    _sampler(
        "beta-policy",
        "beta_policy.sampler:beta_policy",
        "a policy network chooses a Beta density for every example and is rewarded for lower losses",
        "Kim et al. 2025 (Adaptive Non-uniform Timestep Sampling, CVPR)",
        Parameter("credit", "decrease", "the reward: each example's decrease (the paper), or alignment"),
        Parameter("target", None, "weighting of the objective to lower; None: vlb (the paper)"),
        Parameter("every_steps", None, "steps between policy updates; None: 40, or 16 for alignment"),
        Parameter("queue", 20, "rows of measured decreases that the subset is chosen from"),
        Parameter("subset", 3, "number of timesteps that stand for all in the reward, or all"),
        Parameter("selection", "f", "how they are chosen: f (the paper), forward, random or grid"),
        Parameter(
            "grid", None, "timesteps in a row; None: 50 (neighbours are alike), or all (paper, as_published)"
        ),
        Parameter("entropy", None, "weight of the entropy bonus; None: 0.01, or 0.5 for alignment"),
        Parameter(
            "learning_rate",
            None,
            "of the policy; None: 1e-2 on DDPM's linear and quadratic schedules, 1e-3 on all others "
            "(the paper's Tables 7 to 9); 1e-2 for alignment",
        ),
        Parameter("clip", 1.0, "largest norm of the policy's gradient"),
        Parameter(
            "hidden", None, "width of the policy; None: 128 (the paper on CIFAR-10), or 256 as_published"
        ),
        Parameter("conditional", True, "whether the density depends on the example"),
        _floor(None, "; None: 0.1, or 0 (paper, as_published)"),
        Parameter("as_published", False, "as the official code, where it differs from the default"),
        Parameter("paper", False, "as the paper says, wherever that is clear and the default differs"),
        learns=True,
        differences=BETA_POLICY,
    ),
)
