"""The watched page in a browser: it follows, keeps what the reader chose, and outlives its server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import choose, chromium, complaints, open_page, paths, requests, screen, until
from compare.summaries import growing

from stepwell.compare.views import Summary
from stepwell.compare.watch import Live, Server
from stepwell.core.errors import StepwellError

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


@contextmanager
def _served(place: Path, port: int = 0) -> Iterator[Server]:
    with Server(Live([place], _summarise), port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _status(browser: Any) -> str:
    return str(browser.find_element("id", "status").text)


def test_a_page_follows_its_run_from_before_it_exists_to_after_its_end(browser: Any, tmp_path: Path) -> None:
    place = tmp_path / "run"
    with _served(place) as server:
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
    with _served(tmp_path) as server:
        port = server.server_port
        open_page(browser, server.url)
        assert _status(browser) == "Training"
        choose(browser, "axis", "seconds")
        before = paths(browser)
    until(lambda: "No answer" in _status(browser))
    (tmp_path / "points.json").write_text("25 running")
    with _served(tmp_path, port):
        until(lambda: _status(browser) == "Training")
        until(lambda: paths(browser) != before)
        assert "seconds" in browser.find_element("css selector", "#curves .axis").text


def test_reading_with_the_keyboard_survives_new_data(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "points.json").write_text("10 running")
    with _served(tmp_path) as server:
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
