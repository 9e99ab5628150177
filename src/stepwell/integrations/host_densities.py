"""The densities that trainers have by name, and how each is set there. Imports no torch.

A trainer that reads no list of timesteps can still be given the one of its own densities that lies nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from stepwell.integrations.host_formats import Models

Family = Literal["uniform", "logit-normal", "beta", "mode", "cosmap", "range", "biased-range"]
"""Densities with parameters that `nearest` can fit; `uniform` has a shift."""


@dataclass(frozen=True)
class Setting:
    """One density of a host, over its time from 0 (data) to 1 (noise)."""

    family: Family
    written: Callable[[Mapping[str, float]], str]
    """The host's setting for the parameters, which are our names' own."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Parameters that the host does not let you choose."""


@dataclass(frozen=True)
class Host:
    """A trainer and its own densities."""

    name: str
    title: str
    models: Models
    settings: tuple[Setting, ...]
    range_written: Callable[[float, float], str] | None = None
    """What is added to a setting to squeeze it into a range of time; None if that cannot be."""
    before_shift: bool = False
    """Whether its densities are over time before the shift that the process has."""


def _exp(mean: float) -> str:
    """A shift by s adds ln s to the logit of time (Esser et al. 2024, Eq. 23)."""
    return f"{math.exp(mean):.4g}"


def _thousandths(share: float) -> int:
    return round(1000 * share)


_KOHYA_FAMILY = (
    Setting(
        "logit-normal",
        lambda own: (
            "--timestep_sampling shift "
            f"--discrete_flow_shift {_exp(own['mean'])} --sigmoid_scale {own['std']:g}"
        ),
    ),
    Setting("uniform", lambda own: "--timestep_sampling uniform", {"shift": 1.0}),
)
"""Flags that musubi-tuner and sd-scripts share: they have one author."""

HOSTS = (
    Host(
        "musubi",
        "musubi-tuner",
        "flow",
        _KOHYA_FAMILY,
        lambda low, high: f" --min_timestep {_thousandths(low)} --max_timestep {_thousandths(high)}",
    ),
    Host(
        "kohya-flow",
        "kohya sd-scripts: FLUX, Lumina, HunyuanImage, Anima",
        "flow",
        (
            *_KOHYA_FAMILY,
            Setting(
                "mode",
                lambda own: (
                    "--timestep_sampling sigma --discrete_flow_shift 1 --weighting_scheme mode "
                    f"--mode_scale {own['scale']:g}"
                ),
            ),
        ),
    ),
    Host(
        "kohya-sd3",
        "kohya sd-scripts: SD3",
        "flow",
        (
            # There, and only there, logit_mean above 0 is towards noise.
            Setting(
                "logit-normal",
                lambda own: (
                    "--weighting_scheme logit_normal --training_shift 1 "
                    f"--logit_mean {own['mean']:g} --logit_std {own['std']:g}"
                ),
            ),
            Setting("uniform", lambda own: f"--weighting_scheme uniform --training_shift {own['shift']:g}"),
            Setting(
                "mode",
                lambda own: f"--weighting_scheme mode --training_shift 1 --mode_scale {own['scale']:g}",
            ),
        ),
        lambda low, high: f" --min_timestep {_thousandths(low)} --max_timestep {_thousandths(high)}",
    ),
    Host(
        "kohya",
        "kohya sd-scripts: SD 1.5, SD 2, SDXL",
        "ddpm",
        (
            Setting(
                "range",
                lambda own: f"--min_timestep {own['first']:g} --max_timestep {own['end']:g}",
            ),
        ),
    ),
    Host(
        "simpletuner-flags",
        "SimpleTuner, flow matching, without a list",
        "flow",
        (
            Setting(
                "logit-normal",
                lambda own: f"--flow_sigmoid_scale {own['std']:g} --flow_schedule_shift {_exp(own['mean'])}",
            ),
            Setting(
                "uniform", lambda own: f"--flow_use_uniform_schedule --flow_schedule_shift {own['shift']:g}"
            ),
            Setting(
                "beta",
                lambda own: (
                    "--flow_use_beta_schedule --flow_schedule_shift 0 "
                    f"--flow_beta_schedule_alpha {own['alpha']:g} --flow_beta_schedule_beta {own['beta']:g}"
                ),
            ),
        ),
    ),
    Host(
        "diffusers",
        "diffusers' scripts for SD3, Flux, Qwen-Image and others with --weighting_scheme",
        "flow",
        (
            # An index into timesteps that fall: 0 is noise.
            Setting(
                "logit-normal",
                lambda own: (
                    "--weighting_scheme logit_normal "
                    f"--logit_mean {0 - own['mean']:g} --logit_std {own['std']:g}"
                ),
            ),
            Setting("uniform", lambda own: "--weighting_scheme none", {"shift": 1.0}),
            Setting("mode", lambda own: f"--weighting_scheme mode --mode_scale {own['scale']:g}"),
        ),
        before_shift=True,
    ),
    Host(
        "timestep-bias",
        "diffusers' train_text_to_image_sdxl, and SimpleTuner with eps or v",
        "ddpm",
        (
            Setting(
                "biased-range",
                lambda own: (
                    "--timestep_bias_strategy range "
                    f"--timestep_bias_begin {own['first']:g} --timestep_bias_end {own['end']:g} "
                    f"--timestep_bias_multiplier {own['multiplier']:g}"
                ),
            ),
        ),
    ),
    Host(
        "nemo",
        "NeMo Automodel",
        "flow",
        (
            Setting(
                "logit-normal",
                lambda own: (
                    "timestep_sampling: logit_normal, flow_shift: 1.0, mix_uniform_ratio: 0.0, "
                    f"logit_mean: {own['mean']:g}, logit_std: {own['std']:g}"
                ),
            ),
            Setting(
                "uniform",
                lambda own: f"timestep_sampling: uniform, flow_shift: {own['shift']:g}",
            ),
            Setting(
                "beta",
                lambda own: (
                    f"timestep_sampling: beta, beta_alpha: {own['alpha']:g}, beta_beta: {own['beta']:g}"
                ),
            ),
        ),
    ),
    Host(
        "onetrainer",
        "OneTrainer",
        "any",
        (
            Setting(
                "logit-normal",
                lambda own: (
                    "timestep distribution LOGIT_NORMAL, timestep shift 1, "
                    f"noising weight {own['std'] - 1:g}, noising bias {own['mean']:g}"
                ),
            ),
            Setting("uniform", lambda own: f"timestep distribution UNIFORM, timestep shift {own['shift']:g}"),
            Setting(
                "mode",
                lambda own: (
                    f"timestep distribution HEAVY_TAIL, timestep shift 1, noising weight {own['scale']:g}"
                ),
            ),
            Setting("cosmap", lambda own: "timestep distribution COS_MAP, timestep shift 1"),
        ),
        lambda low, high: f", min noising strength {low:g}, max noising strength {high:g}",
    ),
    Host(
        "ai-toolkit",
        "ai-toolkit",
        "any",
        (
            Setting(
                "logit-normal",
                lambda own: "timestep_type: sigmoid, content_or_style: balanced",
                {"mean": 0.0, "std": 1.0},
            ),
            Setting(
                "uniform",
                lambda own: "timestep_type: linear, content_or_style: balanced",
                {"shift": 1.0},
            ),
            Setting(
                "beta",
                lambda own: "timestep_type: linear, content_or_style: content",
                {"alpha": 1.0, "beta": 1 / 3},
            ),
            Setting(
                "beta",
                lambda own: "timestep_type: linear, content_or_style: style",
                {"alpha": 1 / 3, "beta": 1.0},
            ),
        ),
    ),
    Host(
        "diffusion-pipe",
        "diffusion-pipe",
        "flow",
        (
            Setting(
                "logit-normal",
                lambda own: (
                    "timestep_sample_method = 'logit_normal', "
                    f"sigmoid_scale = {own['std']:g}, shift = {_exp(own['mean'])}"
                ),
            ),
            Setting(
                "uniform",
                lambda own: f"timestep_sample_method = 'uniform', shift = {own['shift']:g}",
            ),
        ),
    ),
    Host(
        "lerobot",
        "LeRobot: pi0, pi0.5",
        "flow",
        (
            Setting(
                "beta",
                lambda own: (
                    f"time_sampling_beta_alpha: {own['alpha']:g}, "
                    f"time_sampling_beta_beta: {own['beta']:g}, "
                    "time_sampling_scale: 1.0, time_sampling_offset: 0.0"
                ),
            ),
        ),
    ),
)
