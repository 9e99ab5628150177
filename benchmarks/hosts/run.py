"""Real trainers of others, each in an environment of its own: `make hosts`, or this with the names of some.

    python benchmarks/hosts/run.py torchcfm lerobot

A host NAME has NAME.py (what runs; `check.py` says how), NAME.txt (pinned requirements) and, where a
dependency would bring CUDA or does not exist, NAME.nodeps.txt (installed without theirs). Environment,
sources and output are in .hosts/NAME. Sources that no package has are taken from bare repositories below
$STEPWELL_HOST_SOURCES/OWNER+NAME/repo if that is set, else from GitHub. Rows go to benchmarks/records/hosts/,
and the table of all of them to benchmarks/records/hosts.json.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".hosts"
ROWS = ROOT / "benchmarks" / "records" / "hosts"
TORCH = "torch==2.13.0"
"""Given in every installation: a looser one brings CUDA."""
LONGEST = 3600
"""Seconds after which a host has failed."""

Row = dict[str, Any]


class HostFailed(Exception):
    """One host could not be set up or run: it leaves a row that says why, and the others go on."""


def names() -> list[str]:
    """Every host that has requirements."""
    return sorted(path.stem for path in HERE.glob("*.txt") if not path.stem.endswith(".nodeps"))


def source_of(script: str) -> tuple[str, str] | None:
    """(owner/name, commit) from `SOURCE = ...` in a host's script, without running it."""
    for statement in ast.parse(script).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "SOURCE":
            repository, commit = ast.literal_eval(statement.value)
            return repository, commit
    return None


def address_of(repository: str) -> str:
    """Where a repository is cloned from."""
    mirrors = os.environ.get("STEPWELL_HOST_SOURCES")
    if mirrors:
        return str(Path(mirrors) / repository.replace("/", "+") / "repo")
    return f"https://github.com/{repository}"


def check_out(source: tuple[str, str], folder: Path) -> None:
    """The files of one commit, in a folder."""
    repository, commit = source
    if (folder / ".commit").exists() and (folder / ".commit").read_text() == commit:
        return
    shutil.rmtree(folder, ignore_errors=True)
    _call(["git", "clone", "--quiet", "--no-checkout", address_of(repository), str(folder)])
    _call(["git", "-C", str(folder), "checkout", "--quiet", commit])
    (folder / ".commit").write_text(commit)


def environment(name: str, folder: Path) -> Path:
    """The python of a host's environment, made anew when its requirements change."""
    normal, alone = HERE / f"{name}.txt", HERE / f"{name}.nodeps.txt"
    wanted = [path.read_text() for path in (normal, alone) if path.exists()]
    digest = hashlib.sha256("\n".join([TORCH, *wanted]).encode()).hexdigest()
    python, ready = folder / "venv" / "bin" / "python", folder / ".ready"
    if ready.exists() and ready.read_text() == digest:
        return python
    shutil.rmtree(folder / "venv", ignore_errors=True)
    _call([sys.executable, "-m", "venv", str(folder / "venv")])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _call([*pip, TORCH, *(["-r", str(normal)] if normal.exists() else [])])
    if alone.exists():
        _call([*pip, "--no-deps", "-r", str(alone)])
    _call([*pip, "--no-deps", "-e", str(ROOT)])
    ready.write_text(digest)
    return python


def run(name: str) -> Row:
    """Set one host up, run its script, and return its row."""
    folder = ENVIRONMENTS / name
    folder.mkdir(parents=True, exist_ok=True)
    script, written = HERE / f"{name}.py", folder / "row.json"
    python = environment(name, folder)
    if source := source_of(script.read_text()):
        check_out(source, folder / "source")
    written.unlink(missing_ok=True)
    # -P: a script is called like the package that it imports.
    variables = {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    _call([str(python), "-P", str(script), str(written)], cwd=folder, env={**os.environ, **variables})
    row: Row = json.loads(written.read_text())
    return row


def _call(words: list[str], **more: Any) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST, **more)
    except subprocess.TimeoutExpired as error:
        raise HostFailed(f"{Path(words[0]).name} took longer than {LONGEST} seconds") from error
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr, sep="\n")
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no output"]
        raise HostFailed(last[0])


def attempt(name: str) -> Row:
    """The row of a host, also if it fails."""
    started = time.perf_counter()
    try:
        return run(name)
    except HostFailed as failed:
        return {"host": name, "failed": str(failed), "seconds": time.perf_counter() - started}


COLUMNS = [
    "host",
    "version",
    "what was run",
    "what was not",
    "bit-equal when fed",
    "lines changed",
    "overhead",
    "an update without",
    "objective's mass by quarter of time",
    "`auto`'s",
    "`loss-root`'s",
    "loss without, with",
    "the same after a resume",
]


def cells(row: Row) -> list[str]:
    """A row as RESULTS.md has it."""
    if "failed" in row:
        return [row["host"], "", f"failed: {row['failed']}", *[""] * (len(COLUMNS) - 3)]
    over, mass, loss = row["overhead"], row["mass_by_quarter"], row["final_loss"]
    masses = [" ".join(f"{part:.2f}" for part in mass[when]) for when in ("before", "after", "loss-root")]
    return [
        row["host"],
        row["version"],
        row["ran"],
        row["left_out"],
        "yes" if row["bit_equal_when_fed"] else "no",
        str(row["lines_changed"]),
        f"{over['ratio']:.2f}x ({over['least']:.2f} to {over['most']:.2f})",
        f"{row['milliseconds_of_an_update']:.1f} ms",
        *masses,
        f"{loss['published']:.4g}, {loss['paced']:.4g}",
        row["resumed"] or "not tried",
    ]


HOW = (
    "Each host in an environment of its own, on the CPU with one thread: 60 updates of a tiny random model "
    "as published, with the Pacer (`auto`) by the lines of its page, and again as published with its own "
    "draw replaced by the times that the Pacer drew; the losses of these two are compared bit for bit "
    "(uncorrected, so that weights are 1). Overhead: processor seconds of an update with the Pacer over "
    "those without, in blocks of 30 updates in turn in one process: the median of five pairs, and their "
    "range. The models are tiny, so an update is short, and the Pacer's milliseconds weigh more than in real "
    "training. Masses are those of the quarters of unit time, from data to noise; `auto` stays at the "
    "objective's own where it would save less than 2 % of the variance, `loss-root` follows the losses "
    "anyway. Losses are means of the last ten updates of one seed: they say that it trains, not which is "
    "better. After a resume: how many draws in a row, of the 30 that were left, are those of a run that was "
    "not interrupted; `auto` learns from losses, so that hosts that shuffle anew draw anew, too."
)


def keep_table() -> None:
    """The table of all rows there are, and RESULTS.md."""
    sys.path.insert(0, str(HERE.parent))
    import results

    rows = [cells(json.loads(path.read_text())) for path in sorted(ROWS.glob("*.json"))]
    results.keep(
        "hosts", "Real hosts, really run", HOW, COLUMNS, rows, command="python benchmarks/hosts/run.py"
    )
    results.main()


def main() -> None:
    """Run the hosts that are named, or all, and keep what they say."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("hosts", nargs="*", metavar="HOST", help=f"some of {', '.join(names())}; or all")
    asked = options.parse_args().hosts or names()
    if unknown := sorted(set(asked) - set(names())):
        raise SystemExit(f"no host is called {', '.join(unknown)}: there are {', '.join(names())}.")
    ROWS.mkdir(exist_ok=True)
    for name in asked:
        row = attempt(name)
        (ROWS / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n")
        print("  ".join(cells(row)), flush=True)
        keep_table()


if __name__ == "__main__":
    main()
