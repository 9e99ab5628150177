"""Images depend on their seed and number alone; a run can leave for diffusers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stepwell
from stepwell.generate.export import export
from stepwell.generate.images import Request, generate
from stepwell.generate.sheets import sheet
from stepwell.models.denoiser import Denoiser
from stepwell.models.registry import build_model
from stepwell.processes.discrete import DiscreteProcess


@pytest.fixture(scope="module")
def network() -> Denoiser:
    torch.manual_seed(0)
    return build_model("micro", channels=1, image_size=8, classes=3, label_dropout=0.1).eval()


@pytest.mark.parametrize("solver", DiscreteProcess.solvers)
def test_images_do_not_depend_on_the_batch_size(network: Denoiser, solver: str) -> None:
    process = stepwell.process("cosine", timesteps=50)
    eta = 0.5 if solver == "ddim" else 0.0

    def made(**changes: object) -> torch.Tensor:
        request = Request(5, (1, 8, 8), solver, steps=5, eta=eta, labels=(0, 1), **changes)  # type: ignore[arg-type]
        return torch.cat(list(generate(network, process, request)))

    one, three = made(batch=1), made(batch=3)
    assert one.dtype == torch.uint8
    assert one.shape == (5, 1, 8, 8)
    # Convolutions of other batch sizes round differently: a level of 255 at most.
    assert (one.int() - three.int()).abs().max() <= 1
    assert not torch.equal(one, made(seed=1))


@pytest.mark.parametrize("solver", DiscreteProcess.solvers)
def test_any_batches_are_those_of_the_whole(network: Denoiser, solver: str) -> None:
    process = stepwell.process("cosine", timesteps=50)
    request = Request(7, (1, 8, 8), solver, steps=4, batch=2)
    whole = list(generate(network, process, request))
    some = list(generate(network, process, request, batches=request.batches()[2:]))
    assert [len(batch) for batch in whole] == [2, 2, 2, 1]
    assert all(torch.equal(one, other) for one, other in zip(whole[2:], some, strict=True))


@pytest.mark.parametrize("solver", DiscreteProcess.solvers)
@pytest.mark.parametrize("prediction", ["eps", "v"])
def test_a_learned_variance_is_used_by_ddpm_and_cut_by_the_others(solver: str, prediction: str) -> None:
    torch.manual_seed(0)
    learned = build_model("micro", channels=1, image_size=8, learned_variance=True).eval()
    process = stepwell.process("cosine", timesteps=20, prediction=prediction)
    request = Request(2, (1, 8, 8), solver, steps=5)

    class Shifted(Denoiser):
        """The same means and another variance."""

        def forward(self, x: torch.Tensor, time: torch.Tensor, condition: object = None) -> torch.Tensor:
            mean, variance = super().forward(x, time).chunk(2, dim=1)
            return torch.cat([mean, variance + 1], dim=1)

    (images,) = generate(learned, process, request)
    (others,) = generate(Shifted(learned.network, learned_variance=True), process, request)
    assert images.shape == (2, 1, 8, 8)
    assert torch.equal(images, others) == (solver != "ddpm")


def test_labels_change_images(network: Denoiser) -> None:
    process = stepwell.process("linear", timesteps=20)

    def made(**changes: object) -> torch.Tensor:
        request = Request(4, (1, 8, 8), steps=4, **changes)  # type: ignore[arg-type]
        return torch.cat(list(generate(network, process, request)))

    assert not torch.equal(made(labels=(0,)), made(labels=(1,)))
    assert not torch.equal(made(labels=(0,)), made(labels=(0,), guidance=3.0))


@pytest.mark.parametrize("learned", [False, True])
def test_diffusers_own_pipeline_loads_and_runs_an_export(tmp_path: Path, learned: bool) -> None:
    from diffusers import DDPMPipeline

    network = build_model("micro", channels=1, image_size=8, learned_variance=learned)
    export(network, stepwell.process("cosine", timesteps=30), (1, 8, 8), tmp_path / "pipeline")
    pipeline = DDPMPipeline.from_pretrained(tmp_path / "pipeline")
    pipeline.set_progress_bar_config(disable=True)
    if learned:
        # DDPMPipeline starts from noise with the network's input channels: its loop itself is what counts.
        assert pipeline.scheduler.config.variance_type == "learned_range"
    images = pipeline(batch_size=2, num_inference_steps=3, output_type="np").images
    assert images.shape == (2, 8, 8, 1)


def test_a_sheet_has_rows_and_columns() -> None:
    images = torch.arange(5 * 3 * 4 * 4, dtype=torch.uint8).reshape(5, 3, 4, 4)
    assert sheet(images, columns=3).size == (16 * (3 * 5 - 1), 16 * (2 * 5 - 1))
