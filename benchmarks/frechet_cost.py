"""The Fréchet distance at Inception's 2048 dimensions: ours against scipy's matrix root, in CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from scipy.linalg import sqrtm

from stepwell.evaluate.distances import Moments, frechet_distance

DIMENSIONS, SAMPLES = 2048, 5000


def features(seed: int) -> torch.Tensor:
    """Correlated features whose covariance has eigenvalues over seven powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(DIMENSIONS, DIMENSIONS, generator=generator, dtype=torch.float64))
    scales = torch.logspace(0, -3.5, DIMENSIONS, dtype=torch.float64)
    return torch.randn(SAMPLES, DIMENSIONS, generator=generator, dtype=torch.float64) * scales @ turn


def timed(function: Callable[[], float]) -> tuple[float, float]:
    """A result and the CPU seconds of it: other programs on the machine do not count."""
    started = time.process_time()
    return function(), time.process_time() - started


def by_sqrtm(a: Moments, b: Moments) -> float:
    """The formula as pytorch-fid writes it."""
    root = sqrtm((a.covariance @ b.covariance).numpy())
    spread = a.covariance.trace() + b.covariance.trace() - 2 * root.trace().real
    return float((a.mean - b.mean).square().sum() + spread)


def main() -> None:
    """Both ways on one thread, and how well they agree."""
    torch.set_num_threads(1)
    a, b = (Moments().add(features(seed)) for seed in (0, 1))
    ours, seconds = timed(lambda: frechet_distance(a, b))
    theirs, their_seconds = timed(lambda: by_sqrtm(a, b))
    few = Moments().add(features(2)[:1000])
    _, few_seconds = timed(lambda: frechet_distance(few, b))
    print(f"Fréchet distance at {DIMENSIONS} dimensions, CPU seconds on one thread")
    print(f"  ours           {seconds:7.1f}")
    print(f"  scipy's sqrtm  {their_seconds:7.1f}   {their_seconds / seconds:.1f} times ours")
    print(f"  ours, of 1,000 samples (singular) {few_seconds:.1f}")
    print(f"  relative difference of the results {abs(ours - theirs) / theirs:.1e}")


if __name__ == "__main__":
    main()
