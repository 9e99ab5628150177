"""`stepwell watch` and clients that mean harm: refused, escaped, let go, and still answering."""

from __future__ import annotations

import http.client
import json
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from live_page import served

from stepwell.compare.summary import summarise
from stepwell.compare.watch import Live, Server

EVIL = "x-evil"
ATTACKS = (
    f"<{EVIL} onload=alert(1)>",
    f'"><{EVIL}>',
    f"' onmouseover='{EVIL}",
    f"</script><{EVIL}>",
    f"</script x='{EVIL}' ><{EVIL} ",
    f"<!--<script><{EVIL}>",
    f"</details></section><{EVIL}>",
    f"&lt;{EVIL}&gt;<{EVIL}>",
    f"${{{EVIL}}} $title {EVIL}",
    f"\u2028<{EVIL}>\x00",
)


def write_run(place: Path, text: str) -> None:
    """A run whose every name is `text`."""
    place.mkdir(parents=True)
    recipe = {"method": text, "seed": 0, "steps": 10, "data": text, "process": text, "model": text, "lr": 0.1}
    line = {
        "kind": "evaluation",
        "images": 8,
        "seconds": 0.1,
        "objective/none": 0.5,
        f"objective/{text}": 1.0,
    }
    line |= {"density": [1.0, 1.0], "effective_weight": [1.0, 1.0], "bands": [0.5, 0.2]}
    warning = {"kind": "warning", "step": 5, "message": text}
    lines = [json.dumps(each) for each in ({**line, "step": 0}, warning, {**line, "step": 10})]
    (place / "recipe.json").write_text(json.dumps(recipe))
    (place / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (place / "score.json").write_text(json.dumps({f"{text}_features": {"frechet_distance": 1.0}, text: text}))
    environment = {"command": ["stepwell", "train", text], "processor": text, text: text}
    (place / "environment.json").write_text(json.dumps(environment))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "run", "uniform")
    with served(Live([place], summarise)) as running:
        yield running


def status(server: Server, path: str = "/summary.json") -> int:
    """Of an ordinary browser's request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def sent(server: Server, raw: bytes) -> bytes:
    """What comes back for some bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        with suppress(OSError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(OSError):
            while piece := connection.recv(1 << 16):
                answer += piece
        return answer


HOSTS = ["evil.example", "127.0.0.1.evil.example:{port}", "127.0.0.1:{port}@evil.example",
         "127.0.0.1:{port}.", "localhost", "LOCALHOST.:{port}", "127.1:{port}", "2130706433:{port}",
         "[::]:{port}", "0.0.0.0:{port}", "127.0.0.1:{port}, evil.example",
         "127.0.0.1:0{port}", "localhost:{port}/", " ", "\x7f"]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_other_hosts_are_refused(server: Server, host: str) -> None:
    asked = f"GET /summary.json HTTP/1.1\r\nHost: {host.format(port=server.server_port)}\r\n\r\n"
    answer = sent(server, asked.encode("latin-1"))
    assert b" 403 " in answer.splitlines()[0]
    assert b"uniform" not in answer


PATHS = ["/../recipe.json", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd",
         "/run/recipe.json", "/\\..\\..\\etc\\passwd", "/summary.json/../../etc/passwd",
         "/summary.json%00.html", "/./", "/.", "*", "file:///etc/passwd",
         "http://127.0.0.1/", "/run/samples/step-1.png", "/summary.jsonl"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_there_is_no_other_file(server: Server, path: str) -> None:
    asked = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
    answer = sent(server, asked.encode())
    assert b" 404 " in answer.splitlines()[0]
    assert b"root:" not in answer
    assert b"uniform" not in answer


GARBAGE = [
    b"",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /<x-evil> HTTP/1.1\r\nHost: <x-evil>\r\n\r\n",
    b"<x-evil> / HTTP/1.1\r\n\r\n",
    b"\r\n" * 1000,
    bytes(range(256)) * 100,
]


@pytest.mark.parametrize("raw", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_request_gets_no_content(server: Server, raw: bytes) -> None:
    answer = sent(server, raw)
    assert b" 200 " not in answer[:40]
    assert b"uniform" not in answer
    assert b"<x-evil" not in answer.partition(b"\r\n\r\n")[2], "escaped where it is a page"
    assert status(server) == 200


def test_slow_clients_are_let_go_and_nobody_waits_for_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "uniform")
    with served(Live([tmp_path], summarise), longest_seconds=1.5) as server, ExitStack() as held:
        status(server)
        slow = [
            held.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=10))
            for _ in range(40)
        ]
        ended, deadline = 0, time.monotonic() + 20
        while ended < len(slow) and time.monotonic() < deadline:
            ended = 0
            for connection in slow:
                # A byte now and then: each alone comes before any timeout of a socket.
                try:
                    connection.send(b"G")
                except OSError:
                    ended += 1
            started = time.monotonic()
            assert status(server) == 200
            assert time.monotonic() - started < 5
            time.sleep(0.1)
        assert ended == len(slow)


@pytest.mark.full
def test_a_thousand_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 4096:
        pytest.skip(f"a process may open {most} files here, and both ends of 1,000 connections need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, 4096), most))
    write_run(tmp_path / "run", "uniform")
    before = threading.active_count()
    try:
        with served(Live([tmp_path], summarise)) as server, ExitStack() as held:
            status(server)
            for number in range(1000):
                connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
                held.enter_context(connection)
                with suppress(OSError):
                    connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
                if number % 100 == 99:
                    assert status(server) == 200
            assert status(server, "/") == 200
            assert threading.active_count() - before <= server.most_connections + 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


class Elements(HTMLParser):
    """Every element and attribute of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_name_is_text(attack: str, tmp_path: Path) -> None:
    folder = attack.replace("/", "-").replace("\x00", "")
    for number, name in enumerate((attack, "uniform")):
        write_run(tmp_path / folder / str(number), name)
    # The title of a study, and a directory that cannot be read.
    study: dict[str, Any] = {
        "name": attack,
        "title": attack,
        "methods": [attack, "uniform"],
        "baseline": attack,
    }
    (tmp_path / "study.json").write_text(json.dumps(study))
    (tmp_path / f"broken-{folder}").mkdir()
    (tmp_path / f"broken-{folder}" / "recipe.json").write_text(attack)
    live = Live([tmp_path / folder, tmp_path / f"broken-{folder}"], summarise)
    with served(live) as server:
        pages = []
        for path in ("/", "/summary.json"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.request("GET", path)
            pages.append(connection.getresponse().read().decode())
            connection.close()
    parts = json.loads(pages[1])["parts"]
    for page in (pages[0], *parts.values()):
        found = Elements(page)
        assert EVIL not in found.names
        assert not [name for name in found.attributes if name.startswith("on") or EVIL in name]
    assert EVIL in Elements(pages[0]).text, "otherwise nothing was attacked"
    # A browser ends a script at "</script" wherever it is, and then reads on as HTML.
    scripts = re.findall(r"<script([^>]*)>(.*?)</script", pages[0], re.DOTALL)
    assert len(scripts) == 2, "ours, and the data"
    data = next(content for attributes, content in scripts if "json" in attributes)
    assert EVIL in str(json.loads(data))
