"""What the commands print fits the terminal, and loses nothing; a file or a pipe gets it in full."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from stepwell.cli import columns
from stepwell.cli.compare import _rows
from stepwell.cli.main import main
from stepwell.compare.views import Table

Narrow = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Narrow:
    """Makes standard output a terminal of so many columns."""

    def of(width: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))

    return of


@pytest.mark.parametrize(
    "command",
    [
        "ls -p",
        "show cosine",
        "show min-snr --process cosine",
        "show uniform,logit-normal,speed --weighting p2",
        "train fashion16 --settings",
        "compare demo --dry-run",
        "analyze increments cosine",
        "table logit-normal --nearest",
    ],
)
@pytest.mark.parametrize("width", [80, 60])
def test_no_line_is_wider_than_the_terminal(
    command: str, width: int, terminal: Narrow, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(width)
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > width] == []


def test_the_catalogue_has_the_same_words_at_any_width(
    terminal: Narrow, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["ls", "-p"])
    full = capsys.readouterr().out
    assert max(map(len, full.splitlines())) > 200
    terminal(60)
    main(["ls", "-p"])
    assert capsys.readouterr().out.split() == full.split()


def test_columns_beyond_the_terminal_follow_below_with_the_names(terminal: Narrow) -> None:
    rows = [["method", "first", "second"], ["uniform", "1.00", "2.00"], ["a" * 30, "3.00", "4.00"]]
    assert columns.table(rows)[1] == f"{'uniform':30}  1.00   2.00"
    terminal(24)
    assert columns.table(rows, right=True) == [
        "method        first",
        "uniform        1.00",
        "aaaaaaaaa...   3.00",
        "",
        "method        second",
        "uniform         2.00",
        "aaaaaaaaa...    4.00",
    ]


def test_a_comparison_leads_with_its_main_columns(terminal: Narrow) -> None:
    table = Table("", ("method", "against", "images", "end"), (("auto", "uniform", "0.5", "0.9"),))
    led = Table("", table.columns, table.rows, leading=("method", "images"))
    assert _rows(led) == ["method  against  images  end", "auto    uniform  0.5     0.9"]
    terminal(20)
    assert _rows(led)[:2] == ["method  images", "auto    0.5"]
    assert "wider terminal" in _rows(led)[2]
    assert "0.9" in "\n".join(_rows(table))


def test_text_goes_below_a_label_that_leaves_no_room(terminal: Narrow) -> None:
    terminal(30)
    assert columns.labelled("name  ", "a few words that are long") == "name  a few words that are\n      long"
    assert columns.labelled("a long label  ", "and words after it") == "a long label\n    and words after it"
    assert columns.folded("  - twenty letters and a few more") == "  - twenty letters and a few\n  more"
