"""The report as a reader meets it: drawn, silent, readable by pointer and keyboard, on any screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import choose, chromium, complaints, open_page, paths, requests, screen
from compare.summaries import METHODS, good, hostile, like_the_demo

from stepwell.compare.report.page import render

pytestmark = pytest.mark.full
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    screen(browser)
    requests(browser), complaints(browser)
    return _open(browser, tmp_path, good())


def _open(browser: Any, place: Path, summary: Any) -> Any:
    (place / "report.html").write_text(render(summary), encoding="utf-8")
    open_page(browser, (place / "report.html").as_uri())
    return browser


def _press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def test_the_page_asks_for_nothing_but_itself_and_complains_about_nothing(page: Any) -> None:
    for name, value in (("metric", "objective/bound"), ("axis", "seconds"), ("band-scale", "loss")):
        choose(page, name, value)
    page.find_element("id", "theme").click()
    assert requests(page) == [page.current_url]
    assert complaints(page) == []


def test_every_method_and_seed_is_drawn_on_every_workload(page: Any) -> None:
    assert len(paths(page)) == 2 * len(METHODS)
    assert len(paths(page, kind="seed")) == 2 * len(METHODS) * 3
    assert len(paths(page, "weights")) == len(paths(page, "bands")) == 2 * len(METHODS)
    names = page.execute_script(
        "return [...document.querySelectorAll('#curves .end-name')].map((n) => n.textContent)"
    )
    assert sorted(names) == sorted(2 * METHODS), "every line has its name at its end"
    assert len(paths(page, "profiles")) == len(METHODS)
    labels = page.execute_script(
        "return [...document.querySelectorAll('svg[role=img]')].map((s) => s.ariaLabel)"
    )
    assert all(labels)
    assert any("At the end" in label and "neyman 0.03" in label for label in labels)


def test_heat_maps_have_pixels_of_many_colours(page: Any) -> None:
    script = """
      const done = arguments[0];
      const found = [...document.querySelectorAll(".map > image")].map((image) => image.getAttribute("href"));
      Promise.all(found.map((href) => new Promise((whole) => {
        const picture = new Image();
        picture.onload = () => {
          const canvas = document.createElement("canvas");
          [canvas.width, canvas.height] = [picture.width, picture.height];
          const pen = canvas.getContext("2d");
          pen.drawImage(picture, 0, 0);
          const all = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
          whole(new Set(all).size);
        };
        picture.src = href;
      }))).then(done);
    """
    colours = page.execute_async_script(script)
    assert len(colours) == 2 * 2, "only of methods that draw unevenly"
    assert min(colours) > 20
    even = page.find_element("id", "even").text
    assert "uniform on fashion16, min-snr on fashion16" in even


def test_metric_axis_scale_and_view_change_the_lines(page: Any) -> None:
    seen = [paths(page)]
    for name, value in (("metric", "objective/bound"), ("axis", "seconds"), ("logs", "y"), ("view", "whole")):
        choose(page, name, value)
        seen.append(paths(page))
        assert seen[-1] != seen[-2], (name, value)
        assert len(seen[-1]) == len(seen[0])
    assert "seconds" in page.find_element("css selector", "#curves .axis").text


def test_hidden_methods_vanish_everywhere_and_come_back(page: Any) -> None:
    choose(page, "methods", "neyman")
    for section in ("curves", "weights", "bands"):
        assert len(paths(page, section)) == 2 * (len(METHODS) - 1)
    shown = page.execute_script(
        "return [...document.querySelectorAll('.maps figure, .sheets figure')]"
        ".filter((f) => f.checkVisibility()).map((f) => f.textContent)"
    )
    assert len(shown) == 2 * (len(METHODS) - 1) + 2, "sheets, and a map of alignment on each workload"
    assert not any("neyman" in text for text in shown)
    choose(page, "methods", "neyman")
    assert len(paths(page)) == 2 * len(METHODS)
    for method in METHODS:
        choose(page, "methods", method)
    assert "all methods are hidden" in page.find_element("css selector", "#curves .empty").text


def test_pointing_shows_the_values_there(page: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    slider = page.find_element("css selector", "#curves .slider")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
    ActionChains(page).move_to_element(slider).perform()
    shown = page.find_element("css selector", "#curves .readout").text
    assert "images" in shown.splitlines()[0]
    assert all(method in shown for method in METHODS)
    ActionChains(page).move_to_element_with_offset(slider, 100, 0).perform()
    assert page.find_element("css selector", "#curves .readout").text != shown


def test_everything_can_be_reached_and_read_with_the_keyboard(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    reached = []
    for _ in range(60):
        _press(page, Keys.TAB)
        active = page.switch_to.active_element
        reached.append(active.get_attribute("name") or active.get_attribute("class") or active.tag_name)
        if "slider" in reached[-1]:
            break
    assert {"methods", "metric", "axis", "logs", "view"} <= set(reached)
    slider = page.switch_to.active_element
    before = slider.get_attribute("aria-valuetext")
    assert "neyman 0.03" in before
    _press(page, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert slider.get_attribute("aria-valuetext") != before
    assert page.find_element("css selector", "#curves .readout").is_displayed()
    assert page.execute_script("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    _press(page, Keys.ESCAPE)
    assert not page.find_element("css selector", "#curves .readout").is_displayed()


def test_tables_say_what_the_summary_says(page: Any) -> None:
    script = """
      return [...document.querySelectorAll("#results table")].map((table) =>
        [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim())));
    """
    summary = good()
    assert summary.overall is not None
    expected = [
        summary.overall,
        *(t for one in summary.workloads for t in (one.table.led(), one.table, one.forecasts)),
    ]
    assert page.execute_script(script) == [table.text_rows() for table in expected if table is not None]


SIZES = ((1280, 800), (390, 844))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_first_screen_has_the_answer_and_images(
    browser: Any, tmp_path: Path, width: int, height: int
) -> None:
    screen(browser, width, height)
    requests(browser)
    _open(browser, tmp_path, like_the_demo())
    script = """
      const box = (selector) => document.querySelector(selector).getBoundingClientRect();
      return [box(".verdict").top, box(".answer").top, box(".answer").bottom, box(".sheets img").top];
    """
    headline, top, bottom, images = browser.execute_script(script)
    assert headline < top < bottom <= height
    assert bottom < images < height - 60, "and something of the images"
    assert requests(browser) == [browser.current_url]


def test_the_answer_needs_no_script(browser: Any, tmp_path: Path) -> None:
    screen(browser, *SIZES[0])
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        (tmp_path / "report.html").write_text(render(like_the_demo()), encoding="utf-8")
        browser.get((tmp_path / "report.html").as_uri())
        rows = browser.find_elements("css selector", ".answer tbody tr")
        assert len(rows) == len(METHODS)
        assert rows[1].text.split()[:4] == ["neyman", "0.62", "(0.55", "to"]
        dots = [row.find_element("css selector", "circle").rect["x"] for row in rows]
        assert dots[1] < dots[2] < dots[3] < dots[0]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_colours_say_the_verdict_beside_the_words(browser: Any, tmp_path: Path) -> None:
    screen(browser, *SIZES[0])
    _open(browser, tmp_path, like_the_demo())
    script = """
      return [...document.querySelectorAll(".answer tbody tr")].map((row) =>
        [row.className, row.querySelector(".word")?.textContent ?? "",
         getComputedStyle(row.querySelector("circle")).color]);
    """
    shown = browser.execute_script(script)
    assert [(kind, word) for kind, word, _ in shown] == [
        ("worse", "worse"),
        ("better", "better"),
        ("undecided", "undecided"),
        ("undecided", ""),
    ]
    red, green, _ = ([int(part) for part in re.findall(r"\d+", colour)][:3] for _, _, colour in shown[:3])
    assert red[0] > red[1]
    assert green[1] > green[0]


def test_every_picture_and_control_has_a_name_for_screen_readers(page: Any) -> None:
    script = """
      const named = (e) => e.getAttribute("aria-label") || e.getAttribute("alt") || e.textContent.trim() ||
        e.closest("label")?.textContent.trim() ||
        document.getElementById(e.getAttribute("aria-labelledby"))?.textContent;
      const those = "img, svg[role=img], button, summary, input, section, [role=slider], [role=region]";
      return [...document.querySelectorAll(those)].filter((e) => !named(e)).map((e) => e.outerHTML);
    """
    assert page.execute_script(script) == []
    bare = """
      return [...document.querySelectorAll("svg:not([role]):not([aria-hidden])")]
        .filter((e) => !e.parentElement.closest("svg, [aria-hidden]")).length;
    """
    assert page.execute_script(bare) == 0, "other pictures are decoration"


def test_panels_in_which_everything_is_1_are_a_sentence(browser: Any, tmp_path: Path) -> None:
    screen(browser)
    summary = like_the_demo()
    (workload,) = summary.workloads
    alone = replace(workload, methods=workload.methods[:1], runs=workload.runs[:3])
    _open(browser, tmp_path, replace(summary, workloads=(alone,), answers=()))
    assert "Every timestep equally often, throughout: uniform." in browser.find_element("id", "even").text
    assert not browser.find_elements("css selector", ".maps figure")
    assert "weigh all timesteps alike" in browser.find_element("id", "alike").text
    assert not paths(browser, "weights")
    assert not browser.find_element("id", "band-scale").is_displayed()
    assert browser.find_elements("css selector", "#bands .tick.y")[0].text != "1"


def test_time_runs_from_data_at_the_left_to_noise_at_the_right(page: Any) -> None:
    script = """
      const map = document.querySelector(".map");
      const left = (text) => [text.textContent, text.getBoundingClientRect().left];
      return Object.fromEntries([...map.querySelectorAll("text")].map(left));
    """
    places = page.execute_script(script)
    assert places["0"] < places["0.5"] < places["1"]
    assert places["3.0"] < places["0.0"] < places["-6.0"], "and so does the log-SNR above"
    assert len(page.find_elements("css selector", ".map:first-of-type svg image")) >= 3


@pytest.mark.parametrize("width", [375, 1280])
def test_no_page_scrolls_sideways(browser: Any, tmp_path: Path, width: int) -> None:
    screen(browser, width, 800)
    for summary in (good(), hostile("a-very-long-name-without-any-break" * 12)):
        _open(browser, tmp_path, summary)
        assert browser.execute_script(OVERFLOW) <= 0
        browser.execute_script("document.querySelectorAll('details').forEach((d) => d.open = true)")
        for slider in browser.find_elements("css selector", "#curves .slider"):
            browser.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointermove'))", slider)
        assert browser.execute_script(OVERFLOW) <= 0
        assert paths(browser)


def test_light_and_dark_follow_the_system_and_the_button(browser: Any, tmp_path: Path) -> None:
    def brightness() -> int:
        script = "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
        return sum(browser.execute_script(script)[:3])

    def map_colour() -> str:
        return str(
            browser.execute_script("return document.querySelector('.map > image').getAttribute('href')")
        )

    for dark in (False, True):
        screen(browser, dark=dark)
        _open(browser, tmp_path, good())
        browser.execute_script("localStorage.clear()")
        open_page(browser, browser.current_url)
        assert (brightness() < 150) is dark
        drawn = map_colour()
        browser.find_element("id", "theme").click()
        assert (brightness() < 150) is not dark
        assert map_colour() != drawn
        open_page(browser, browser.current_url)
        assert (brightness() < 150) is not dark, "the choice is remembered"
        browser.execute_script("localStorage.clear()")


def test_bad_names_are_only_text(browser: Any, tmp_path: Path) -> None:
    screen(browser)
    complaints(browser)
    text = (
        "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">'\"&"
    )
    _open(browser, tmp_path, hostile(text))
    assert browser.title == text
    assert paths(browser)
    assert browser.execute_script("return document.querySelectorAll('img[src=x], main script').length") == 0
    shown = browser.execute_script("return document.querySelector('#methods label').textContent")
    assert shown == text
    assert complaints(browser) == []


def test_more_methods_than_colours_differ_in_dashes(browser: Any, tmp_path: Path) -> None:
    screen(browser)
    _open(browser, tmp_path, good(10, 2, tuple(f"method-{index}" for index in range(16))))
    script = """
      return [...document.querySelectorAll("#curves figure:first-child .method")].map((group) =>
        `${group.getAttribute("class")} ${group.querySelector(".mean").getAttribute("stroke-dasharray")}`);
    """
    drawn = browser.execute_script(script)
    assert len(drawn) == len(set(drawn)) == 16


def test_commands_can_be_copied(page: Any) -> None:
    button = page.find_element("css selector", "[data-copy]")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert button.text in ("Copied", "Selected", "Copy")
    assert "stepwell report runs/study" in page.find_element("id", "commands").text
