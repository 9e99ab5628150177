"""SiT's Transport with a pacer: its times run the other way, its losses are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from protocols import Tiny, batch
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.integrations import sit
from stepwell.pacer import Pacer


def test_time_is_reversed_for_sit() -> None:
    import sit_protocol as theirs

    transport, seen = theirs.Transport(), []

    class Listening(Tiny):
        def forward(self, x: Tensor, time: Tensor, y: Tensor | None = None, **more: Any) -> Tensor:
            seen.append((x.detach(), time))
            return super().forward(x, time, y)

    network = Listening()
    pacer = Pacer(stepwell.sampler("uniform", sit.process_of(transport)), sit.process_of(transport))
    assert sit.pace(transport, pacer) is pacer
    x1 = batch(count=256)
    drawn: list[Any] = []
    own = pacer.draw
    pacer.draw = lambda *args, **kwargs: drawn.append(own(*args, **kwargs)) or drawn[-1]  # type: ignore[method-assign]
    terms = transport.training_losses(network, x1, {"y": torch.zeros(256)})
    (shown, time), pace = seen[0], drawn[0]
    assert torch.allclose(time, 1 - pace.u, atol=1e-6)
    # Near its time 1 it sees data.
    late = time > 0.95
    assert (shown - x1)[late].abs().mean() < 0.1
    assert set(terms) == {"loss", "pred"}
    assert terms["loss"].shape == (256,)


@pytest.mark.parametrize("model", ["VELOCITY", "NOISE", "SCORE"])
@pytest.mark.parametrize("weight", ["NONE", "VELOCITY"])
def test_the_loss_of_a_transport_is_that_of_its_process(model: str, weight: str) -> None:
    import sit_protocol as theirs

    transport = theirs.Transport(theirs.ModelType[model], theirs.WeightType[weight])
    start, end = transport.check_interval(transport.train_eps, transport.sample_eps)
    process, network = sit.process_of(transport), Tiny()
    x0, noise, u = batch(), batch(1), torch.linspace(0.05, 0.95, 8)
    found = sit.loss_at(transport, network)(x0, noise, u)
    # Our algebra: what the network says at its noisy input, as the process's own target.
    sigma = 1 - (start + (end - start) * (1 - u))
    part = sigma.view(-1, 1, 1, 1)
    said = network((1 - part) * x0 + part * noise, 1 - sigma)
    said = -part * said if model == "SCORE" else said
    if model == "VELOCITY":
        expected = (-said - (noise - x0)).square().flatten(1).mean(1)
    else:
        expected = (said - noise).square().flatten(1).mean(1)
        if weight == "VELOCITY":
            expected = expected / (1 - sigma) ** 2
    assert torch.allclose(found, expected, rtol=1e-4)
    assert process.prediction == ("velocity" if "VELOCITY" in (model, weight) else "eps")


def test_a_transport_of_another_kind_is_named() -> None:
    import sit_protocol as theirs

    likely = theirs.Transport(theirs.ModelType.NOISE, theirs.WeightType.LIKELIHOOD)
    with pytest.raises(Unsupported, match="weights its noise loss by likelihood"):
        sit.process_of(likely)
    curved = theirs.Transport()
    curved.path_sampler = type("GVPCPlan", (), {})()
    with pytest.raises(Unsupported, match=r"the path GVPCPlan.*path_type='Linear'"):
        sit.loss_at(curved, Tiny())
    with pytest.raises(InvalidParameter, match=r"process_of\(transport\)"):
        sit.pace(theirs.Transport(), Pacer("uniform", "linear"))
