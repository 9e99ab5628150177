"""What `import stepwell` promises: names, laziness, torch and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import stepwell

PROJECT = Path(__file__).parent.parent

EXERCISE = """
import stepwell, torch
from stepwell.catalogue.find import PROCESSES, SAMPLERS, WEIGHTINGS
from stepwell.core.errors import Unsupported
for p in PROCESSES:
    process = stepwell.process(p.name)
    for s in SAMPLERS:
        if s.process not in (None, p.name):
            continue
        needed = {"table": {"masses": [1.0, 2.0]}, "over-steps": {"stages": "0 uniform; 9 jit"}}
        given = needed.get(s.name, {})
        sampler = stepwell.sampler(s.name, process, floor=0.1, stratified=True, **given)
        draw = sampler.draw(torch.zeros(4, 2, 1), stepwell.Tick())
        sampler.learn(stepwell.Feedback(stepwell.Tick(), draw.u, torch.ones(4), torch.ones(4)))
    for w in WEIGHTINGS:
        try:
            stepwell.weighting(w.name)(process, draw.u)
        except Unsupported:
            assert w.name in ("vlb", "likelihood")
from stepwell.cli.main import main
assert main(["show", "laplace"]) == 0
assert main(["show", "laplace", "--save", "x.png"]) == 2
"""

BLOCK = """
import sys

class OnlyTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED = {"numpy", "scipy", "matplotlib", "diffusers", "accelerate", "PIL", "safetensors", "rich"}
sys.meta_path.insert(0, OnlyTorch())
"""


def run(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=120)


def test_all_names_exist_and_are_sorted() -> None:
    assert stepwell.__all__ == sorted(stepwell.__all__)
    for name in stepwell.__all__:
        assert getattr(stepwell, name) is not None
    assert not hasattr(stepwell, "no_such_name")


DEPRECATED = [
    ("stepwell", name) for name in ("ProbeSpec", "Signal", "areas", "convert", "increments", "pmf")
] + [
    ("stepwell.pacer", "OutOfTurn"),
    ("stepwell.loss_at", "ReadyLoss"),
    ("stepwell.loss_at", "arguments"),
    ("stepwell.loss_at", "bare"),
]


@pytest.mark.parametrize(("module", "name"), DEPRECATED)
def test_an_old_name_still_works_and_says_the_new_one(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated") as warned:
        found = getattr(import_module(module), name)
    message = str(warned[0].message)
    home, _, new = (
        message.removeprefix(f"{module}.{name} is deprecated: use ").removesuffix(".").rpartition(".")
    )
    assert getattr(import_module(home), new) is found
    assert Path(warned[0].filename) == Path(__file__), "the warning is about the caller's line"
    assert name not in stepwell.__all__
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = import_module(module).no_such_name


def test_the_whole_library_runs_on_torch_alone(tmp_path: Path) -> None:
    done = run(BLOCK + EXERCISE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pip install 'stepwell[report]'" in done.stderr


def test_help_and_ls_never_import_torch() -> None:
    for words in (["--help"], ["ls"], ["ls", "--json"], ["show", "--help"]):
        code = f"""
import sys
from stepwell.cli.main import main
try:
    main({words!r})
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
        done = run(code)
        assert done.returncode == 0, done.stderr


def test_the_environment_has_no_cuda_and_no_torchvision() -> None:
    from importlib.metadata import distributions

    names = {(d.metadata["Name"] or "").lower() for d in distributions()}
    assert not {n for n in names if n in ("torchvision", "triton") or n.startswith("nvidia-")}


def test_constraints_name_no_hosts() -> None:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all(pin.count("==") == 1 and "/" not in pin and "@" not in pin for pin in pins)
