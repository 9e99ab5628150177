"""Sketches keep inner products: exactly where they can, and else with the error that they state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from stepwell.core.errors import Unsupported
from stepwell.core.tick import stream_key, uniforms
from stepwell.probes.gradients import DIMENSIONS, Sketch

SHAPES = ((7, 5), (11,), (2, 3, 4), (1,))


def _parameters(shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Parameter]:
    return [Parameter(torch.zeros(shape)) for shape in shapes]


def _gradients(seed: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _flat(gradients: list[Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def test_few_coordinates_keep_their_inner_products_exactly() -> None:
    sketch, one, other = Sketch(_parameters()), _gradients(0), _gradients(1)
    assert sketch.width == 71
    for a, b in ((one, one), (one, other), (other, other)):
        found = (sketch(a).double() * sketch(b).double()).sum()
        torch.testing.assert_close(found, (_flat(a) * _flat(b)).sum(), rtol=1e-6, atol=1e-6)
    assert torch.equal(sketch(one).abs().sort().values, _flat(one).float().abs().sort().values)


@pytest.mark.parametrize("dimensions", [1, 5, 70, 71, 72, DIMENSIONS])
def test_a_sketch_is_linear(dimensions: int) -> None:
    sketch, one, other = Sketch(_parameters(), dimensions), _gradients(0), _gradients(1)
    both = [2 * a - 3 * b for a, b in zip(one, other, strict=True)]
    assert sketch(both).shape == (min(71, dimensions),)
    torch.testing.assert_close(sketch(both), 2 * sketch(one) - 3 * sketch(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dimensions", [5, DIMENSIONS])
def test_a_gradient_that_is_missing_is_zero(dimensions: int) -> None:
    sketch, gradients = Sketch(_parameters(), dimensions), _gradients(0)
    absent = sketch([gradients[0], None, gradients[2], None])
    zero = [gradients[0], torch.zeros(11), gradients[2], torch.zeros(1)]
    assert torch.equal(absent, sketch(zero))
    assert torch.equal(sketch([None] * 4), torch.zeros(sketch.width))


def test_half_precision_is_added_in_full() -> None:
    sketch, (gradient,) = Sketch([Parameter(torch.zeros(40_000))], 7), _gradients(0, ((40_000,),))
    rounded = gradient.bfloat16()
    assert torch.equal(sketch([rounded]), sketch([rounded.float()]))
    assert sketch([rounded]).dtype == torch.float32


def _products(one: Tensor, other: Tensor, repeats: int, dimensions: int = DIMENSIONS) -> Tensor:
    """The inner product, a share of |one||other|, as seen from each of `repeats` places, with signs each."""
    sketch = Sketch([Parameter(torch.zeros(repeats, *one.shape))], dimensions)
    found = []
    for place in range(repeats):
        pair = torch.zeros(2, repeats, *one.shape)
        pair[:, place] = torch.stack([one, other])
        found.append((sketch([pair[0]]).double() * sketch([pair[1]]).double()).sum())
    return torch.stack(found) / (one.double().norm() * other.double().norm())


@pytest.mark.parametrize("cosine", [0.0, 0.5, 1.0])
def test_inner_products_are_kept_in_expectation_with_the_stated_error(cosine: float) -> None:
    dimensions, repeats = 31, 400
    one, other = _gradients(3, ((300,), (300,)))
    other = cosine * one + (1 - cosine**2) ** 0.5 * other
    found = _products(one, other, repeats, dimensions)
    exact = (one.double() * other.double()).sum() / (one.double().norm() * other.double().norm())
    stated = (2 / dimensions) ** 0.5
    # Five standard errors: fails about once in a million, if it is unbiased.
    assert abs(found.mean() - exact) < 5 * stated / repeats**0.5
    # The standard deviation of 400 values is off by 4 %: five of these as well.
    error = (found - exact).square().mean().sqrt()
    assert error < 1.2 * stated
    # For Gaussian vectors the variance is (1 + cosine^2) / d, less a tenth: a coordinate has its own bucket.
    assert error > 0.7 * ((1 + cosine**2) / dimensions) ** 0.5


@pytest.mark.parametrize("inputs", [1024, 768, 128 * 9, 4096])
def test_an_input_that_stands_out_does_not_spoil_the_sketch(inputs: int) -> None:
    # A layer's gradient is the outer product of errors and inputs: one column then holds almost everything.
    errors, given = _gradients(5, ((128,), (inputs,)))
    given[7] = 1000.0
    gradient = torch.outer(errors, given)
    # One of 6 errors is above four times the stated one in less than one of two thousand runs.
    assert (_products(gradient, gradient, 6) - 1).abs().max() < 4 * (2 / DIMENSIONS) ** 0.5


def test_a_sketch_is_its_definition() -> None:
    # Ranks add theirs up: signs and places must be functions of the parameters' places alone.
    gradients = _gradients(0)
    signs = [uniforms(stream_key("sketch", place), g.numel()) for place, g in enumerate(gradients)]
    signed = _flat(gradients).float() * torch.where(torch.cat(signs) < 0.5, -1, 1)
    wanted = torch.zeros(13).index_add_(0, torch.arange(71) % 13, signed)
    torch.testing.assert_close(Sketch(_parameters(), 13)(gradients), wanted)
    other = Sketch(_parameters(), 13, signs="sketch/7")(gradients)
    assert not torch.allclose(other, wanted)


def test_parameters_that_were_frozen_since_do_not_fit() -> None:
    parameters = _parameters()
    sketch = Sketch(parameters)
    assert sketch.fits(parameters)
    assert not sketch.fits(parameters[1:])


def test_nothing_to_train_is_an_error_that_says_so() -> None:
    with pytest.raises(Unsupported, match="nothing to train"):
        Sketch([])([])
