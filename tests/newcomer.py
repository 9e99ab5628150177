"""A newcomer's first hour on an own folder of photographs, every command as it would be typed.

python tests/newcomer.py PHOTOS OUT              some minutes on two cores, with pages to look at
tests/test_newcomer.py runs it on 60 made pictures, much shortened.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

STEPWELL = [sys.executable, "-m", "stepwell"]


@dataclass(frozen=True)
class Told:
    """What a command said, and how long its first word took."""

    command: str
    first_word: float
    seconds: float
    text: str


def tell(words: list[str]) -> Told:
    """Run a command that has to succeed; both streams, as in a terminal."""
    command, started = f"stepwell {' '.join(words)}", time.monotonic()
    with subprocess.Popen(
        [*STEPWELL, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        first = running.stdout.read(1)
        first_word = time.monotonic() - started
        text = first + running.stdout.read()
    told = Told(command, first_word, time.monotonic() - started, text)
    assert running.returncode == 0, f"{command}\n{text}"
    assert "Traceback" not in text, f"{command}\n{text}"
    return told


def watched(words: list[str], out: Path) -> tuple[Told, str]:
    """A command while `stepwell watch` shows it; and the page at its end."""
    watch = [*STEPWELL, "watch", str(out), "--port", "0", "--no-open"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watching:
        assert watching.stdout is not None
        try:
            line = ""
            while "http" not in line:
                line = watching.stdout.readline()
                assert line, "watch ended without an address"
            told = tell(words)
            address = line[line.index("http") :].split()[0].rstrip(".;,")
            with urllib.request.urlopen(address, timeout=60) as page:
                return told, page.read().decode()
        finally:
            watching.terminate()


def first_hour(photos: Path, out: Path, more: list[str], seeds: int = 3) -> dict[str, Told]:
    """Look at the data, train, watch, generate, evaluate, compare, report, export, fine-tune by LoRA."""
    out.mkdir(parents=True, exist_ok=True)
    run, study, tuned = out / "first", out / "study", out / "tuned"
    data = [f"data={photos}", "size=32", *more]
    told = {"data": tell(["data", "show", str(photos), "--size", "32"])}
    told["train"], page = watched(["train", "images", *data, f"out={run}"], run)
    (out / "watch.html").write_text(page)
    told["resume"] = tell(["train", str(run)])
    told["generate"] = tell(["generate", str(run), "-n", "16", "--out", str(out / "images.png")])
    told["evaluate"] = tell(["evaluate", str(run), "-n", "16"])
    told["gain"] = tell(["analyze", "gain", str(run)])
    compare = ["compare", "images", *data, "methods=uniform,auto", f"seeds={seeds}", f"out={study}"]
    told["compare"] = tell([*compare, "--report", str(out / "study.html")])
    told["report"] = tell(["report", str(run), "--out", str(out / "run.html")])
    told["export"] = tell(["export", str(run), "--out", str(out / "pipeline")])
    tune = ["train", "images", *data, f"from={run}", "lora=4", f"out={tuned}"]
    told["tune"] = tell(tune)
    told["adapters"] = tell(["export", str(tuned), "--adapters", "--out", str(out / "adapters")])
    return told


if __name__ == "__main__":
    for one in first_hour(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]).values():
        print(f"\n$ {one.command}\n{one.text.rstrip()}")
        print(f"[first word {one.first_word:.1f} s, {one.seconds:.0f} s]")
