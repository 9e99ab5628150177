"""The interfaces of trainers that cannot be installed with the tests, rewritten as short as can be.

`benchmarks/hosts` runs the trainers themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class FlowMatchingPipeline:
    """NeMo Automodel: sigma, noise, network and weighted loss in one `step`."""

    def __init__(self, flow_shift: float = 3.0, use_loss_weighting: bool = True) -> None:
        self.flow_shift, self.use_loss_weighting = flow_shift, use_loss_weighting
        self.num_train_timesteps, self.device = 1000, torch.device("cpu")

    def sample_timesteps(self, batch_size: int, device: Any = None) -> tuple[Tensor, Tensor, str]:
        u = torch.rand(batch_size)
        sigma = self.flow_shift / (self.flow_shift + (1 / u - 1))
        return sigma, sigma * self.num_train_timesteps, "uniform"

    def compute_loss(
        self, model_pred: Tensor, target: Tensor, sigma: Tensor, batch: Any = None
    ) -> tuple[Any, ...]:
        losses = (model_pred - target).square()
        weight = 1 + self.flow_shift * sigma if self.use_loss_weighting else torch.ones_like(sigma)
        weight = weight.view(-1, *[1] * (losses.dim() - 1))
        return losses * weight, (losses * weight).mean(), losses, losses.mean(), weight, None

    def step(self, model: nn.Module, batch: dict[str, Tensor], device: Any = "cpu") -> tuple[Any, ...]:
        latents = batch["image_latents"]
        sigma, timesteps, method = self.sample_timesteps(len(latents), device)
        noise, part = torch.randn_like(latents), sigma.view(-1, 1, 1, 1)
        output = model((1 - part) * latents + part * noise, timesteps)
        weighted, mean, *_, mask = self.compute_loss(output, noise - latents, sigma, batch)
        return weighted, mean, mask, {"sampling_method": method}


@dataclass
class DiTOutput:
    """musubi-tuner: what `call_dit` returns."""

    pred: Tensor
    target: Tensor


class NetworkTrainer:
    """musubi-tuner: seams that do nothing, and a loop that calls them in its order."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.logs = network, list[dict[str, Any]]()

    def extra_trainable_params(
        self, args: Any, accelerator: Any, network: Any, transformer: Any, params: list[Any]
    ) -> list[Any]:
        return params

    def on_train_start(
        self, args: Any, accelerator: Any, network: Any, transformer: Any, optimizer: Any
    ) -> None:
        """Called when a saved state was loaded."""

    def extra_step_logs(self, args: Any, logs: dict[str, Any]) -> dict[str, Any]:
        return {}

    def get_noisy_model_input_and_timesteps(
        self,
        args: Any,
        noise: Tensor,
        latents: Tensor,
        timesteps: list[float] | None,
        noise_scheduler: Any,
        device: Any,
        dtype: Any,
    ) -> tuple[Tensor, Tensor]:
        t = torch.rand(len(noise)) if timesteps is None else torch.tensor(timesteps)
        if args.timestep_sampling == "shift":
            t = args.discrete_flow_shift * t / (1 + (args.discrete_flow_shift - 1) * t)
        low, high = (args.min_timestep or 0) / 1000, (args.max_timestep or 1000) / 1000
        t = t * (high - low) + low
        part = t.view(-1, *[1] * (latents.dim() - 1))
        return (1 - part) * latents + part * noise, t * 1000 + 1

    def compute_loss(self, args: Any, output: DiTOutput, *rest: Any) -> tuple[Tensor, dict[str, float]]:
        return torch.nn.functional.mse_loss(output.pred, output.target), {}

    def process_batch(self, args: Any, latents: Tensor) -> Tensor:
        noise = torch.randn_like(latents)
        noisy, timesteps = self.get_noisy_model_input_and_timesteps(
            args, noise, latents, None, None, "cpu", torch.float32
        )
        output = DiTOutput(self.network(noisy, timesteps), noise - latents)
        return self.compute_loss(args, output, timesteps)[0]

    def train(
        self, args: Any, accelerator: Any, batches: list[Tensor], resume: Callable[[], None] = lambda: None
    ) -> list[float]:
        params = self.extra_trainable_params(
            args, accelerator, self.network, self.network, [*self.network.parameters()]
        )
        optimizer = torch.optim.SGD(params, lr=0.05)
        resume()
        self.on_train_start(args, accelerator, self.network, self.network, optimizer)
        losses = []
        for latents in batches:
            loss = self.process_batch(args, latents)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.logs.append(self.extra_step_logs(args, {}))
            losses.append(loss.item())
        return losses


def musubi_args(**changed: Any) -> argparse.Namespace:
    """Its settings of the draw."""
    settings = {
        "timestep_sampling": "shift",
        "discrete_flow_shift": 3.0,
        "min_timestep": None,
        "max_timestep": None,
        "preserve_distribution_shape": False,
    }
    return argparse.Namespace(**{**settings, **changed})


class ModelFoundation:
    """SimpleTuner: a model that prepares batches and has their loss."""

    PREDICTION_TYPE = SimpleNamespace(name="FLOW_MATCHING")

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def sample_flow_sigmas(self, batch: dict[str, Any], state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        sigmas = torch.sigmoid(torch.randn(len(batch["latents"])))
        return sigmas, sigmas * 1000.0

    def prepare_batch(self, batch: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        batch["noise"] = torch.randn_like(batch["latents"])
        batch["sigmas"], batch["timesteps"] = self.sample_flow_sigmas(batch=batch, state=state)
        part = batch["sigmas"].view(-1, 1, 1, 1)
        batch["noisy_latents"] = (1 - part) * batch["latents"] + part * batch["noise"]
        return batch

    def model_predict(self, prepared_batch: dict[str, Any]) -> dict[str, Any]:
        output = self.network(prepared_batch["noisy_latents"], prepared_batch["timesteps"])
        return {"model_prediction": output}

    def get_prediction_target(self, prepared_batch: dict[str, Any]) -> Tensor:
        target: Tensor = prepared_batch["noise"] - prepared_batch["latents"]
        return target

    def loss(
        self, prepared_batch: dict[str, Any], model_output: Any, apply_conditioning_mask: bool = True
    ) -> Tensor:
        error = model_output["model_prediction"] - self.get_prediction_target(prepared_batch)
        mean: Tensor = error.square().flatten(1).mean(1).mean()
        return mean


class Evaluation:
    """SimpleTuner: prepares batches as training does."""

    def __init__(self, model: ModelFoundation) -> None:
        self.model = model

    def execute_eval(self, latents: Tensor) -> Tensor:
        torch.manual_seed(0)
        prepared = self.model.prepare_batch({"latents": latents}, {})
        with torch.no_grad():
            return self.model.loss(prepared, self.model.model_predict(prepared))


class Accelerator:
    """What was registered for checkpoints."""

    def __init__(self) -> None:
        self.registered: list[Any] = []

    def register_for_checkpointing(self, *objects: Any) -> None:
        self.registered += objects
