"""RESULTS.md from benchmarks/records: nobody types a number into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def keep(
    name: str,
    title: str,
    how: str,
    columns: list[str],
    rows: list[list[str]],
    made_in: dict[str, Any] | None = None,
) -> None:
    """Leave a record of a finished benchmark; `made_in` is the environment of its runs, if not this one."""
    from stepwell.runs.directory import environment

    where = made_in or environment()
    record = {"title": title, "how": how, "columns": columns, "rows": rows, "environment": where}
    (HERE / "records" / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def text() -> str:
    """RESULTS.md as the records have it."""
    parts = ["# Results", "", "Made by `benchmarks/results.py` from `benchmarks/records/`.", ""]
    for path in sorted((HERE / "records").glob("*.json")):
        record = json.loads(path.read_text())
        machine = record["environment"]
        parts += [
            f"## {record['title']}",
            "",
            record["how"],
            f"Machine: {machine['processor']}, {machine['cores']} cores, commit {machine['commit']}, "
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
