"""k-diffusion's density and weighting from a pacer."""

from __future__ import annotations

import pytest
import torch
from protocols import Tiny
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.integrations.k_diffusion import SampleDensity
from stepwell.pacer import Pacer


def test_a_density_is_called_as_theirs_and_follows_the_sampler() -> None:
    density = SampleDensity(Pacer("reference", "edm"))
    sigma = density([4096], device="cpu")
    assert sigma.shape == (4096,)
    # EDM's own: ln sigma is N(-1.2, 1.2); five standard errors, wrong in one of a million runs.
    assert float(sigma.log().mean()) == pytest.approx(-1.2, abs=5 * 1.2 / 64)
    assert float(sigma.log().std()) == pytest.approx(1.2, abs=5 * 1.2 / 90)
    assert torch.equal(density.weighting(sigma), torch.ones(4096))


def test_its_weighting_corrects_what_was_drawn_and_nothing_else() -> None:
    process = stepwell.process("edm")
    sampler = stepwell.sampler("uniform", process, unbiased=True)
    pacer = Pacer(sampler, process, "min-snr")
    density, bare = SampleDensity(pacer), stepwell.weighting("min-snr")
    sigma = density([512], device="cpu")
    u = process.unit_time(sigma.log() / 4)
    expected = process.reference.pdf(u) * bare(process, u)
    assert torch.allclose(density.weighting(sigma), expected, rtol=1e-2, atol=1e-4)
    other = sigma.flip(0)
    assert torch.allclose(density.weighting(other), bare(process, u.flip(0)), rtol=1e-3)


def test_its_observed_losses_are_plain() -> None:
    process = stepwell.process("edm")
    pacer = Pacer("loss-ema", process, "min-snr")
    observed: list[Tensor] = []
    pacer.observe = observed.append  # type: ignore[method-assign, assignment]
    density = SampleDensity(pacer)
    sigma, plain = density([8]), torch.linspace(1, 2, 8)
    density.observe(plain * density.weighting(sigma))
    assert torch.allclose(observed[0], plain)


def test_mistakes_with_a_density_are_named() -> None:
    with pytest.raises(InvalidParameter, match=r"stepwell\.process\('edm'"):
        SampleDensity(Pacer("uniform", "linear"))
    network = Tiny()
    ready = stepwell.loss_at.edm(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    density = SampleDensity(Pacer("neyman", "edm", loss_at=ready).attach(optimizer))
    with pytest.raises(InvalidParameter, match=r"write sample_density\(reals, device=device\)"):
        density([8], device="cpu")
    with pytest.raises(InvalidParameter, match="one time is drawn for each example"):
        SampleDensity(Pacer("uniform", "edm"))([8, 3])
