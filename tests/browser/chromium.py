"""A headless Chromium of its own for a test, with its console and its network in sight."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser, or a skip that says what is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    # Chromium's own first page asks the network for things: leave it, and forget it.
    opened.get("about:blank")
    opened.get_log("performance")
    try:
        yield opened
    finally:
        opened.quit()


def open_page(browser: Any, url: str) -> None:
    """Go there, and wait until the page's script has come to its end: a busy machine takes its time."""
    browser.get(url)
    script = "const button = document.querySelector('#theme'); return button !== null && !button.hidden"
    until(lambda: browser.current_url == url and browser.execute_script(script))


def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def screen(browser: Any, width: int = 1280, height: int = 900, dark: bool = False) -> None:
    """A screen of this size that prefers light or dark pages."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})


def requests(browser: Any) -> list[str]:
    """Every address that was asked for since the last look, those inside the page left out."""
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
            asked.append(message["params"].get("request", message["params"])["url"])
    return [url for url in asked if not url.startswith("data:")]


def complaints(browser: Any) -> list[str]:
    """What the console holds."""
    return [entry["message"] for entry in browser.get_log("browser")]


def paths(browser: Any, section: str = "curves", kind: str = "mean") -> list[str]:
    """The outlines of a section's lines, those that are really drawn."""
    script = "return [...document.querySelectorAll(arguments[0])].map((path) => path.getAttribute('d'))"
    return [d for d in browser.execute_script(script, f"#{section} .plots .{kind}") if d and "L" in d]


def choose(browser: Any, name: str, value: str) -> None:
    """Click a radio or a checkbox."""
    script = """
      const [name, value] = arguments;
      [...document.querySelectorAll("input")].find((one) => one.name === name && one.value === value).click();
    """
    browser.execute_script(script, name, value)
