"""Weights are found where a user put them, and wrong ones are told by name."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stepwell.evaluate import weights
from stepwell.evaluate.classifiers import resnet20_shapes
from stepwell.evaluate.weights import ORIGINS, Origin, WeightsError, find, read

NAME = "resnet20-cifar10"


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, no variables, no network."""
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for origin in ORIGINS.values():
        monkeypatch.delenv(origin.variable, raising=False)

    def offline(*arguments: object, **options: object) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)


def made(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in resnet20_shapes().items()} | changes


@pytest.mark.parametrize("name", ORIGINS)
def test_missing_weights_say_the_file_the_folder_the_variable_and_the_flag(name: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        find(name)
    for part in (ORIGINS[name].files[0], str(tmp_path / "cache"), ORIGINS[name].variable, "--weights"):
        assert part in str(caught.value)
    assert "no network" in str(caught.value)


def test_a_path_goes_before_the_variable_and_both_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one.pth", tmp_path / "two.pth"
    one.touch()
    two.touch()
    monkeypatch.setenv(ORIGINS[NAME].variable, str(two))
    assert find(NAME) == two
    assert find(NAME, one) == one
    with pytest.raises(WeightsError, match=r"--weights is .*three.pth"):
        find(NAME, tmp_path / "three.pth")
    two.unlink()
    with pytest.raises(WeightsError, match=ORIGINS[NAME].variable):
        find(NAME)


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server that has the canonical file."""
    served = tmp_path / "served.th"
    torch.save({"state_dict": {f"module.{k}": v for k, v in made().items()}, "best_prec1": 91.7}, served)
    digest = hashlib.sha256(served.read_bytes()).hexdigest()
    origin = Origin(ORIGINS[NAME].variable, ("canonical.th",), served.as_uri(), digest[:8])
    monkeypatch.setitem(weights.ORIGINS, NAME, origin)
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: served.open("rb"))
    return served


def test_a_download_is_checked_and_made_once(online: Path, tmp_path: Path) -> None:
    path = find(NAME)
    assert path == tmp_path / "cache" / "canonical.th"
    assert path.read_bytes() == online.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["canonical.th"]
    online.unlink()
    assert find(NAME) == path
    stored, digest = read(NAME, path, resnet20_shapes())
    assert set(stored) == set(resnet20_shapes())
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_cut_off_download_leaves_nothing_behind(online: Path, tmp_path: Path) -> None:
    online.write_bytes(online.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="sha256"):
        find(NAME)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_file_in_a_cache_is_told(online: Path, tmp_path: Path) -> None:
    path = tmp_path / "hub" / "checkpoints" / "canonical.th"
    path.parent.mkdir(parents=True)
    path.write_bytes(online.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"canonical.th is damaged.*sha256 is [0-9a-f]{64}"):
        find(NAME)


def test_the_canonical_name_is_believed_only_with_its_digest(tmp_path: Path) -> None:
    path = tmp_path / ORIGINS["inception"].files[0]
    path.write_bytes(b"something else")
    with pytest.raises(WeightsError, match="6726825d0af5f729"):
        read("inception", path, {})


def test_files_of_other_networks_are_told_by_what_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"encoder.weight": torch.zeros(2)}, path)
    with pytest.raises(
        WeightsError, match=r"are missing, such as .*It holds 1 tensors, such as encoder.weight"
    ):
        read(NAME, path, resnet20_shapes())
    save_file(made(**{"conv1.weight": torch.zeros(16, 1, 3, 3)}), path)
    with pytest.raises(
        WeightsError, match=r"conv1.weight has shape \[16, 1, 3, 3\] and must have \[16, 3, 3, 3\]"
    ):
        read(NAME, path, resnet20_shapes())


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_files_that_are_no_weights_are_no_traceback(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"weights.{ending}"
    for contents in (b"", b"<html>404</html>", b"PK\x03\x04" + b"\0" * 50):
        path.write_bytes(contents)
        with pytest.raises(WeightsError, match="cannot be read as weights"):
            read(NAME, path, resnet20_shapes())
    if ending == "pth":
        torch.save([1, 2], path)
        with pytest.raises(WeightsError, match="are missing"):
            read(NAME, path, resnet20_shapes())


def test_a_classifier_head_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "with_head.pth"
    torch.save(made(**{"fc.weight": torch.zeros(1008, 2048)}), path)
    assert "fc.weight" not in read(NAME, path, resnet20_shapes())[0]
