"""RESULTS.md from benchmarks/records: nobody types a number into it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from stepwell.compare.stats import Ratio

HERE = Path(__file__).parent


def keep(
    name: str,
    title: str,
    how: str,
    columns: list[str],
    rows: list[list[str]],
    made_in: dict[str, Any] | None = None,
    command: str = "",
) -> None:
    """Leave a record of a finished benchmark.

    `made_in` is the environment of its runs, if not this one; `command` makes it again, by default the one
    that is running. Places of this machine are refused: nobody else has them.
    """
    from made_data import made_by

    from stepwell.runs.directory import environment
    from stepwell.runs.portable import places, portable_environment

    where = portable_environment(made_in or environment())
    running = shlex.join(where.pop("command", []))
    content = {"title": title, "how": how, "command": command or running}
    content |= {"data": made_by(f"{content['command']} {rows}"), "columns": columns, "rows": rows}
    for text in (how, content["command"], *(cell for row in rows for cell in row)):
        if found := places(text):
            raise SystemExit(f"the record {name} would name {found[0]}, which is only here. {ELSEWHERE}")
    record = {**content, "environment": where}
    (HERE / "records" / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


ELSEWHERE = "Make data where benchmarks/made_data.py says, and name them as it does (data=runs/...)."


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a record, by its columns."""
    record = json.loads((HERE / "records" / f"{name}.json").read_text())
    return [dict(zip(record["columns"], row, strict=True)) for row in record["rows"]]


def read_ratio(text: str, seeds: str) -> Ratio:
    """A ratio that is kept as text."""
    match = re.match(r"(\S+) \((\S+) to (\S+)\)", text)
    assert match is not None, text
    mean, low, high = map(float, match.groups())
    return Ratio(mean, low, high, high, int(seeds))


def text() -> str:
    """RESULTS.md as the records have it."""
    parts = ["# Results", "", "Made by `benchmarks/results.py` from `benchmarks/records/`.", ""]
    for path in sorted((HERE / "records").glob("*.json")):
        record = json.loads(path.read_text())
        machine = record["environment"]
        commit = machine["commit"] or "unknown"
        parts += [
            f"## {record['title']}",
            "",
            record["how"],
            " ".join(filter(None, [f"Made by `{record['command']}`.", record["data"]])),
            f"Machine: {machine['processor']}, {machine['cores']} cores, commit {commit}, "
            f"torch {machine['packages']['torch']}.",
            "",
            "| " + " | ".join(record["columns"]) + " |",
            "|" + "---|" * len(record["columns"]),
            *("| " + " | ".join(row) + " |" for row in record["rows"]),
            "",
        ]
    return "\n".join(parts)


def main() -> None:
    """Rewrite RESULTS.md."""
    (HERE / "RESULTS.md").write_text(text())


if __name__ == "__main__":
    main()
