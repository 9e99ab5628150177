"""RESULTS.md from benchmarks/records: nobody types a number into it."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent


def keep(name: str, title: str, how: str, columns: list[str], rows: list[list[str]]) -> None:
    """Leave a record of a finished benchmark."""
    from stepwell.runs.environment import environment

    record = {"title": title, "how": how, "columns": columns, "rows": rows, "environment": environment()}
    (HERE / "records" / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Rewrite RESULTS.md."""
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
    (HERE / "RESULTS.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
