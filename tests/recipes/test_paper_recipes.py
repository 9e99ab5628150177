"""Every hyper-parameter of Kim et al. 2025, Tables 5 to 9, is what its recipe resolves to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stepwell.catalogue import build as named
from stepwell.catalogue.spec import split_spec
from stepwell.compare.study import load_study
from stepwell.compare.trials import final_trials, require_sound
from stepwell.core.probe import DecreaseSpec
from stepwell.recipes.load import load
from stepwell.recipes.meta_flops import meta_network, shape_of
from stepwell.recipes.method import first_words, study_files, workload_files
from stepwell.samplers.beta_policy.policy import prepared

CIFAR10: dict[str, Any] = {
    "model": "ddpm-cifar10",
    "dropout": 0.1,
    "batch": 128,
    "lr": 2e-4,
    "optimizer": "adam",
    "beta1": 0.9,
    "beta2": 0.999,
    "weight_decay": 0.0,
    "warm_up_steps": 5000,
    "clip": 1.0,
    "ema": 0.9999,
    "ema_kind": "constant",
    "solver": "ddpm",
    "sample_steps": 1000,
    "learned_variance": False,
    "accumulate": 1,
}
TABLES: dict[str, dict[str, Any]] = {
    "cifar10-ddpm": {**CIFAR10, "process": "linear:timesteps=1000", "steps": 1_000_000},
    "cifar10-ddpm-cosine": {**CIFAR10, "process": "cosine:timesteps=1000", "steps": 600_000},
    "cifar10-ddpm-quadratic": {**CIFAR10, "process": "quadratic:timesteps=1000", "steps": 800_000},
    "celebahq256-ldm": {
        "model": "ldm-celebahq",
        "process": "scaled-linear:timesteps=1000,beta_start=0.0015,beta_end=0.0195",
        "optimizer": "adamw",
        "beta1": 0.9,
        "beta2": 0.999,
        "lr": 1.92e-4,
        "batch": 24,
        "accumulate": 4,
        "steps": 300 * 30_000 // (4 * 24),
        "solver": "ddim",
        "sample_steps": 200,
    },
    "imagenet256-uvit": {
        "model": "uvit-imagenet",
        "process": "cosine:timesteps=1000",
        "method": "min-snr",
        "optimizer": "adamw",
        "beta1": 0.99,
        "beta2": 0.99,
        "lr": 2e-4,
        "batch": 256,
        "steps": 1_000_000,
        "ema": 0.9999,
        "labels": True,
        "classes": 1000,
        "solver": "heun",
        "sample_steps": 50,
    },
}
"""Tables 1 to 3 (steps), 5 (networks), 6 (solvers) and 7 to 9 (the rest)."""


@pytest.mark.parametrize("name", TABLES)
def test_hyper_parameters(name: str) -> None:
    recipe = load(name, ["data=/some/folder"]).recipe
    assert {key: getattr(recipe, key) for key in TABLES[name]} == TABLES[name]


POLICIES = {
    ("cifar10-ddpm", "beta-policy"): (1e-2, 128),
    ("cifar10-ddpm", "beta-policy:as_published=true,hidden=128"): (1e-2, 128),
    ("cifar10-ddpm-quadratic", "beta-policy"): (1e-2, 128),
    ("cifar10-ddpm-cosine", "beta-policy"): (1e-3, 128),
    ("cifar10-ddpm", "beta-policy:paper=true"): (1e-2, 128),
    ("cifar10-ddpm-cosine", "beta-policy:paper=true"): (1e-3, 128),
    ("celebahq256-ldm", "beta-policy:paper=true,hidden=256"): (1e-3, 256),
    ("imagenet256-uvit", "beta-policy:paper=true,hidden=256+min-snr"): (1e-3, 256),
    ("celebahq256-ldm", "beta-policy:learning_rate=1e-3,hidden=256"): (1e-3, 256),
    ("celebahq256-ldm", "beta-policy:as_published=true,learning_rate=1e-3"): (1e-3, 256),
    ("celebahq256-ldm", "beta-policy:as_published=true"): (1e-3, 256),
    ("imagenet256-uvit", "beta-policy:hidden=256+min-snr"): (1e-3, 256),
    ("imagenet256-uvit", "beta-policy:as_published=true+min-snr"): (1e-3, 256),
    # The same with every setting of Tables 7 to 9 written out.
    (
        "celebahq256-ldm",
        "beta-policy:learning_rate=1e-3,entropy=1e-2,every_steps=40,queue=20,subset=3,hidden=256",
    ): (1e-3, 256),
}
"""By workload and method: the policy's learning rate and width."""


@pytest.mark.parametrize(("workload", "method"), POLICIES)
def test_sampler_settings(workload: str, method: str) -> None:
    plan = load(workload, ["data=/some/folder", f"method={method}"])
    sampler: Any = plan.sampler()
    rate, hidden = POLICIES[workload, method]
    assert sampler._policy.settings.learning_rate == pytest.approx(rate)
    assert sampler._policy.settings.clip == 1.0
    assert isinstance(sampler.probe, DecreaseSpec)
    assert sampler.probe.every_steps == 40, "f_S"
    assert len(sampler.probe.subset) == 3, "|S|"
    assert sampler._credit._length == 20, "|Q|"
    assert sampler._credit._entropy == 1e-2
    x0 = torch.zeros((2, *shape_of(plan.recipe)))
    sampler._policy.improve(prepared(x0), lambda shapes: shapes.sum(1), seed=0)
    (trained,) = sampler._policy._trained.values()
    widths = [layer.weight.shape for layer in trained.network.linear]
    assert [int(shape[0]) for shape in widths] == [hidden, hidden, 2], "two hidden layers"
    assert trained.network.convolutions[0].weight.shape[1] == x0.shape[1], "as many channels as the examples"


@pytest.mark.parametrize(
    ("name", "parameters"),
    # Ho et al. 2020; Rombach et al. 2022, Tab. 12; Table 9's width and depth, as U-ViT counts.
    [("cifar10-ddpm", 35.7e6), ("celebahq256-ldm", 274e6), ("imagenet256-uvit", 225e6)],
)
def test_networks(name: str, parameters: float) -> None:
    recipe = load(name, ["data=/some/folder"]).recipe
    network = meta_network(recipe, shape_of(recipe), recipe.classes or 0)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(parameters, rel=2e-3)


def test_ldm_calls_linear_what_is_scaled_linear() -> None:
    name, given = split_spec(load("celebahq256-ldm", ["data=/some/folder"]).recipe.process)
    process: Any = named.process(name, **given)
    wanted = torch.linspace(0.0015**0.5, 0.0195**0.5, 1000, dtype=torch.float64).square()
    torch.testing.assert_close(process.betas().to(torch.float64), wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", [*TABLES, "latents"])
def test_recipes_open_with_their_commands_and_a_summary(name: str) -> None:
    path = workload_files()[name]
    lines = path.read_text().splitlines()
    commands = [line for line in lines if line.startswith("#") and "stepwell " in line]
    verbs = ["train", "generate"] if name == "latents" else ["train", "generate", "evaluate"]
    for verb in verbs:
        assert any(f"stepwell {verb} " in line for line in commands)
    assert "Kim et al. 2025" in first_words(path) or name == "latents"
    assert len(first_words(path)) < 120
    assert max(map(len, lines)) <= 130


FULL = {
    "table1-full": ("cifar10-ddpm", ["uniform", "p2", "min-snr", "logit-normal", "speed-legacy"]),
    "table2-full": ("celebahq256-ldm", ["uniform", "p2", "min-snr", "logit-normal", "speed-legacy"]),
    "table3-full": ("imagenet256-uvit", ["min-snr"]),
}


@pytest.mark.parametrize("name", FULL)
def test_full_studies_have_the_papers_rows_and_ours(name: str, tmp_path: Any) -> None:
    recipe, rows = FULL[name]
    study = load_study(name, ["data=/some/folder"])
    require_sound(study)
    assert list(study.methods[: len(rows)]) == rows
    assert study.methods[len(rows)].startswith("beta-policy:as_published=true")
    weighting = "+min-snr" if name == "table3-full" else ""
    for ours in ("beta-policy:credit=alignment", "alignment", "neyman"):
        assert f"{ours}{weighting}" in study.methods
    trials = final_trials(study, tmp_path, None)
    assert len(trials) == len(study.workloads) * len(study.methods) * len(study.seeds)
    assert all(first["recipe"].startswith(recipe) for first in study.workloads.values())
    # Nothing of the paper's run is changed but the method and the seed.
    for trial in trials[:3]:
        plain = load(study.workloads[trial.workload]["recipe"], ["data=/some/folder"]).recipe
        assert (trial.recipe.steps, trial.recipe.lr) == (plain.steps, plain.lr)
    assert study.effort["generated"] == 50_000
    assert name in study_files()
