"""Ready-made losses against formulas written out, with every kind of condition."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported

X0, NOISE = (torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
U = torch.linspace(0.05, 0.95, 6)


class Network(nn.Module):
    """Answers a multiple of its input and its conditions, as diffusers' networks do, and notes the times."""

    def __init__(self, wrapped: bool = False) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.wrapped = wrapped
        self.times: list[Tensor] = []

    def forward(self, sample: Tensor, timestep: Tensor, y: Tensor | None = None, extra: Any = None) -> Any:
        self.times.append(timestep)
        output = self.gain * sample
        for given in (y, extra):
            output = output if given is None else output + given[:, None, None]
        return SimpleNamespace(sample=output) if self.wrapped else (output,)


def mean(error: Tensor) -> Tensor:
    return error.square().flatten(1).mean(1)


def column(values: Tensor) -> Tensor:
    return values[:, None, None].float()


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_diffusers_losses_are_those_of_its_own_training_loops(prediction: str) -> None:
    scheduler = DDPMScheduler(num_train_timesteps=50, prediction_type=prediction)
    network = Network(wrapped=True)
    t = (U * 50).long()
    target = {
        "epsilon": NOISE,
        "v_prediction": scheduler.get_velocity(X0, NOISE, t),
        "sample": X0,
    }[prediction]
    wanted = mean(network.gain * scheduler.add_noise(X0, NOISE, t) - target)
    found = stepwell.loss_at.diffusers(network, scheduler)(X0, NOISE, U)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(network.times[-1], t)
    assert found.requires_grad


def test_flow_losses_are_those_of_sd3s_loop() -> None:
    scheduler, network = FlowMatchEulerDiscreteScheduler(shift=3.0), Network()
    sigma = column(scheduler.sigmas[999 - (U.double() * 1000).long()])
    wanted = mean(network.gain * ((1 - sigma) * X0 + sigma * NOISE) - (NOISE - X0))
    torch.testing.assert_close(stepwell.loss_at.diffusers(network, scheduler)(X0, NOISE, U), wanted)


def test_time_goes_by_name_where_text_comes_second() -> None:
    class Transformer(Network):
        def forward(self, hidden_states: Tensor, text: Tensor, timestep: Tensor) -> Any:  # type: ignore[override]
            return super().forward(hidden_states, timestep, text)

    scheduler, text = FlowMatchEulerDiscreteScheduler(), torch.arange(6.0)
    found = stepwell.loss_at.diffusers(Transformer(), scheduler)(X0, NOISE, U, {"text": text})
    assert torch.equal(found, stepwell.loss_at.diffusers(Network(), scheduler)(X0, NOISE, U, text))


@dataclass
class Labels:
    y: Tensor
    extra: Tensor | None = None


def test_conditions_are_arguments_of_the_network() -> None:
    y, losses = torch.arange(6.0), stepwell.loss_at.diffusers(Network(), DDPMScheduler())
    found = [losses(X0, NOISE, U, given) for given in (y, {"y": y}, Labels(y), (y,), {"extra": y})]
    assert all(torch.equal(found[0], other) for other in found)
    assert not torch.equal(found[0], losses(X0, NOISE, U))
    with pytest.raises(InvalidParameter, match="not str"):
        losses(X0, NOISE, U, "a cat")


def test_edm_is_the_published_weight_and_the_plain_loss_of_the_raw_network() -> None:
    raw, data = Network(), 0.5
    process = stepwell.process("edm", sigma_data=data)

    class Preconditioned(nn.Module):
        def forward(self, x: Tensor, sigma: Tensor, labels: Tensor | None = None) -> Tensor:
            s = column(sigma)
            total = s**2 + data**2
            (said,) = raw(x / total.sqrt(), sigma.log() / 4)
            return data**2 / total * x + s * data / total.sqrt() * said

    losses = stepwell.loss_at.edm(Preconditioned(), sigma_data=data)
    wanted = stepwell.Objective(process)(lambda *given: raw(*given)[0], X0, NOISE, U).plain
    torch.testing.assert_close(losses(X0, NOISE, U), wanted, rtol=1e-3, atol=1e-4)
    stepwell.Pacer("neyman", "edm", loss_at=losses)
    narrow = stepwell.process("edm", sigma_max=10.0)
    with pytest.raises(InvalidParameter, match=r"give the Pacer|or the Pacer loss_at\.process"):
        stepwell.Pacer("neyman", narrow, loss_at=losses)
    stepwell.Pacer("neyman", narrow, loss_at=stepwell.loss_at.edm(Preconditioned(), process=narrow))


class GuidedDiffusion:
    """The interface of guided-diffusion's class of that kind, around diffusers' noise."""

    def __init__(self, name: str = "EPSILON") -> None:
        self._scheduler = DDPMScheduler(num_train_timesteps=50)
        self.alphas_cumprod = self._scheduler.alphas_cumprod.double().numpy()
        self.model_mean_type = SimpleNamespace(name=name)

    def training_losses(
        self, model: Any, x_start: Tensor, t: Tensor, model_kwargs: Any = None, noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        assert noise is not None
        (output,) = model(self._scheduler.add_noise(x_start, noise, t), t, **(model_kwargs or {}))
        mse = mean(output - (noise if self.model_mean_type.name == "EPSILON" else x_start))
        return {"mse": mse, "loss": mse + 1}


def test_guided_diffusion_is_asked_by_its_own_protocol() -> None:
    network, diffusion, y = Network(), GuidedDiffusion(), torch.arange(6.0)
    losses = stepwell.loss_at.guided_diffusion(diffusion, network)
    epsilon = stepwell.loss_at.diffusers(network, DDPMScheduler(num_train_timesteps=50))
    for given in (None, y, {"y": y}, Labels(y)):
        wanted = epsilon(X0, NOISE, U, given) + 1
        torch.testing.assert_close(losses(X0, NOISE, U, given), wanted, rtol=1e-4, atol=1e-5)
    stepwell.Pacer("neyman", diffusion, loss_at=losses)
    start = GuidedDiffusion("START_X")
    with pytest.raises(InvalidParameter, match=r"loss_at\.process"):
        stepwell.Pacer("neyman", start, loss_at=stepwell.loss_at.guided_diffusion(start, network))
    with pytest.raises(Unsupported, match="predicts PREVIOUS_X"):
        stepwell.loss_at.guided_diffusion(GuidedDiffusion("PREVIOUS_X"), network)


def test_an_answer_without_a_tensor_is_named() -> None:
    class Mute(nn.Module):
        def forward(self, sample: Tensor, timestep: Tensor) -> None:
            return None

    with pytest.raises(InvalidParameter, match="returned a NoneType"):
        stepwell.loss_at.diffusers(Mute(), DDPMScheduler())(X0, NOISE, U)
