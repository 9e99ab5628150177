"""The report of many runs: its seconds, its peak memory and its size.

The runs are thin records of `linear` under benchmarks/records/runs, copied under other seeds, methods and
workloads, with losses that are multiplied by a random factor, so that no two are the same.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDS = Path(__file__).parent / "records" / "runs" / "linear"
METHODS = (
    "uniform",
    "min-snr",
    "p2",
    "neyman",
    "loss-ema",
    "speed",
    "debiased",
    "logit-normal",
    "auto",
    "mode",
)
PROCESSES = (
    "linear",
    "cosine",
    "quadratic",
    "scaled-linear",
    "flow",
    "edm",
    "vp",
    "ve",
    "linear:zero_snr=true",
)


def generate(folder: Path, count: int) -> int:
    """Write run directories; returns their bytes."""
    chance, size = random.Random(0), 0
    sources = sorted(path.parent for path in RECORDS.rglob("recipe.json"))
    for number in range(count):
        seed, kind = divmod(number, len(METHODS) * len(PROCESSES))
        method, process = METHODS[kind % len(METHODS)], PROCESSES[kind // len(METHODS)]
        place, source = folder / str(kind) / str(seed), sources[number % len(sources)]
        place.mkdir(parents=True)
        recipe = {**json.loads((source / "recipe.json").read_text()), "steps": 0}
        factor = 1 + 0.1 * chance.random()
        metrics = re.sub(
            r'("objective/[^"]+"):([\d.e-]+)',
            lambda found: f"{found[1]}:{float(found[2]) * factor:.5g}",  # noqa: B023
            (source / "metrics.jsonl").read_text(),
        )
        recipe |= {"method": method, "process": process, "seed": seed}
        recipe["steps"] = json.loads(metrics.splitlines()[-1])["step"]
        contents = {"recipe.json": json.dumps(recipe), "metrics.jsonl": metrics}
        contents |= {name: (source / name).read_text() for name in ("score.json", "environment.json")}
        for name, text in contents.items():
            size += (place / name).write_text(text)
    return size


def main() -> None:
    """Generate, report, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[500, 5000])
    options = parser.parse_args()
    print("| runs | their MB | seconds | peak MB | page MB |\n|---|---|---|---|---|")
    for count in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            size = generate(Path(folder, "runs"), count)
            page = Path(folder, "report.html")
            command = [sys.executable, "-m", "stepwell", "report", f"{folder}/runs", "--out", str(page)]
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            figures = (size / 1e6, seconds, worked, after.ru_maxrss / 1024, page.stat().st_size / 1e6)
        print(
            "| {:,} | {:.1f} | {:.1f} ({:.1f} of CPU) | {:.0f} | {:.1f} |".format(count, *figures), flush=True
        )


if __name__ == "__main__":
    main()
