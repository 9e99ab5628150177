"""How the trainer's time and memory grow with batch, timesteps, parameters, image size and steps."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

STEPS, WARM = 10, 3
BASE = {
    "batch": 64,
    "process": "linear:timesteps=1000",
    "model": "tiny",
    "data": "fashion16",
    "method": "loss-ema",
}
AXES: dict[str, list[str]] = {
    "batch": ["16", "64", "256"],
    "process": ["linear:timesteps=100", "linear:timesteps=1000", "linear:timesteps=4000"],
    "model": ["micro", "tiny", "small"],
    "data": ["16x16", "32x32", "64x64"],
    "method": ["uniform", "loss-ema", "loss-second-moment"],
}


def measure(words: list[str], steps: int, results: multiprocessing.Queue[tuple[float, float, int]]) -> None:
    """Seconds a step and the peak memory of one process, with the number of parameters."""
    import torch
    from accelerate import Accelerator

    from stepwell.recipes.experiment import experiment
    from stepwell.recipes.load import load
    from stepwell.recipes.training import training_of
    from stepwell.train.step import train_step

    torch.set_num_threads(2)
    made = experiment(load("fashion16", words))
    training = training_of(made, Accelerator(cpu=True))
    for step in range(WARM):
        train_step(training, step)
    started = time.perf_counter()
    for step in range(WARM, WARM + steps):
        train_step(training, step)
    seconds = (time.perf_counter() - started) / steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results.put((seconds, peak, sum(p.numel() for p in made.denoiser.parameters())))


def main() -> None:
    """Vary one thing at a time; ratios are to the base of the same run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stepwell.recipes.run"])

    def run(settings: dict[str, object], steps: int = STEPS) -> tuple[float, float, int]:
        results: multiprocessing.Queue[tuple[float, float, int]] = context.Queue()
        words = [f"{key}={value}" for key, value in settings.items()]
        child = context.Process(target=measure, args=(words, steps, results))
        child.start()
        found = results.get()
        child.join()
        return found

    with tempfile.TemporaryDirectory() as folder:
        base = run(BASE)
        print(
            f"base {BASE}: {base[0] * 1e3:.0f} ms a step, {base[1]:.0f} MiB at most, {base[2]:,} parameters"
        )
        print(f"{'':34}{'time':>8}{'memory':>10}{'parameters':>14}")
        for axis, values in AXES.items():
            for value in values:
                setting = _images(Path(folder), value) if axis == "data" else value
                seconds, peak, parameters = run({**BASE, axis: setting})
                name = f"{axis} {value}"
                print(f"{name:34}{seconds / base[0]:>7.2f}x{peak:>6.0f} MiB{parameters:>14,}", flush=True)
        short, long = run(BASE, 20), run(BASE, 320)
        print(f"peak memory after 20 steps {short[1]:.0f} MiB, after 320 steps {long[1]:.0f} MiB")


def _images(folder: Path, size: str) -> str:
    """Noise images of a size: only their shape matters here."""
    import numpy

    side = int(size.partition("x")[0])
    path = folder / f"{size}.npz"
    generator = numpy.random.default_rng(0)
    numpy.savez(path, images=generator.integers(0, 256, (1000, side, side), dtype=numpy.uint8))
    return str(path)


if __name__ == "__main__":
    main()
