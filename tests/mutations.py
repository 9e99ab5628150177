"""Break one line at a time and see that a test fails: `make mutate`, or this script with names of mutations.

Each entry of mutations.toml is applied in a temporary copy of the tree, never in the tree itself. A run goes
on where the last one stopped; `--again` starts anew. `--tree DIR` breaks another checkout: an old one, say.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
RECORD = HERE / "benchmarks/records/tests/mutations.json"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "site")
SECONDS = 900
"""After which a run of tests counts as failed."""


@dataclass(frozen=True)
class Mutation:
    """One line of src that is made wrong, and the pytest arguments that should notice."""

    name: str
    file: str
    text: str
    becomes: str
    tests: list[str]
    old: str | None = None
    old_becomes: str | None = None

    def place(self, tree: Path) -> tuple[Path, str, str]:
        """The file that holds the text exactly once, the text and its replacement."""
        choices = [(self.text, self.becomes)]
        if self.old is not None:
            choices.append((self.old, self.old_becomes or self.becomes))
        for text, becomes in choices:
            named = tree / "src/stepwell" / self.file
            for files in ([named] if named.exists() else [], sorted((tree / "src").rglob("*.py"))):
                holders = [path for path in files if text in path.read_text()]
                if len(holders) == 1 and holders[0].read_text().count(text) == 1:
                    return holders[0], text, becomes
        raise LookupError(f"{self.name}: {self.text!r} does not stand exactly once in {tree}/src")


def load() -> list[Mutation]:
    """All mutations, in the order of the file."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutation"]
    return [Mutation(**entry) for entry in entries]


def resolved(tree: Path, word: str) -> str:
    """A pytest argument; a test file that has moved since is found by its name."""
    if not word.endswith(".py") or (tree / word).exists():
        return word
    named = sorted((tree / "tests").rglob(Path(word).name))
    if len(named) != 1:
        raise LookupError(f"{word} is not in {tree}, nor is one other file of that name")
    return str(named[0].relative_to(tree))


def failing_test(tree: Path, tests: str) -> str | None:
    """The first test that fails, None if all pass."""
    options = "-x -q -rfE -n 0 -m 'not slow' -p no:cacheprovider"
    command = [sys.executable, "-m", "pytest", *shlex.split(options)]
    variables = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, *(resolved(tree, word) for word in shlex.split(tests))],
            cwd=tree,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"{tests}: no answer after {SECONDS} s"
    if done.returncode == 0:
        return None
    if done.returncode in (4, 5):
        raise LookupError(
            f"pytest has nothing to run for {tests!r}:\n{done.stdout[-500:]}{done.stderr[-500:]}"
        )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else done.stdout[-300:]


def outcome(mutation: Mutation, tree: Path, sound: dict[str, bool]) -> dict[str, Any]:
    """What happened to one mutation; `sound` remembers which tests pass without any."""
    path, text, becomes = mutation.place(tree)
    content = path.read_text()
    compile(content.replace(text, becomes), path, "exec")
    for tests in mutation.tests:
        if tests not in sound:
            sound[tests] = failing_test(tree, tests) is None
        if not sound[tests]:
            continue
        try:
            path.write_text(content.replace(text, becomes))
            caught_by = failing_test(tree, tests)
        finally:
            path.write_text(content)
        if caught_by is not None:
            return {"caught": True, "by": caught_by, "file": str(path.relative_to(tree))}
    unsound = [tests for tests in mutation.tests if not sound[tests]]
    return {"caught": False, "file": str(path.relative_to(tree)), **({"unsound": unsound} if unsound else {})}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations to try; all if left out")
    parser.add_argument("--tree", type=Path, default=HERE, help="the checkout to break a copy of")
    parser.add_argument("--label", default="now", help="under which name the record keeps this run")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--again", action="store_true", help="try also what the record has")
    options = parser.parse_args()
    chosen = [m for m in load() if not options.names or m.name in options.names]
    record = json.loads(options.record.read_text()) if options.record.exists() else {}
    results = record.setdefault(options.label, {})
    sound: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(options.tree, tree, ignore=LEFT_OUT)
        for mutation in chosen:
            if mutation.name in results and not options.again and not options.names:
                continue
            started = time.monotonic()
            try:
                results[mutation.name] = outcome(mutation, tree, sound)
            except LookupError as error:
                print(error, file=sys.stderr)
                results.pop(mutation.name, None)
                continue
            result = results[mutation.name]
            said = (
                f"caught by {result['by']}" if result["caught"] else f"SURVIVED {result.get('unsound', '')}"
            )
            print(f"{mutation.name}: {said} ({time.monotonic() - started:.0f} s)", flush=True)
            options.record.parent.mkdir(parents=True, exist_ok=True)
            options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    caught = sum(results.get(m.name, {"caught": False})["caught"] for m in chosen)
    print(f"{caught} of {len(chosen)} mutations caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
