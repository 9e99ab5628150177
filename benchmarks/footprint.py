"""What a run leaves on disk and sends between ranks: counted on small runs, then multiplied.

Files, folders and bytes are those of one finished trial of a study, with its checkpoints. Collectives are
counted by wrapping torch.distributed's functions in two gloo processes: those of a run of 40 steps less those
of one of 20, without evaluation and saving in between, and then with one more of each. DDP's own reductions
of gradients do not pass through Python: they are one for every 25 MB of gradients.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRIALS = 10_000
WORDS = ["train", "fashion16", "model=micro", "batch=8", "samples=0", "bands=4", "evaluate_images=8"]
FUNCTIONS = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "gather_object",
    "broadcast_object_list", "all_gather_object", "reduce",
)  # fmt: skip


def on_disk() -> None:
    """Print what one trial of a study leaves."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder, "quick.toml")
        effort = "[effort]\ngenerated = 0\nbits_images = 2\n"
        study.write_text(f'methods = ["neyman"]\nworkloads = ["fashion16"]\n{effort}')
        words = ["model=micro", "steps=100", "record_every=5", "checkpoint_every=50", "seeds=1"]
        words += [f"out={folder}/out", "--records", f"{folder}/records"]
        command = [sys.executable, "-m", "stepwell", "compare", str(study), *words]
        subprocess.run(command, check=True, capture_output=True)
        print("| of one trial | files | folders | kB | of 10,000: inodes | GB |\n|---|---|---|---|---|---|")
        run, record = Path(folder, "out/fashion16/neyman/0"), Path(folder, "records/fashion16/neyman/0")
        for name, place in (("run directory", run), ("thin record", record)):
            inside = [place, *place.rglob("*")]
            files = [path.stat().st_size for path in inside if path.is_file()]
            folders = len(inside) - len(files)
            inodes, size = TRIALS * len(inside), sum(files)
            print(
                f"| {name} | {len(files)} | {folders} | {size / 1e3:,.0f} | {inodes:,} | "
                f"{TRIALS * size / 1e9:.1f} |"
            )
        for path in sorted(path for path in run.rglob("*") if path.is_file()):
            print(f"{path.relative_to(run)}: {path.stat().st_size:,} B")


def counted(method: str, **settings: int) -> collections.Counter[str]:
    """How often rank 0 of two calls each collective in a whole run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*WORDS, "record_every=1000000", f"method={method}", f"out={folder}/run"]
        words += [f"{key}={value}" for key, value in settings.items()]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*launch, __file__, "--count", f"{folder}/counts.json", *words]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return collections.Counter(json.loads(Path(folder, "counts.json").read_text()))


def count(target: Path, words: list[str]) -> None:
    """Run a command with every collective counted; rank 0 writes the counts."""
    from torch import distributed as dist

    from stepwell.cli.main import main as stepwell

    calls: collections.Counter[str] = collections.Counter()

    def wrapped(name: str) -> None:
        real = getattr(dist, name)

        def called(*arguments: object, **more: object) -> object:
            calls[name] += 1
            return real(*arguments, **more)

        setattr(dist, name, called)

    for name in FUNCTIONS:
        wrapped(name)
    code = stepwell(words)
    if os.environ["RANK"] == "0":
        target.write_text(json.dumps(calls))
    sys.exit(code)


def between_ranks() -> None:
    """Print the collectives of a step, an evaluation and a checkpoint."""
    never = {"evaluate_every": 0, "checkpoint_every": 1_000_000}
    print("\n| method | of 20 steps | of an evaluation | of a checkpoint |\n|---|---|---|---|")
    for method in ("uniform", "neyman") if len(sys.argv) == 1 else sys.argv[1:]:
        short, long = counted(method, steps=20, **never), counted(method, steps=40, **never)
        evaluated = counted(method, steps=40, evaluate_every=20, checkpoint_every=1_000_000)
        saved = counted(method, steps=40, evaluate_every=0, checkpoint_every=20)
        # Three evaluations: before the first step, in the middle and at the end.
        parts = (_less(long, short), _less(evaluated, long), _less(saved, long))
        print(f"| {method} | {parts[0]} | {parts[1]} (three of them) | {parts[2]} |", flush=True)


def _less(more: collections.Counter[str], less: collections.Counter[str]) -> str:
    left = {name: more[name] - less[name] for name in FUNCTIONS if more[name] != less[name]}
    return ", ".join(f"{number} {name}" for name, number in left.items()) or "none"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        count(Path(sys.argv[2]), sys.argv[3:])
    on_disk()
    between_ranks()
