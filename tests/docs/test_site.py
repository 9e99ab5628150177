"""The site is built without a warning, has every page, and asks nothing of another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT, hook

pytest.importorskip("mkdocs", reason="the site needs the docs extra: pip install 'stepwell[docs]'")

import stepwell
from stepwell.catalogue.find import SAMPLERS, WEIGHTINGS
from stepwell.runs.metrics import CURVES, SCORED

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # a busy machine takes its time
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Resources(HTMLParser):
    """What a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in FETCHED and given.get(FETCHED[tag]):
            self.found.append(str(given[FETCHED[tag]]))


def fetched(page: Path) -> list[str]:
    parser = Resources()
    parser.feed(page.read_text())
    return parser.found


def test_every_page_is_built(site: Path) -> None:
    for path in PAGES:
        plain = path.relative_to(DOCS).with_suffix("")
        built = site / (plain.parent if plain.name == "index" else plain) / "index.html"
        assert built.exists(), plain
    for name in ("records", "log"):
        assert (site / "results" / name / "index.html").exists()


def test_pages_fetch_only_what_the_site_has(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        for address in fetched(page):
            assert not re.match(r"(https?:)?//", address), f"{page}: {address}"
            place = site / address[1:] if address.startswith("/") else page.parent / address.partition("?")[0]
            assert address.startswith("data:") or place.exists(), f"{page}: {address}"


def test_styles_fetch_nothing_either(site: Path) -> None:
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text()), style


def test_an_address_elsewhere_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<p>text</p><script src="https://cdn.example/x.js"></script><a href="https://fine">link</a>'
    )
    assert fetched(page) == ["https://cdn.example/x.js"]


def test_every_mark_is_replaced_by_what_it_stands_for(site: Path) -> None:
    left = [str(page) for page in site.rglob("*.html") if "<!--" in page.read_text()]
    assert not left, "a mark such as <!-- law --> is still in the page"
    assert "images to the other's end" in (site / "at-length" / "index.html").read_text()


def test_every_method_has_its_picture_and_its_formula(site: Path) -> None:
    for entry in SAMPLERS + WEIGHTINGS:
        folder = site / "methods" / f"{entry.kind}s"
        assert "<math" in (folder / entry.name / "index.html").read_text()
        assert (folder / f"{entry.name}.svg").stat().st_size > 5_000


def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "reference" / "index.html").read_text()
    missing = [name for name in stepwell.__all__ if f'id="stepwell.{name}"' not in page]
    assert not missing


def test_every_page_of_a_loop_is_in_the_table_of_loops(site: Path) -> None:
    page = (site / "integrations" / "index.html").read_text()
    for path in (DOCS / "integrations").glob("*.md"):
        assert path.stem == "index" or f'href="{path.stem}/"' in page, path.stem


def test_the_reference_has_the_integrations_that_pages_name(site: Path) -> None:
    page = (site / "reference" / "integrations" / "index.html").read_text()
    found = hook("site_pages").modules()
    assert {"density", "lightning", "schedule_sampler"} <= set(found)
    assert all(f'id="stepwell.integrations.{name}"' in page for name in found)


def test_every_metric_is_in_the_table_of_results(site: Path) -> None:
    page = (site / "results" / "index.html").read_text()
    assert all(f"<code>{metric.key}</code>" in page for metric in (*CURVES, *SCORED))
