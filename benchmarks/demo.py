"""`make demo`: one sampler in the terminal, and pictures of how they differ on three processes."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from stepwell.cli.main import main as stepwell

OUT = Path("runs/demo")
SAMPLERS = ["uniform", "logit-normal", "mode", "laplace", "beta", "speed"]
PROCESSES = ["linear", "cosine", "flow"]


def main() -> None:
    """Draw everything, then say where to look and what to try next."""
    OUT.mkdir(parents=True, exist_ok=True)
    stepwell(["show", "logit-normal", "--process", "cosine", "--weighting", "min-snr"])
    for process in PROCESSES:
        with contextlib.redirect_stdout(io.StringIO()):
            stepwell(["show", *SAMPLERS, "--process", process, "--save", str(OUT / f"{process}.png")])
    print("Look at", ", ".join(str(OUT / f"{process}.png") for process in PROCESSES))
    print("Try next:")
    print("  .venv/bin/stepwell ls                      every sampler, weighting and process, with its paper")
    print("  .venv/bin/stepwell show speed tau=auto     any of them, with parameters")
    print("  .venv/bin/stepwell show uniform floor=0.1 within=0.2,0.9 --process flow:shift=3")


if __name__ == "__main__":
    main()
