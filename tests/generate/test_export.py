"""What `export` writes is loaded by diffusers and peft alone, computes the same, and generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from peft import PeftModel

import stepwell
from stepwell.core.errors import Unsupported
from stepwell.generate.export import export, export_adapters
from stepwell.models import lora
from stepwell.models.denoiser import Condition, Denoiser
from stepwell.models.registry import build_model

SHAPE = (1, 8, 8)


def trained_a_little(name: str, classes: int = 0) -> Denoiser:
    """A network without zeros, which would hide differences."""
    torch.manual_seed(0)
    network = build_model(name, channels=SHAPE[0], image_size=SHAPE[1], classes=classes)
    for parameter in network.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return network.eval()


CASES = [
    ("micro", 3, "cosine"),
    ("micro", 0, "flow"),
    ("micro", 3, "flow:shift=3"),
    ("dit-s-2", 3, "linear"),
    ("dit-s-2", 0, "flow"),
]


@pytest.mark.parametrize(("model", "classes", "process"), CASES)
def test_diffusers_computes_the_same(model: str, classes: int, process: str, tmp_path: Path) -> None:
    denoiser, out = trained_a_little(model, classes), tmp_path / "out"
    code = export(denoiser, stepwell.process(process), SHAPE, out)
    scope: dict[str, Any] = {}
    exec(code.replace("set_timesteps(50)", "set_timesteps(3)"), scope)
    assert scope["x"].shape == (4, *SHAPE)
    assert scope["x"].isfinite().all()
    x, time, labels = torch.randn(3, *SHAPE), torch.tensor([0.0, 41.5, 999.0]), torch.arange(3)
    given = Condition(labels=labels) if classes else None
    with torch.no_grad():
        ours = denoiser(x, time, given)
        own = {"class_labels": labels if classes else labels * 0} if "labels" in scope else {}
        theirs = scope["network"](x, time, **own).sample
    torch.testing.assert_close(ours, theirs)


def test_adapters_alone_are_what_peft_loads(tmp_path: Path) -> None:
    denoiser = trained_a_little("micro")
    plain = diffusers.UNet2DModel.from_config(denoiser.network.config)
    plain.load_state_dict(denoiser.network.state_dict())
    lora.inject(denoiser.network, 2)
    for name, parameter in denoiser.network.named_parameters():
        if lora.is_adapter(name):
            parameter.data.normal_(std=0.1)
    export_adapters(denoiser, tmp_path / "adapters")
    x, time = torch.randn(2, *SHAPE), torch.tensor([3.0, 800.0])
    with torch.no_grad():
        before = plain(x, time).sample
        tuned = PeftModel.from_pretrained(plain, str(tmp_path / "adapters")).eval()
        after, ours = tuned(x, time).sample, denoiser(x, time)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, ours)


@pytest.mark.parametrize(
    ("model", "process", "said"),
    [
        ("uvit-s", "linear", "no network like UViT"),
        ("micro", "edm", "no scheduler that runs"),
        ("micro", "flow:prediction=x0", "predicts the velocity"),
    ],
)
def test_what_has_no_counterpart_is_refused(model: str, process: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=said):
        export(trained_a_little(model), stepwell.process(process), SHAPE, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_latents_are_no_images_for_a_pipeline(tmp_path: Path) -> None:
    network, process = trained_a_little("micro"), stepwell.process("linear")
    code = export(network, process, SHAPE, tmp_path / "out", latents=True)
    assert "DDPMPipeline" not in code
    assert not (tmp_path / "out" / "model_index.json").exists()
