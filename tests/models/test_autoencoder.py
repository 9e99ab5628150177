"""Autoencoders of all classes behind one face, against diffusers' own calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from assets import asset
from autoencoders import FACTOR, KINDS, saved
from diffusers import AutoencoderKL, AutoencoderTiny, UNet2DModel, VQModel
from safetensors.torch import load_file, save_file

from stepwell.data.source import to_unit
from stepwell.models.autoencoder import BadAutoencoder, load_autoencoder
from stepwell.models.tiny_autoencoder import Block, TinyAutoencoder

IMAGES = torch.rand((3, 3, 16, 16), generator=torch.Generator().manual_seed(1)) * 2 - 1


def pair(folder: Path, name: str = "small", pooled: bool = True, seed: int = 0) -> TinyAutoencoder:
    """A random network of the TAESD family as its two files."""
    torch.manual_seed(seed)
    network = TinyAutoencoder(channels=5, width=8, pooled=pooled)
    folder.mkdir(exist_ok=True)
    save_file(network.encoder.state_dict(), folder / f"{name}_encoder.safetensors")
    save_file(network.decoder.state_dict(), folder / f"{name}_decoder.safetensors")
    return network


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_of_diffusers_encodes_and_decodes_as_there(kind: str, tmp_path: Path) -> None:
    found = load_autoencoder(str(saved(kind, tmp_path)))
    theirs = {"AutoencoderKL": AutoencoderKL, "AutoencoderTiny": AutoencoderTiny, "VQModel": VQModel}[kind]
    network = theirs.from_pretrained(tmp_path).eval()
    mean, std = found.encode(IMAGES)
    with torch.no_grad():
        output = network.encode(IMAGES)
        expected = output.latent_dist.mean if kind == "AutoencoderKL" else output.latents
        decoded = network.decode(expected).sample.clamp(-1, 1)
    # Not bit for bit: where weights lie in memory decides how a convolution adds up.
    assert torch.allclose(mean, expected, atol=1e-5)
    assert mean.shape == (3, found.channels, 16 // found.factor, 16 // found.factor)
    assert found.factor == FACTOR[kind]
    if kind == "AutoencoderKL":
        assert std is not None
        assert torch.allclose(std, output.latent_dist.std, atol=1e-5)
    else:
        assert std is None
    assert found.posterior == (std is not None)
    assert torch.allclose(found.decode(expected), decoded, atol=1e-5)


def test_decoding_many_is_decoding_each(tmp_path: Path) -> None:
    found = load_autoencoder(str(saved("AutoencoderKL", tmp_path)))
    latents = torch.randn(35, 4, 4, 4)
    each = torch.cat([found.decode(one[None]) for one in latents])
    assert torch.allclose(found.decode(latents), each, atol=1e-5)


def test_the_fingerprint_is_of_the_weights_and_not_of_the_place(tmp_path: Path) -> None:
    one, copy, other = (
        load_autoencoder(str(saved("AutoencoderKL", tmp_path / name, seed)))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one.fingerprint == copy.fingerprint != other.fingerprint
    assert one.name == str(tmp_path / "a")


def test_the_autoencoder_of_a_pipeline_is_found(tmp_path: Path) -> None:
    saved("AutoencoderKL", tmp_path / "vae")
    assert load_autoencoder(str(tmp_path)).name == str(tmp_path / "vae")


def test_taesd_is_diffusers_autoencoder_tiny() -> None:
    torch.manual_seed(0)
    ours = TinyAutoencoder(channels=4, width=64).eval()
    theirs = AutoencoderTiny(latent_channels=4).eval()
    theirs.encoder.layers.load_state_dict(ours.encoder.state_dict())
    # Theirs clamps outside of its layers: all positions are one less.
    weights = ours.decoder.state_dict().items()
    theirs.decoder.layers.load_state_dict({_one_less(name): value for name, value in weights})
    with torch.no_grad():
        latents = ours.encode(IMAGES)
        assert torch.allclose(latents, theirs.encode(IMAGES).latents, atol=1e-6)
        far = latents * 50
        assert torch.allclose(ours.decode(far), theirs.decode(far).sample, atol=1e-5)


def _one_less(name: str) -> str:
    place, rest = name.split(".", 1)
    return f"{int(place) - 1}.{rest}"


def test_a_pooled_block_adds_normalised_features_before_its_convolutions() -> None:
    torch.manual_seed(0)
    block, x = Block(4, pooled=True), torch.randn(2, 4, 3, 3)
    torch.nn.init.zeros_(block.conv[4].weight)
    torch.nn.init.zeros_(block.conv[4].bias)
    first, last = block.pool[0].weight[:, :, 0, 0], block.pool[3].weight[:, :, 0, 0]
    wide = torch.einsum("oc,bchw->bohw", first, x).reshape(2, 4, -1)
    normal = (wide - wide.mean(-1, keepdim=True)) / (wide.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    added = torch.einsum("oc,bchw->bohw", last, normal.view(2, 16, 3, 3).relu())
    assert torch.allclose(block(x), (x + added).relu(), atol=1e-5)


def test_a_pair_of_files_is_found_by_name_and_by_folder(tmp_path: Path) -> None:
    network = pair(tmp_path / "weights")
    for spec in (tmp_path / "weights", tmp_path / "weights" / "small"):
        found = load_autoencoder(str(spec))
        assert (found.channels, found.factor, found.posterior) == (5, 8, False)
        with torch.no_grad():
            assert torch.allclose(found.encode(IMAGES)[0], network.encode(IMAGES), atol=1e-5)
    pair(tmp_path / "weights", "another")
    with pytest.raises(BadAutoencoder, match=r"several autoencoders \(another, small\): give one"):
        load_autoencoder(str(tmp_path / "weights"))


def test_half_a_pair_or_another_network_is_refused(tmp_path: Path) -> None:
    pair(tmp_path)
    decoder = tmp_path / "small_decoder.safetensors"
    weights = load_file(decoder)
    decoder.unlink()
    with pytest.raises(BadAutoencoder, match=r"needs both its files: .*small_decoder"):
        load_autoencoder(str(tmp_path / "small"))
    decoder.write_bytes(b"cut")
    with pytest.raises(BadAutoencoder, match="cannot be read"):
        load_autoencoder(str(tmp_path / "small"))
    weights.pop("19.bias")
    save_file(weights, decoder)
    with pytest.raises(BadAutoencoder, match="not of the TAESD family"):
        load_autoencoder(str(tmp_path / "small"))


def test_what_is_no_autoencoder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadAutoencoder, match=r"there is no autoencoder at .*nowhere"):
        load_autoencoder(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadAutoencoder, match=r"has no config.json"):
        load_autoencoder(str(tmp_path / "empty"))
    with pytest.raises(BadAutoencoder, match="write hub:ORG/NAME"):
        load_autoencoder("hub:alone")
    UNet2DModel(
        block_out_channels=(4,), down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
        norm_num_groups=2, add_attention=False, layers_per_block=1,
    ).save_pretrained(tmp_path / "unet")  # fmt: skip
    with pytest.raises(BadAutoencoder, match="is UNet2DModel, and must be one of AutoencoderKL"):
        load_autoencoder(str(tmp_path / "unet"))


def test_weights_that_are_missing_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = saved("AutoencoderKL", tmp_path)
    file = folder / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    del weights["decoder.conv_out.bias"]
    save_file(weights, file)
    with pytest.raises(BadAutoencoder, match=r"1 are missing, such as decoder.conv_out.bias"):
        load_autoencoder(str(folder))
    file.unlink()
    with pytest.raises(BadAutoencoder, match="cannot be loaded"):
        load_autoencoder(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(BadAutoencoder, match="cannot be loaded"):
        load_autoencoder(str(folder))


def test_a_name_on_the_hub_goes_to_diffusers_with_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = saved("AutoencoderKL", tmp_path), list[tuple[str, str | None]]()
    real_config, real = AutoencoderKL.load_config, AutoencoderKL.from_pretrained

    def config_from_hub(name: object, subfolder: str | None = None, **more: object) -> object:
        return real_config(folder, **more)

    def from_hub(name: str, subfolder: str | None = None, **more: object) -> object:
        asked.append((name, subfolder))
        return real(folder, **more)

    monkeypatch.setattr(AutoencoderKL, "load_config", config_from_hub)
    monkeypatch.setattr(AutoencoderKL, "from_pretrained", from_hub)
    assert load_autoencoder("hub:someone/model/vae").name == "hub:someone/model/vae"
    assert load_autoencoder("hub:someone/model").channels == 4
    assert asked == [("someone/model", "vae"), ("someone/model", None)]


def test_a_hub_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(name: str, **more: object) -> object:
        raise OSError("no route to host")

    monkeypatch.setattr(AutoencoderKL, "load_config", silent)
    with pytest.raises(BadAutoencoder, match=r"no route to host Check the connection .*hub:ORG/NAME/vae"):
        load_autoencoder("hub:someone/model")


def test_images_must_be_whole_latents(tmp_path: Path) -> None:
    found = load_autoencoder(str(saved("AutoencoderKL", tmp_path)))
    with pytest.raises(
        BadAutoencoder, match=r"images of 15x16 do not fit. Give a size that is a multiple of 2"
    ):
        found.encode(IMAGES[:, :, :15])


def test_taef2_brings_real_flowers_back() -> None:
    """The assets say 28 dB at 256 px; these are 64 px, with less to go by (measured: 20.8)."""
    found = load_autoencoder(str(asset("taef2_encoder.safetensors").parent / "taef2"))
    assert (found.channels, found.factor) == (32, 8)
    images = to_unit(_flowers())
    error = (found.decode(found.encode(images)[0]) - images).div(2).square().mean((1, 2, 3))
    assert float(-10 * error.log10().mean()) > 20


def _flowers() -> torch.Tensor:
    import io

    from PIL import Image

    with np.load(asset("flowers102_64_jpeg_q90_sheets.npz")) as stored:
        sheet = np.asarray(Image.open(io.BytesIO(stored["jpeg_00"].tobytes())).convert("RGB"))
    return torch.from_numpy(sheet[:64, :256].copy()).unflatten(1, (4, 64)).permute(1, 3, 0, 2)
