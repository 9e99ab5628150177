"""Densities of methods by their formulas, and as runs have recorded them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import stepwell
from stepwell.analyze.densities import BINS, Densities, of_method, of_run
from stepwell.core.density import centres
from stepwell.core.errors import StepwellError

U = centres(BINS)
LINEAR = stepwell.process("linear")
STATIC = ("uniform", "logit-normal", "speed", "mode")


def shown(sampler: str, weighting: str = "none", process: str = "linear", **given: Any) -> Densities:
    over = stepwell.process(process)
    chosen = stepwell.sampler(sampler, over, **given)
    return of_method(f"{sampler}+{weighting}", chosen, stepwell.weighting(weighting), over)


@pytest.mark.parametrize("name", STATIC)
def test_a_static_sampler_shows_its_density(name: str) -> None:
    found = shown(name)
    wanted = stepwell.sampler(name, LINEAR).density(U).double()
    assert found.moments[0].density == pytest.approx(wanted.tolist())
    assert found.compared[0] == pytest.approx((wanted / wanted.mean()).tolist())
    assert (found.learns, found.corrected, found.timesteps) == (False, False, 1000)


def test_weights_are_shown_as_probabilities() -> None:
    # Min-SNR on eps: min(SNR, 5) / SNR (Hang et al. 2023), times even draws.
    snr = LINEAR.log_snr(U).exp()
    weight = snr.clamp(max=5) / snr
    found = shown("uniform", "min-snr")
    assert found.moments[0].density == pytest.approx([1.0] * BINS)
    assert found.compared[0] == pytest.approx((weight / weight.mean()).tolist(), rel=1e-5)


def test_a_sampler_and_a_weighting_multiply() -> None:
    # P2 with gamma 1 and k 1 is 1 - abar (Choi et al. 2022).
    weight = 1 / (1 + LINEAR.log_snr(U).exp())
    product = stepwell.sampler("logit-normal", LINEAR).density(U).double() * weight
    found = shown("logit-normal", "p2")
    assert found.compared[0] == pytest.approx((product / product.mean()).tolist(), rel=1e-5)


def test_corrected_draws_weigh_as_the_objective_and_are_told_by_their_density() -> None:
    found = shown("logit-normal", unbiased=True)
    assert found.corrected
    assert found.moments[0].effective == pytest.approx([1.0] * BINS)
    wanted = stepwell.sampler("logit-normal", LINEAR).density(U).tolist()
    assert found.compared[0] == found.moments[0].density == pytest.approx(wanted, rel=1e-4)


def written(path: Path, *records: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def evaluation(step: int, height: float) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "density": [height] * 4, "effective_weight": [1.0] * 4}


def read(path: Path) -> Densities:
    return of_run("run", path, stepwell.sampler("neyman", LINEAR), LINEAR)


def test_a_run_shows_what_it_recorded(tmp_path: Path) -> None:
    records = [{"kind": "train", "step": 3}, *(evaluation(step, step / 10) for step in (10, 20, 30, 40, 50))]
    found = read(written(tmp_path / "run", *records))
    assert [at.step for at in found.moments] == [10, 20, 30, 40, 50]
    assert [at.step for at in found.selected()] == [10, 30, 50]
    assert found.compared[2] == (3.0,) * 4, "neyman corrects its draws: their density is compared"
    assert found.learns
    assert json.loads(json.dumps(asdict(found)))["moments"][4]["density"] == [5.0] * 4


def test_few_moments_are_told_once(tmp_path: Path) -> None:
    assert [at.step for at in read(written(tmp_path, evaluation(7, 1.0))).selected()] == [7]
    assert [at.step for at in read(written(tmp_path, evaluation(7, 1), evaluation(9, 1))).selected()] == [
        7,
        9,
    ]


def test_runs_without_densities_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StepwellError, match="has not been trained yet"):
        read(tmp_path)
    with pytest.raises(StepwellError, match="train it with evaluate_every=N"):
        read(written(tmp_path, {"kind": "train", "step": 1}))
    for record in ([1], {**evaluation(1, 1.0), "density": None}, {**evaluation(1, 1.0), "density": [1.0]}):
        with pytest.raises(StepwellError, match="an invalid record"):
            read(written(tmp_path, record))


def test_weights_that_leave_nothing_are_refused() -> None:
    with pytest.raises(StepwellError, match="no effective density"):
        of_method(
            "nothing", stepwell.sampler("uniform", LINEAR), lambda process, u: torch.zeros_like(u), LINEAR
        )
