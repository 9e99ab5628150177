"""Metrics: read from a score, named and printed."""

from __future__ import annotations

import math

import pytest

from stepwell.catalogue.find import names
from stepwell.runs.metrics import BITS, FRECHET, KERNEL, OBJECTIVES, PSNR, SCORED, features_of, loss

SCORE = {
    "objective/simple": 0.5,
    "bits_per_dimension": {"decoder": 1.0, "diffusion": 2.0, "prior": 0.5, "total": 3.5},
    "fashion16_features": {
        "generated": 100,
        "frechet_distance": 22.5,
        "kernel_distance": -1e-4,
        "kernel_distance_standard_error": 2e-4,
    },
    "super_resolution": {"images": 4, "psnr": 20.0, "psnr_of_plain_enlargement": 21.5},
}


def test_every_metric_is_read_and_printed_from_a_score() -> None:
    assert [metric.read(SCORE) for metric in (loss("simple"), *SCORED)] == [0.5, 3.5, 22.5, -1e-4, 20.0]
    assert all(math.isnan(metric.read({})) for metric in SCORED)
    assert loss("none").text(SCORE) == "0.50000"
    assert BITS.text(SCORE) == "3.5000 (decoder 1.0000, diffusion 2.0000, prior 0.5000)"
    assert KERNEL.text(SCORE) == "-0.000100 (± 0.000200)"
    assert PSNR.text(SCORE) == "20.00 dB (4 images; plain enlargement: 21.50 dB)"


def test_only_inceptions_features_give_fid_and_kid() -> None:
    assert features_of(SCORE) == "fashion16"
    assert FRECHET.name(features_of(SCORE)) == "Fréchet distance on fashion16 features (not FID)"
    assert (FRECHET.name("inception"), KERNEL.name("inception")) == ("FID", "KID")
    assert PSNR.name("inception") == "PSNR"


def test_losses_have_the_names_of_their_weightings() -> None:
    assert [loss(name).title for name in ("simple", "bound", "min-snr")] == [
        "simple loss",
        "bound",
        "min-snr loss",
    ]
    assert loss("simple") == loss("none") == loss("objective/simple") == loss("objective/none")
    assert set(OBJECTIVES.values()) <= set(names("weighting"))


@pytest.mark.parametrize("metric", [metric for metric in SCORED if metric.heading])
def test_a_better_value_has_a_smaller_error(metric) -> None:
    low, high = metric.error(20.0), metric.error(30.0)
    assert (high < low) is metric.higher_is_better
    assert low > 0
