"""The names of the ways from noise to an image. Plain values: listing them imports nothing."""

from __future__ import annotations

SOLVERS = ("ddpm", "ddim", "heun", "dpm-solver++", "unipc")
