"""Who may import whom: every contract of pyproject.toml can fail, and docs/design.md has the same layers."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")

FORBIDDEN = {
    "core/tick.py": "stepwell.samplers.static",  # a layer above
    "core/errors.py": "stepwell.core.require",  # a cycle
    "pacer/window.py": "numpy",
    "runs/io.py": "torch",
    "integrations/edm.py": "stepwell.models.unet",  # would need diffusers
    "evaluate/bands.py": "accelerate",
    "cli/export.py": "diffusers",
    "models/unet.py": "peft",
    "train/ema.py": "numpy",
    "cli/show.py": "PIL",
    "recipes/start.py": "safetensors",
    "analyze/variance.py": "matplotlib",
    "compare/pool.py": "rich",
    "compare/trials.py": "submitit",
    "recipes/run.py": "lightning",
    "models/dit.py": "transformers",
    "data/hub.py": "huggingface_hub",
    "evaluate/distances.py": "scipy",
    "unlisted.py": "stepwell.cli.main",  # a module without a layer
}
"""Imports that are not allowed, at least one for each contract."""


def lint(folder: Path) -> str:
    """What lint-imports prints about the package in a folder."""
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
        "--no-logo",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        [*command, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.full
def test_every_contract_fails_on_an_import_that_it_forbids(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    assert f"{len(CONTRACTS)} kept, 0 broken" in lint(tmp_path)
    for name, imported in FORBIDDEN.items():
        with (tmp_path / "src/stepwell" / name).open("a") as file:
            file.write(f"\nimport {imported}\n")
    report = lint(tmp_path)
    assert f"0 kept, {len(CONTRACTS)} broken" in report, report
    assert "stepwell.unlisted" in report


def test_every_package_that_is_imported_has_a_contract() -> None:
    lists = ("protected_modules", "forbidden_modules")
    named = {name for contract in CONTRACTS for key in lists for name in contract.get(key, ())}
    imported: set[str] = set()
    for path in (ROOT / "src/stepwell").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names - {"stepwell", "torch"} <= named


def test_the_design_draws_the_layers_of_the_contract() -> None:
    page = (ROOT / "docs/design.md").read_text()
    drawn = [
        line.split("  ")[0].strip()
        for line in re.search(r"```text\n(cli .*?)```", page, re.DOTALL)[1].splitlines()
    ]
    assert [layer for layer in drawn if layer] == [layer for layer in LAYERS if layer != "__main__"]
