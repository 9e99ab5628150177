"""The report's text: whole, escaped, small, and true to the files that it was made from."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from compare.summaries import good, hostile, like_the_demo, ratio, states
from train.small_runs import small_run

from stepwell.cli.main import main
from stepwell.compare.report.data import OCTAVES, chart_data, embedded
from stepwell.compare.report.forest import Scale
from stepwell.compare.report.page import render
from stepwell.compare.samples import Sheet
from stepwell.compare.stats import paired
from stepwell.compare.views import Heat, Summary, Table

BAD = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\"' onmouseover=alert(1) x='",
    "&lt;b&gt;&amp;",
    "]]>\u2028\u2029\\u003c",
    "$title ${part_verdict} $$",
)


class Page(HTMLParser):
    """Elements, tables and the text of a page, as a browser would part them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data
        if self._open:
            self.text[self._open[-1]] = self.text.get(self._open[-1], "") + data

    def data(self, text: str) -> Any:
        """What is embedded for the charts."""
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
        assert found is not None
        return json.loads(found[1])


def test_answer_samples_curves_and_densities_come_before_numbers() -> None:
    text = render(good())
    places = [
        text.index(words)
        for words in (
            'class="verdict">neyman needs',
            'class="answer"',
            "<h2>Samples",
            "Learning curves",
            "Timesteps drawn during training",
            "Loss per band",
            "Performance profiles",
            "<h2>In numbers",
            "All workloads</h3>",
            "How to read this",
            "<h2>Caveats",
            "<h2>Details",
            "How to reproduce",
        )
    ]
    assert places == sorted(places)


def tables(summary: Summary) -> list[Table]:
    """All of them, in the order of the page."""
    found = [summary.overall, *(t for one in summary.workloads for t in (one.table, one.forecasts))]
    return [table for table in found if table is not None]


def test_tables_have_headers_with_scope_and_every_cell() -> None:
    summary = good()
    page = Page(render(summary))
    assert len(tables(summary)) == 5
    for table in tables(summary):
        assert list(table.columns) in page.rows
        for row in table.text_rows():
            assert row in page.rows
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in page.tags if tag == "th")


def test_the_page_needs_no_other_file() -> None:
    for live in (None, "running"):
        text = render(good(), live)
        page = Page(text)
        assert not any(tag in ("iframe", "object", "embed", "base", "form") for tag, _ in page.tags)
        addresses = [
            value or ""
            for _, attributes in page.tags
            for name, value in attributes.items()
            if name in ("src", "href", "srcset", "action", "data")
        ]
        assert all(address.startswith(("data:image/", "#")) for address in addresses)
        assert "@import" not in text
        assert "url(" not in re.sub(r"url\(#\$\{clip\}\)", "", text)
        policy = next(
            a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy is not None
        assert policy.startswith("default-src 'none'")
        assert ("connect-src 'self'" if live else "connect-src 'none'") in policy


@pytest.mark.parametrize("bad", BAD)
def test_nothing_from_outside_becomes_markup(bad: str) -> None:
    text = render(hostile(bad))
    page, plain = Page(text), Page(render(hostile("harmless")))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [list(attributes) for _, attributes in page.tags] == [
        list(attributes) for _, attributes in plain.tags
    ]
    assert text.count("<script") == 2
    assert page.data(text)["data"]["methods"][0]["name"] == bad
    assert [bad, bad] in page.rows
    assert page.text["title"] == bad


def test_embedded_json_cannot_end_its_element() -> None:
    shown = embedded({"</script>": "<!-- & \u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(shown)
    assert json.loads(shown) == {"</script>": "<!-- & \u2028\u2029"}


def test_pictures_that_are_no_pictures_are_not_shown() -> None:
    summary = good(4, 1)
    workload = summary.workloads[0]
    for uri in (
        "https://example.org/x.png",
        "javascript:alert(1)",
        "data:text/html;base64,AAAA",
        'data:image/png;base64,A" x="',
    ):
        method = replace(workload.methods[0], sheet=Sheet(uri, "x"))
        text = render(replace(summary, workloads=(replace(workload, methods=(method,)),)))
        assert "<img" not in text


def test_sixty_runs_of_120_points_are_less_than_a_megabyte() -> None:
    summary = good(120, 3, tuple(f"method-{index}" for index in range(10)))
    assert sum(len(workload.runs) for workload in summary.workloads) == 60
    bare = tuple(
        replace(workload, methods=tuple(replace(method, sheet=None) for method in workload.methods))
        for workload in summary.workloads
    )
    assert len(render(replace(summary, workloads=bare)).encode()) < 1_000_000


def test_numbers_that_are_not_finite_are_left_out_of_charts() -> None:
    summary = good(4, 1)
    workload = summary.workloads[0]
    run = replace(workload.runs[0], values={"objective/simple": (1.0, None, float("nan"), float("inf"))})
    text = render(replace(summary, workloads=(replace(workload, runs=(run,)),)))
    assert Page(text).data(text)["data"]["workloads"][0]["runs"][0]["values"]["objective/simple"] == [
        1,
        None,
        None,
        None,
    ]


def test_densities_survive_their_bytes() -> None:
    import base64

    summary = good(2, 1)
    heights = (0.0, 0.02, 0.5, 1.0, 3.0, 1000.0)
    method = replace(summary.workloads[0].methods[0], density=Heat((0.0,), (heights,)))
    data = chart_data(replace(summary, workloads=(replace(summary.workloads[0], methods=(method,)),)))
    cells = base64.b64decode(data["workloads"][0]["methods"][0]["heat"]["cells"])
    back = [2 ** (byte / 255 * 2 * OCTAVES - OCTAVES) for byte in cells]
    assert back == pytest.approx([2**-OCTAVES, 0.02, 0.5, 1.0, 3.0, 2**OCTAVES], rel=0.03)


def test_a_summary_with_nothing_in_it_is_still_a_page() -> None:
    text = render(Summary("empty", (), (), (), ()))
    assert '<p class="verdict">empty</p>' in text
    empty = Table("", ("method",), ())
    render(replace(good(0, 0), overall=empty))


def test_intervals_are_drawn_beside_ratios_only() -> None:
    rows = (
        ("neyman", ratio(0.62, 0.55, 0.70), "0.62 (0.55 to 0.70)"),
        ("uniform", ratio(1.0, 0.0, math.inf), paired([0.5, math.inf, 0.6])),
    )
    summary = replace(good(2, 1), overall=Table("x", ("a", "b", "c"), rows), workloads=(), answers=())
    text = render(summary)
    assert text.count('<svg class="range') == 2
    assert '<b>0.62</b> <span class="interval">(0.55 to 0.70)</span>' in text


def test_columns_that_nothing_is_known_for_are_left_out() -> None:
    rows = (("neyman", "", "0.03", ""), ("uniform", "", "", "x"))
    text = render(
        replace(good(2, 1), overall=Table("x", ("a", "b", "c", "d"), rows), workloads=(), answers=())
    )
    assert Page(text).rows[:3] == [["a", "c", "d"], ["neyman", "0.03", ""], ["uniform", "", "x"]]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("study")
    for method in ("uniform", "min-snr"):
        for seed in (0, 1):
            small_run(place / f"{method}-{seed}", method=method, seed=seed, samples=4, sample_steps=2)
    return place


def test_a_report_says_what_the_run_directories_say(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = study / "pages" / "report.html"
    assert main(["report", str(study), "--out", str(out)]) == 0
    assert f"{out}: 4 runs" in capsys.readouterr().out
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    curves = page.data(text)["data"]["workloads"][0]["runs"]
    for method in ("uniform", "min-snr"):
        ends = []
        for seed in (0, 1):
            lines = (study / f"{method}-{seed}" / "metrics.jsonl").read_text().splitlines()
            records = [record for record in map(json.loads, lines) if record["kind"] == "evaluation"]
            expected = [record["objective/simple"] for record in records]
            ends.append(expected[-1])
            drawn = next(run for run in curves if (run["method"], run["seed"]) == (method, seed))
            assert drawn["values"]["objective/simple"] == pytest.approx(expected, rel=1e-4)
            assert drawn["steps"] == [record["step"] for record in records]
            assert drawn["images"] == [record["images"] for record in records]
            row = next(row for row in page.rows if row[:2] == [method, str(seed)])
            assert float(row[2]) == pytest.approx(expected[-1], rel=1e-4)
        table = next(row for row in page.rows if row[0] == method and len(row) > 8)
        assert any(cell == f"{sum(ends) / 2:.4g}" for cell in table)
    assert text.count("<img") == 2


def test_report_and_evaluate_say_the_same_of_the_same_weights(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = study / "uniform-0"
    assert main(["evaluate", str(run), "-n", "0", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["objective/simple"]
    assert main(["report", str(run), "--out", str(study / "one.html")]) == 0
    assert f"simple loss {measured:.5f} after 12 steps" in capsys.readouterr().out
    text = (study / "one.html").read_text(encoding="utf-8")
    assert text.index(f"simple loss {measured:.5f}") < text.index("<img") < text.index("Learning curves")


def test_the_answer_is_a_picture_and_a_table() -> None:
    text = render(like_the_demo())
    (answer,) = re.findall(r'<table class="answer">.*?</table>', text, re.S)
    assert re.findall(r'<tr class="(\w+)"><th scope="row">([\w-]+)', answer) == [
        ("worse", "min-snr"),
        ("better", "neyman"),
        ("undecided", "alignment"),
        ("undecided", "uniform"),
    ]
    assert "<b>0.62</b> (0.55 to 0.70)" in answer
    places = [float(place) for place in re.findall(r'<circle(?: class="ring")? cx="([\d.]+)%', answer)]
    one = {
        float(place) for place in re.findall(r'class="one" aria-hidden="true"><line x1="([\d.]+)%', answer)
    }
    assert one == {places[3]}, "the baseline is a ring on the line"
    assert places[1] < places[2] < places[3] < places[0]


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (0.995, 1.004), (0.3, 0.4), (1.0, 1.0)])
def test_every_scale_has_1_and_round_ticks(low: float, high: float) -> None:
    scale = Scale.of([ratio((low + min(high, 9)) / 2, low, high)])
    assert 0 < scale.at(1) < 100
    assert 0 <= scale.at(low) <= scale.at(high) <= 100
    assert 1.0 in scale.ticks()
    assert 2 <= len(scale.ticks()) <= 7
    assert low > 0.5 or min(scale.ticks()) < 1, "what is better has ticks too"


def test_the_strip_says_how_far_every_run_is() -> None:
    text = render(replace(like_the_demo(), states=states()), "running")
    strip = text[text.index('id="states"') : text.index('class="verdict"')]
    assert "5 runs: 2 running, 1 failed, 1 queued, 1 done" in strip
    facts = (
        "step 1,200 of 3,000",
        "2 min left",
        "12.5 steps/s",
        "training loss 0.0412",
        "learning rate 0.008",
    )
    assert all(fact in strip for fact in facts)
    assert "the loss is not finite at step 50." in strip
    assert strip.count("<img") == 1


def test_nothing_to_report_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 2
    assert "no run" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_a_place_that_cannot_be_written_is_one_clear_line(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(study), "--out", str(study / "uniform-0" / "recipe.json" / "x.html")]) == 2
    assert "could not write" in capsys.readouterr().err
