"""Images depend on their seed and number alone; a run can leave for diffusers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.generate.export import export
from stepwell.generate.grid import save_images, sheet
from stepwell.generate.images import Request, generate
from stepwell.generate.scheduler import scheduler_of
from stepwell.models.build import build
from stepwell.processes.discrete import DiscreteProcess


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return build("micro", channels=1, image_size=8).eval()


@pytest.mark.parametrize("solver", ["ddim", "ddpm"])
def test_images_do_not_depend_on_the_batch_size(network: torch.nn.Module, solver: str) -> None:
    process = stepwell.process("cosine", timesteps=50)
    one, three = (
        torch.cat(list(generate(network, process, Request(5, (1, 8, 8), solver, steps=5, batch=b, eta=0.5))))
        for b in (1, 3)
    )
    assert one.dtype == torch.uint8
    assert one.shape == (5, 1, 8, 8)
    # Convolutions of other batch sizes round differently: a level of 255 at most.
    assert (one.int() - three.int()).abs().max() <= 1
    other = torch.cat(list(generate(network, process, Request(5, (1, 8, 8), solver, steps=5, seed=1))))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("prediction", ["eps", "v", "x0"])
@pytest.mark.parametrize("solver", ["ddim", "ddpm"])
def test_gaussian_data_are_generated_by_their_optimal_denoiser(prediction: str, solver: str) -> None:
    """The closed form: data N(0, 0.3^2) come back with that standard deviation."""
    process = stepwell.process("cosine", timesteps=1000, prediction=prediction)
    assert isinstance(process, DiscreteProcess)

    class Optimal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor, time: torch.Tensor, condition: object) -> torch.Tensor:
            u = process.unit_time(time).double()
            a, s = (part.reshape(-1, 1, 1, 1) for part in process.scales(u))
            p, q = (part.reshape(-1, 1, 1, 1) for part in process.target_mix(u))
            x0 = a * 0.09 / (a**2 * 0.09 + s**2) * x
            return (p * x0 + q * (x - a * x0) / s).float()

    request = Request(16, (1, 16, 16), solver, steps=100 if solver == "ddim" else 1000)
    images = torch.cat(list(generate(Optimal(), process, request))).double() / 127.5 - 1
    # 4,096 independent values: the standard error of their standard deviation is 0.3 / sqrt(8192) = 0.0033;
    # 0.02 leaves six of them and the solver's own error at 100 steps.
    assert abs(float(images.std()) - 0.3) < 0.02
    assert abs(float(images.mean())) < 0.03


def test_betas_of_the_scheduler_are_those_of_training() -> None:
    process = stepwell.process("quadratic", timesteps=200)
    scheduler = scheduler_of(process, "ddpm")
    assert torch.allclose(scheduler.alphas_cumprod.double(), process.alphas_cumprod(), atol=1e-6)


def test_labels_and_guidance() -> None:
    torch.manual_seed(0)
    network = build("micro", channels=1, image_size=8, classes=3).eval()
    process = stepwell.process("linear", timesteps=20)

    def made(**changes: object) -> torch.Tensor:
        request = Request(4, (1, 8, 8), steps=4, **changes)  # type: ignore[arg-type]
        return torch.cat(list(generate(network, process, request)))

    assert not torch.equal(made(labels=(0,)), made(labels=(1,)))
    assert not torch.equal(made(labels=(0,)), made(labels=(0,), guidance=3.0))
    with pytest.raises(InvalidParameter, match="labels run from 0 to 2, not 3"):
        made(labels=(3,))


def test_labels_of_a_network_without_are_refused(network: torch.nn.Module) -> None:
    with pytest.raises(InvalidParameter, match="trained without labels"):
        next(generate(network, stepwell.process("linear"), Request(1, (1, 8, 8), labels=(0,))))


def test_more_steps_than_timesteps_are_refused(network: torch.nn.Module) -> None:
    with pytest.raises(InvalidParameter, match="60 denoising steps are more than the process's 50"):
        next(generate(network, stepwell.process("linear", timesteps=50), Request(1, (1, 8, 8), steps=60)))


def test_continuous_processes_are_refused(network: torch.nn.Module) -> None:
    with pytest.raises(Unsupported, match="discrete processes"):
        next(generate(network, stepwell.process("edm"), Request(1, (1, 8, 8))))


@pytest.mark.parametrize("learned", [False, True])
def test_diffusers_own_pipeline_loads_and_runs_an_export(tmp_path: Path, learned: bool) -> None:
    from diffusers import DDPMPipeline

    network = build("micro", channels=1, image_size=8, learned_variance=learned)
    export(network, stepwell.process("cosine", timesteps=30), tmp_path / "pipeline")
    pipeline = DDPMPipeline.from_pretrained(tmp_path / "pipeline")
    pipeline.set_progress_bar_config(disable=True)
    if learned:
        # DDPMPipeline starts from noise with the network's input channels: its loop itself is what counts.
        assert pipeline.scheduler.config.variance_type == "learned_range"
    images = pipeline(batch_size=2, num_inference_steps=3, output_type="np").images
    assert images.shape == (2, 8, 8, 1)


def test_images_are_saved_as_sheet_array_or_files(tmp_path: Path) -> None:
    images = torch.arange(5 * 3 * 4 * 4, dtype=torch.uint8).reshape(5, 3, 4, 4)
    save_images(images, tmp_path / "images.npz")
    assert np.array_equal(np.load(tmp_path / "images.npz")["images"], images.permute(0, 2, 3, 1).numpy())
    save_images(images, tmp_path / "folder")
    assert len(list((tmp_path / "folder").glob("*.png"))) == 5
    assert np.array_equal(
        np.asarray(Image.open(tmp_path / "folder" / "000002.png")), images[2].permute(1, 2, 0)
    )
    assert sheet(images, columns=3).size == (3 * 5 - 1, 2 * 5 - 1)
