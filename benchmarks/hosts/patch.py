"""The diff that a page of docs/integrations shows, put onto a host's source: what is read is what runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
_ELSEWHERE = " ..."
"""A line of a diff between two places of a file."""


def diff_of(page: str, section: str = "") -> str:
    """The first diff of docs/integrations/PAGE.md, or of its section with this heading."""
    text = (PAGES / f"{page}.md").read_text()
    if section:
        _, found, text = text.partition(f"\n## {section}\n")
        if not found:
            raise SystemExit(f"docs/integrations/{page}.md has no section {section!r}: name one that it has.")
    diff = re.search(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if diff is None:
        raise SystemExit(
            f"docs/integrations/{page}.md shows no diff {section and f'in {section!r}'}: add one."
        )
    return diff[1]


def patched(source: str, diff: str) -> str:
    """A source after a diff whose lines stand there as they are in the file; ` ...` is between two places."""
    position, lines = 0, source.splitlines()
    for place in _places(diff):
        before = [line[1:] for line in place if not line.startswith("+")]
        after = [line[1:] for line in place if not line.startswith("-")]
        starts = [at for at in range(position, len(lines)) if lines[at : at + len(before)] == before]
        if len(starts) != 1 or not before:
            shown = "\n".join(place)
            raise SystemExit(
                f"these lines are {len(starts)} times in the rest of the source, and must be there "
                f"once: quote lines around the change as they are in the pinned version.\n{shown}"
            )
        lines[starts[0] : starts[0] + len(before)] = after
        position = starts[0] + len(after)
    return "\n".join(lines) + "\n"


def _places(diff: str) -> list[list[str]]:
    places: list[list[str]] = [[]]
    for line in diff.splitlines():
        if line == _ELSEWHERE:
            places.append([])
        else:
            # An empty line of context has lost its blank in most editors.
            places[-1].append(line or " ")
    return [place for place in places if place]
