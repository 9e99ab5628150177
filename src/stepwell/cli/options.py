"""Verbs that need more than torch say so, instead of failing in an import."""

from __future__ import annotations

from importlib.util import find_spec

from stepwell.core.errors import StepwellError


def require_extra() -> None:
    """The packages of the `train` extra, or how to get them."""
    missing = [
        name for name in ("accelerate", "diffusers", "safetensors", "numpy", "PIL") if not find_spec(name)
    ]
    if missing:
        raise StepwellError(
            f"this needs {', '.join(missing)}, which torch does not bring: pip install 'stepwell[train]'."
        )
