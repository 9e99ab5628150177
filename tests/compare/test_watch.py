"""The server of a watched page: this machine only, read only, new when files are, calm about half a file."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compare.summaries import growing
from live_page import served

from stepwell.cli.main import main
from stepwell.compare.summary import summarise
from stepwell.compare.views import Summary
from stepwell.compare.watch import Live, Server

RECIPE = {"method": "uniform", "seed": 0, "steps": 30, "data": "fashion16", "lr": 0.001}


def write_run(place: Path, steps: int, method: str = "uniform", more: str = "") -> None:
    """A run directory that has come so far."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "recipe.json").write_text(json.dumps({**RECIPE, "method": method}))
    lines = [
        {"kind": "evaluation", "step": step, "images": 8 * step, "seconds": 0.1 * step}
        | {
            "objective/simple": 1 / (1 + step),
            "density": [1.0, 1.0],
            "effective_weight": [1.0, 1.0],
            "bands": [0.5, 0.2],
        }
        for step in range(0, steps + 1, 10)
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + more)


def ask(
    server: Server, path: str = "/summary.json", method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def state(server: Server) -> Any:
    return json.loads(ask(server)[1])


class Counting:
    """Counts how often a summary is made."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, paths: Sequence[Path]) -> Summary:
        self.times += 1
        return growing(5)


def test_only_our_own_names_are_answered(tmp_path: Path) -> None:
    with served(Live([tmp_path], Counting())) as server:
        port = server.server_port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
            assert ask(server, Host=host)[0].status == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
            for path in ("/", "/summary.json", "/other"):
                answer, body = ask(server, path, Host=host)
                assert answer.status == 403
                assert b"neyman" not in body


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with served(Live([tmp_path], Counting())) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        # Another address of this machine, on the same loopback device, finds nobody.
        with socket.socket() as other:
            other.settimeout(2)
            assert other.connect_ex(("127.0.0.2", server.server_port)) != 0


def test_there_are_two_addresses_and_two_verbs(tmp_path: Path) -> None:
    with served(Live([tmp_path], Counting())) as server:
        answer, body = ask(server, "/")
        assert answer.status == 200
        assert b"<!doctype html>" in body
        assert b"connect-src &#x27;self&#x27;" in body
        assert answer.headers["X-Frame-Options"] == "DENY"
        for path in ("/../../etc/passwd", "/metrics.jsonl", "/favicon.ico"):
            assert ask(server, path)[0].status == 404
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            assert ask(server, method=method)[0].status == 405
        assert ask(server, method="TRACE")[0].status == 501
        head, nothing = ask(server, "/", "HEAD")
        assert (head.status, nothing) == (200, b"")
        assert int(head.headers["Content-Length"]) == len(body)
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_summary_is_made_again_only_when_a_file_has_changed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 10)
    counting = Counting()
    with served(Live([tmp_path], counting)) as server:
        first = state(server)
        assert ask(server, If_None_Match=f'"{first["version"]}"')[0].status == 304
        ask(server, "/")
        assert counting.times == 1
        (tmp_path / "a" / "checkpoints").mkdir()
        (tmp_path / "a" / "checkpoints" / "state.json").write_text("{}")
        (tmp_path / "a" / ".recipe.json.tmp").write_text("{}")
        state(server)
        assert counting.times == 1, "what no summary is made from does not count"
        write_run(tmp_path / "a", 20)
        state(server)
        assert counting.times == 2
        write_run(tmp_path / "b", 10)
        state(server)
        assert counting.times == 3


def test_a_run_is_waited_for_followed_and_outlived(tmp_path: Path) -> None:
    place = tmp_path / "later" / "run"
    with served(Live([place], summarise)) as server:
        found = state(server)
        assert found["state"] == "waiting"
        assert str(place) in found["parts"]["verdict"]
        place.mkdir(parents=True)
        assert state(server)["state"] == "waiting"
        (place / "recipe.json").write_text(json.dumps(RECIPE))
        (place / "metrics.jsonl").write_text("")
        assert state(server)["state"] == "waiting"
        write_run(place, 10)
        found = state(server)
        assert found["state"] == "running"
        assert found["data"]["workloads"][0]["runs"][0]["steps"] == [0, 10]
        write_run(place, 30)
        assert state(server)["state"] == "ended"
        shutil.rmtree(place)
        assert state(server)["state"] == "waiting"
        write_run(place, 20)
        assert state(server)["state"] == "running"


def test_a_running_run_shows_its_newest_forecast(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, 20)
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with served(Live([run], summarise)) as server:
        assert "Forecast" not in state(server)["parts"]["words"]
        told = {"forecast/least": 0.995, "forecast/least_error": 0.001}
        write_run(run, 10, more=json.dumps(line | told) + "\n")
        assert "Forecast: nothing to win here: even the best" in state(server)["parts"]["words"]


def test_half_a_line_is_not_read_yet(tmp_path: Path) -> None:
    write_run(tmp_path, 10, more='{"kind": "evaluation", "step": 20, "ima')
    with served(Live([tmp_path], summarise)) as server:
        assert state(server)["data"]["workloads"][0]["runs"][0]["steps"] == [0, 10]
        write_run(tmp_path, 20)
        assert state(server)["data"]["workloads"][0]["runs"][0]["steps"] == [0, 10, 20]


def test_what_was_known_stays_while_files_are_in_between(tmp_path: Path) -> None:
    write_run(tmp_path, 10)
    error: Exception | None = None

    def sometimes(paths: Sequence[Path]) -> Summary:
        if error is not None:
            raise error
        return growing(5)

    with served(Live([tmp_path], sometimes)) as server:
        before = state(server)
        for steps, error in ((20, FileNotFoundError("moved")), (30, TypeError("not a number"))):  # noqa: B007
            write_run(tmp_path, steps)
            assert state(server) == before


def test_two_directories_one_of_which_is_not_there_yet(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 30)
    with served(Live([tmp_path / "a", tmp_path / "b"], summarise)) as server:
        assert state(server)["state"] == "running"
        write_run(tmp_path / "b", 30, method="min-snr")
        found = state(server)
        assert found["state"] == "ended"
        assert [method["name"] for method in found["data"]["methods"]] == ["uniform", "min-snr"]


def test_a_port_in_use_is_one_clear_line_and_can_be_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(Live([tmp_path], Counting())) as server:
        port = server.server_port
        assert main(["watch", str(tmp_path), "--port", str(port), "--no-open"]) == 2
        assert f"port {port} is in use" in capsys.readouterr().err
    with served(Live([tmp_path], Counting()), port) as again:
        assert ask(again)[0].status == 200
    assert main(["watch", str(tmp_path), "--port", "70000", "--no-open"]) == 2
    assert "65535" in capsys.readouterr().err


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 10)
    words = [sys.executable, "-m", "stepwell", "watch", str(tmp_path), "--port", "0", "--no-open"]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=20)
        connection.request("GET", "/")
        assert b"uniform" in connection.getresponse().read()
        connection.close()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (0, "")
