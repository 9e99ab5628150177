"""Densities that follow the shape of x0: published values, published draws, any number of dimensions."""

from __future__ import annotations

import math

import pytest
import torch
from published import assert_printed

import stepwell
from stepwell.core.errors import InvalidParameter, StateMismatch, Unsupported

HALF = torch.tensor([0.5], dtype=torch.float64)
DRAWS = 200_000
LARGEST = 2.69 / math.sqrt(DRAWS)
"""Of the Kolmogorov-Smirnov distance: more comes by chance once in a million runs."""


def median(name: str, *shape: int, **parameters: object) -> float:
    sampler = stepwell.sampler(name, "flow", **parameters)
    return float(sampler.from_uniform(HALF, torch.zeros(1, *shape), stepwell.Tick()).u)


def odds(u: float) -> list[float]:
    return [u / (1 - u)]


@pytest.mark.parametrize(
    ("name", "shape", "printed"),
    [
        ("flux", (16, 32, 32), "1.6487"),
        ("flux", (16, 64, 64), "1.8776"),
        ("flux", (16, 128, 128), "3.1582"),
        ("flux", (16, 1, 128, 128), "3.1582"),
        ("flux", (4096, 64), "3.1582"),
        ("flux-2", (128, 64, 64), "3.1582"),
        ("qwen-image", (16, 32, 32), "1.6487"),
        ("qwen-image", (16, 128, 128), "2.0008"),
        ("qwen-image", (16, 1, 128, 128), "2.0008"),
        ("qwen-image", (8192, 64), "2.4596"),
        ("krea", (16, 128, 128), "2.475"),
        ("krea", (16, 1, 128, 128), "2.475"),
        ("krea", (6400, 64), "3.1582"),
        ("dimension-shift", (768, 16, 16), "6.9282"),
        ("dimension-shift", (256, 768), "6.9282"),
        ("dimension-shift", (4, 32, 32), "1"),
    ],
)
def test_the_median_is_at_the_published_shift(name: str, shape: tuple[int, ...], printed: str) -> None:
    assert_printed(odds(median(name, *shape)), printed)


def test_a_line_of_ones_own() -> None:
    own = {"low": (100, 0.0), "high": (400, math.log(4)), "patch": 4}
    assert odds(median("resolution-shift", 3, 80, 80, **own)) == pytest.approx([4])
    assert odds(median("resolution-shift", 3, 40, 40, **own)) == pytest.approx([1])


def test_uniform_draws_can_be_shifted_instead() -> None:
    sampler = stepwell.sampler("flux", "flow", base="uniform")
    x0, v = torch.zeros(3, 16, 128, 128), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    shift = math.exp(1.15)
    torch.testing.assert_close(
        sampler.from_uniform(v, x0, stepwell.Tick()).u, shift * v / (1 + (shift - 1) * v)
    )


def normal(seed: int) -> torch.Tensor:
    return torch.randn(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def line(n: float, few: float, at_few: float, many: float, at_many: float) -> float:
    slope = (at_many - at_few) / (many - few)
    return slope * n + at_few - slope * few


def shifted(seed: int, mu: float) -> torch.Tensor:
    """musubi-tuner: a sigmoid of normals, then the shift by exp(mu)."""
    t, s = torch.sigmoid(normal(seed)), math.exp(mu)
    return t * s / (1 + (s - 1) * t)


def of_flux(seed: int, n: int) -> torch.Tensor:
    return shifted(seed, line(n, 256, 0.5, 4096, 1.15))


def of_qwen(seed: int, n: int) -> torch.Tensor:
    return shifted(seed, line(n, 256, 0.5, 8192, 0.9))


def of_krea(seed: int, n: int) -> torch.Tensor:
    return shifted(seed, line(n, 256, 0.5, 6400, 1.15))


def of_ltx(seed: int, n: int) -> torch.Tensor:
    """LTX-2's trainer: stretched between two percentiles, reflected at 0.001, clamped, a tenth uniform."""
    mu, least = line(n, 1024, 0.95, 4096, 2.05), 1e-3
    x = torch.sigmoid(normal(seed) + mu)
    low, high = (1 / (1 + math.exp(-(mu + z))) for z in (-2.5758, 3.0902))
    raw = (x - low) / (high - low)
    stretched = torch.where(raw >= least, raw, 2 * least - raw).clamp(0, 1)
    generator = torch.Generator().manual_seed(seed + 1)
    even, coin = (torch.rand(DRAWS, dtype=torch.float64, generator=generator) for _ in range(2))
    return torch.where(coin > 0.1, stretched, (1 - least) * even + least)


def of_rae(seed: int, n: int) -> torch.Tensor:
    """RAE on latents of 768 numbers a token."""
    t, s = torch.sigmoid(normal(seed)), math.sqrt(n * 768 / 4096)
    return s * t / (1 + (s - 1) * t)


SHAPES = {256: (16, 32, 32), 1024: (16, 64, 64), 4096: (16, 128, 128)}


@pytest.mark.parametrize("n", SHAPES)
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("flux", of_flux),
        ("qwen-image", of_qwen),
        ("krea", of_krea),
        ("ltx-2", of_ltx),
        ("dimension-shift", of_rae),
    ],
)
def test_draws_are_those_of_published_code(name: str, published: object, n: int) -> None:
    assert callable(published)
    theirs = published(n, n).sort().values
    channels, side = SHAPES[n][0], SHAPES[n][-1]
    of_tokens = {"ltx-2": (128, n // 16, 4, 4), "dimension-shift": (n, 768)}
    x0 = torch.zeros(1, *of_tokens.get(name, (channels, side, side)))
    mass = stepwell.sampler(name, "flow").cdf(theirs.clamp(max=1 - 1e-9), x0)
    # LTX-2 clamps a thousandth of its draws to 1 exactly, which our last bin spreads.
    slack = 0.001 if name == "ltx-2" else 0.0
    counted = torch.arange(1, DRAWS + 1) / DRAWS
    assert float((mass - counted).abs().max()) < LARGEST + slack


def test_the_percentiles_of_ltx_2() -> None:
    mu = 2.05
    low, high = (1 / (1 + math.exp(-(mu + z))) for z in (-2.5758, 3.0902))
    assert_printed([low, high], "0.3715 0.9942")
    sampler, x0 = stepwell.sampler("ltx-2", "flow", uniform_share=0.0), torch.zeros(1, 4096, 128)
    # The middle of the logit-normal, stretched.
    stretched = (1 / (1 + math.exp(-mu)) - low) / (high - low)
    below = float(sampler.cdf(torch.tensor([stretched], dtype=torch.float64), x0))
    # The half per cent below the lower percentile is reflected to above it.
    assert below == pytest.approx(0.5, abs=2e-3)
    assert float(sampler.density(torch.tensor([5e-4]), x0)) == 0, "reflected at 0.001"


@pytest.mark.parametrize("name", ["flux", "ltx-2", "dimension-shift"])
@pytest.mark.parametrize("shape", [(1024, 16), (16, 64, 64), (16, 3, 64, 64)])
def test_densities_integrate_to_one_and_draws_have_them(name: str, shape: tuple[int, ...]) -> None:
    sampler, x0 = stepwell.sampler(name, "flow"), torch.zeros(512, *shape)
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    assert float(sampler.density(u, x0).mean()) == pytest.approx(1, abs=1e-4)
    drawn = sampler.draw(x0, stepwell.Tick(seed=3))
    torch.testing.assert_close(drawn.log_prob.exp(), sampler.density(drawn.u, x0), rtol=1e-3, atol=1e-3)


def test_packed_latents_are_drawn_like_unpacked_ones() -> None:
    packed, whole = torch.zeros(32, 4096, 64), torch.zeros(32, 16, 128, 128)
    one, other = (stepwell.sampler("flux", "flow").draw(x0, stepwell.Tick()) for x0 in (packed, whole))
    assert torch.equal(one.u, other.u)


def test_without_x0_the_density_is_of_the_shape_drawn_last_and_is_resumed() -> None:
    u = torch.linspace(0.1, 0.9, 9)
    sampler, small = stepwell.sampler("flux", "flow"), torch.zeros(2, 16, 32, 32)
    large = sampler.density(u)
    sampler.draw(small, stepwell.Tick())
    assert torch.equal(sampler.density(u), sampler.density(u, small))
    assert not torch.allclose(sampler.density(u), large)
    resumed = stepwell.sampler("flux", "flow")
    resumed.load_state_dict(sampler.state_dict())
    assert torch.equal(resumed.density(u), sampler.density(u))
    with pytest.raises(StateMismatch, match="resolution-shift"):
        stepwell.sampler("krea", "flow").load_state_dict(sampler.state_dict())


def test_corrected_draws_of_two_resolutions_keep_the_objective() -> None:
    sampler = stepwell.sampler("flux", "flow", floor=0.2, unbiased=True, stratified=True)
    for side in (32, 128):
        drawn = sampler.draw(torch.zeros(4096, 16, side, side), stepwell.Tick(seed=side))
        assert float((drawn.correction * drawn.u).mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: median("flux", 16), r"examples of shape \(16,\) have no tokens"),
        (lambda: median("flux", 3, 1, 1), "have no tokens in patches of 2"),
        (lambda: stepwell.sampler("flux", "flow", shape=(3, 0, 4)), "sizes of one example"),
        (lambda: stepwell.sampler("resolution-shift", "flow", low=7), r"a pair \(tokens, mu\)"),
        (lambda: stepwell.sampler("resolution-shift", "flow", low=(9, 1), high=(9, 2)), "different counts"),
        (lambda: stepwell.sampler("flux", "flow", base="uniform", std=2.0), "base=uniform has none"),
    ],
)
def test_what_is_no_image_is_told(call: object, said: str) -> None:
    assert callable(call)
    with pytest.raises(InvalidParameter, match=said):
        call()


@pytest.mark.parametrize("name", ["flux", "ltx-2", "dimension-shift", "uniform:shift=3"])
def test_a_shift_is_for_flows_that_have_none_yet(name: str) -> None:
    with pytest.raises(Unsupported, match="no flow|is none"):
        stepwell.sampler(name, "linear")
    with pytest.raises(Unsupported, match="already shifts its timesteps by 3"):
        stepwell.sampler(name, "flow:shift=3")
