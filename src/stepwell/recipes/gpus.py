"""Named GPUs: what their makers publish, and the share of it that training usually gets."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.recipes.on_paper import Flops

UTILISATION = (0.2, 0.4)
"""Assumed share of the peak, from and to: training of diffusion models rarely gets more, small ones less."""


@dataclass(frozen=True)
class Gpu:
    """Dense peaks in TFLOPS, without sparsity, sums in float32."""

    name: str
    gigabytes: int
    bf16: float
    tf32: float
    fp32: float

    def seconds(self, work: Flops, precision: str, utilisation: float) -> float:
        """How long some work takes at a share of the peak.

        In float32 torch runs convolutions in TF32 and matrix products in full, unless it is told otherwise.
        """
        if precision == "no":
            ideal = work.convolution / self.tf32 + work.other / self.fp32
        else:
            ideal = work.total / self.bf16
        return ideal / 1e12 / utilisation

    def hours(self, work: Flops, precision: str) -> tuple[float, float]:
        """The estimate, from and to."""
        slow, fast = (self.seconds(work, precision, share) / 3600 for share in UTILISATION)
        return fast, slow


GPUS = (
    # NVIDIA's data sheets: A100 (2021), H100 SXM (2023; published with sparsity, halved here).
    Gpu("A100-80GB", 80, bf16=312, tf32=156, fp32=19.5),
    Gpu("H100-80GB", 80, bf16=989, tf32=495, fp32=67),
    # NVIDIA's architecture white papers: Ada (2022), Ampere GA102 (2020).
    Gpu("RTX 4090", 24, bf16=165, tf32=82.6, fp32=82.6),
    Gpu("RTX 3090", 24, bf16=71, tf32=35.6, fp32=35.6),
)
