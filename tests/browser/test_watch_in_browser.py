"""The watched page in a browser: it follows, keeps what the reader chose, and outlives its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chromium import choose, chromium, complaints, open_page, paths, requests, screen, until
from compare.summaries import growing
from live_page import served

from stepwell.compare.run_states import followed
from stepwell.compare.views import Summary
from stepwell.compare.watch import Live
from stepwell.core.errors import StepwellError
from stepwell.runs.lock import Lock

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        screen(opened)
        yield opened


def _summarise(paths: Sequence[Path]) -> Summary:
    """The directory's one file says how far its run has come."""
    place = paths[0] / "points.json"
    if not place.exists():
        raise StepwellError("there is no run to report on.")
    points, running = place.read_text().split()
    return growing(int(points), running == "running")


def _status(browser: Any) -> str:
    return str(browser.find_element("id", "status").text)


def test_a_page_follows_its_run_from_before_it_exists_to_after_its_end(browser: Any, tmp_path: Path) -> None:
    place = tmp_path / "run"
    with served(Live([place], _summarise)) as server:
        open_page(browser, server.url)
        assert _status(browser) == "Waiting for a run"
        assert str(place) in browser.find_element("css selector", ".verdict").text
        place.mkdir()
        (place / "points.json").write_text("5 running")
        until(lambda: _status(browser) == "Training")
        until(lambda: len(paths(browser)) == 4)
        before = paths(browser)

        choose(browser, "metric", "objective/bound")
        choose(browser, "axis", "steps")
        choose(browser, "methods", "neyman")
        browser.execute_script("document.querySelector('#runs-0').open = true; scrollTo(0, 700)")
        (place / "points.json").write_text("30 running")
        until(lambda: max(map(len, paths(browser))) > 2 * max(map(len, before)))
        assert len(paths(browser)) == 3, "neyman stays hidden"
        chosen = browser.execute_script(
            "return [...document.querySelectorAll('input:checked')].map((i) => i.value)"
        )
        assert {"objective/bound", "steps"} <= set(chosen)
        assert browser.execute_script("return [scrollY, document.querySelector('#runs-0').open]") == [
            700,
            True,
        ]

        (place / "points.json").write_text("40 ended")
        until(lambda: _status(browser) == "Ended")
        asked = requests(browser)
        assert asked
        assert all(url.startswith(server.url) for url in asked)
    assert complaints(browser) == []


def test_a_page_says_when_its_server_is_gone_and_goes_on_when_it_is_back(
    browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "points.json").write_text("10 running")
    with served(Live([tmp_path], _summarise)) as server:
        port = server.server_port
        open_page(browser, server.url)
        assert _status(browser) == "Training"
        choose(browser, "axis", "seconds")
        before = paths(browser)
    until(lambda: "No answer" in _status(browser))
    (tmp_path / "points.json").write_text("25 running")
    with served(Live([tmp_path], _summarise), port):
        until(lambda: _status(browser) == "Training")
        until(lambda: paths(browser) != before)
        assert "seconds" in browser.find_element("css selector", "#curves .axis").text


def test_reading_with_the_keyboard_survives_new_data(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "points.json").write_text("10 running")
    with served(Live([tmp_path], _summarise)) as server:
        open_page(browser, server.url)
        browser.execute_script("document.querySelector('#curves .slider').focus()")
        browser.execute_script(
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))"
        )
        shown = browser.find_element("css selector", "#curves .readout").text
        assert shown
        (tmp_path / "points.json").write_text("25 running")
        until(lambda: browser.find_element("css selector", "#curves .readout").text != shown)
        focused = browser.execute_script("return document.activeElement.className")
        assert focused == "slider"
        assert browser.find_element("css selector", "#curves .readout").is_displayed()


SMALL = ("model=micro", "steps=100000", "batch=8", "record_every=5", "evaluate_every=20", "evaluate_images=8")


def _strip(browser: Any) -> dict[str, str]:
    """The rows of the strip by the name of their run."""
    script = """
      return [...document.querySelectorAll(".strip li")]
        .map((row) => [row.querySelector("b").textContent, row.innerText]);
    """
    return dict(browser.execute_script(script))


def _counts(browser: Any) -> str:
    return str(browser.execute_script("return document.querySelector('.counts')?.textContent ?? ''"))


def test_a_study_is_watched_while_two_runs_train_one_fails_and_one_waits(
    browser: Any, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    taken = out / "fashion16" / "uniform" / "0"
    taken.mkdir(parents=True)
    # Who finds its directory in use fails.
    lock = Lock.take(taken)
    words = ["compare", "fashion16", "methods=uniform,neyman", "seeds=2", *SMALL, f"out={out}", "--workers=2"]
    with (
        served(Live([out], followed)) as server,
        subprocess.Popen(
            [sys.executable, "-m", "stepwell", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        ) as study,
    ):
        try:
            requests(browser)
            open_page(browser, server.url)
            until(lambda: (taken / "failure.json").exists(), 120)
            lock.release()
            until(lambda: _counts(browser) == "4 runs: 2 running, 1 failed, 1 queued", 120)
            until(lambda: "steps/s" in _strip(browser)["neyman, seed 0"], 120)
            rows = _strip(browser)
            assert list(rows) == ["neyman, seed 0", "neyman, seed 1", "uniform, seed 0"]
            facts = ("of 100,000", "left", "steps/s", "training loss", "learning rate 0.00")
            assert all(fact in rows["neyman, seed 0"] for fact in facts)
            assert "writes there" in rows["uniform, seed 0"]
            assert "uniform, seed 1" in browser.find_element("id", "states").text
            assert _status(browser).startswith("Training")
            until(lambda: paths(browser, kind="seed") or paths(browser))
            assert "neyman on fashion16: simple loss" in browser.find_element("css selector", ".verdict").text
            step = rows["neyman, seed 0"]
            until(lambda: _strip(browser)["neyman, seed 0"] != step)
            overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            for width, height in ((1280, 800), (390, 844)):
                screen(browser, width, height)
                assert browser.execute_script(overflow) <= 0
                top = "return document.querySelector('.strip').getBoundingClientRect().top"
                assert browser.execute_script(top) < height / 4
            bars = "return [...document.querySelectorAll('progress')].map((bar) => bar.ariaLabel)"
            assert browser.execute_script(bars) == list(rows)
            study.send_signal(signal.SIGTERM)
            until(lambda: _status(browser).startswith("Stopped"), 120)
            assert _counts(browser) == "4 runs: 1 failed, 2 stopped, 1 queued"
            assert all(url.startswith(server.url) for url in requests(browser))
        finally:
            screen(browser)
            study.terminate()
            study.wait(60)
