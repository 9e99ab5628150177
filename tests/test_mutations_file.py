"""Every entry of mutations.toml still breaks a line that is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutations import Mutation, load, resolved

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutation", load(), ids=lambda mutation: mutation.name)
def test_its_text_stands_once_and_its_tests_are_there(mutation: Mutation) -> None:
    path, text, becomes = mutation.place(ROOT)
    compile(path.read_text().replace(text, becomes), path, "exec")
    for word in mutation.tests:
        resolved(ROOT, word)
