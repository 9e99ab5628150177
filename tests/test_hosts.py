"""`make hosts` without a network: what is set up, compared and kept. No host is run here."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import stepwell

ROOT = Path(__file__).parents[1]
HOSTS = ROOT / "benchmarks" / "hosts"
DIFF = """\
 import torch
+import stepwell
 ...
-    t = torch.rand(8)
+    pace = pacer.draw(x)
+    t = pace.u

     return t
"""


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"hosts_{name}", HOSTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


run, check, patch = module("run"), module("check"), module("patch")


# The hosts that there are.


@pytest.mark.parametrize("name", run.names())
def test_a_host_is_pinned_and_its_page_shows_what_is_run(name: str) -> None:
    script = (HOSTS / f"{name}.py").read_text()
    for pins in HOSTS.glob(f"{name}*.txt"):
        assert all("==" in line for line in pins.read_text().split())
    source = run.source_of(script)
    assert source is None or re.fullmatch(r"[0-9a-f]{40}", source[1])
    (page,) = set(re.findall(r'diff_of\("([\w-]+)"', script))
    text = (ROOT / "docs" / "integrations" / f"{page}.md").read_text()
    assert f"<!-- host {name} -->" in text
    record = json.loads((ROOT / "benchmarks" / "records" / "hosts" / f"{name}.json").read_text())
    assert "failed" in record or record["lines_changed"] <= 8


# Setting up.


def test_a_source_is_read_and_not_run() -> None:
    assert run.source_of('raise SystemExit\nSOURCE = ("owner/name", "abc")') == ("owner/name", "abc")
    assert run.source_of("x = 1") is None


def test_the_pinned_commit_is_checked_out_of_a_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "owner+name" / "repo"
    repository.mkdir(parents=True)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", str(repository), *identity, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q")
    commits = []
    for text in ("old", "new"):
        (repository / "file").write_text(text)
        git("add", "file")
        git("commit", "-qm", text)
        commits.append(git("rev-parse", "HEAD"))
    monkeypatch.setenv("STEPWELL_HOST_SOURCES", str(tmp_path))
    for commit, text in zip(commits, ("old", "new"), strict=True):
        run.check_out(("owner/name", commit), tmp_path / "source")
        assert (tmp_path / "source" / "file").read_text() == text
    with pytest.raises(run.HostFailed):
        run.check_out(("owner/name", "0" * 40), tmp_path / "source")
    monkeypatch.delenv("STEPWELL_HOST_SOURCES")
    assert run.address_of("owner/name") == "https://github.com/owner/name"


def test_a_host_that_fails_leaves_a_row_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "benchmarks" / "hosts"
    hosts.mkdir(parents=True)
    (hosts / "bad.py").write_text("raise ValueError('no such model')")
    (hosts / "good.py").write_text("import sys\nopen(sys.argv[1], 'w').write('{\"host\": \"good\"}')")
    for name in ("bad", "good"):
        (hosts / f"{name}.txt").touch()
    (hosts / "good.nodeps.txt").touch()
    monkeypatch.setattr(run, "HERE", hosts)
    monkeypatch.setattr(run, "ENVIRONMENTS", tmp_path / ".hosts")
    monkeypatch.setattr(run, "environment", lambda name, folder: Path(sys.executable))
    assert run.names() == ["bad", "good"]
    bad, good = (run.attempt(name) for name in run.names())
    assert bad["failed"] == "ValueError: no such model"
    assert run.cells(bad)[:3] == ["bad", "", "failed: ValueError: no such model"]
    assert len(run.cells(bad)) == len(run.COLUMNS)
    assert good == {"host": "good"}


# The diff of a page.


def test_a_diff_is_put_onto_a_source() -> None:
    source = "import torch\n\ndef draw(x):\n    t = torch.rand(8)\n\n    return t\n"
    after = patch.patched(source, DIFF)
    changed = "    pace = pacer.draw(x)\n    t = pace.u\n"
    assert after == f"import torch\nimport stepwell\n\ndef draw(x):\n{changed}\n    return t\n"
    assert check.lines_changed(DIFF) == 3


@pytest.mark.parametrize("source", ["import torch\n", "import torch\nimport torch\n"])
def test_a_diff_that_does_not_fit_is_refused(source: str) -> None:
    with pytest.raises(SystemExit, match="must be there once"):
        patch.patched(source, DIFF)


# The comparison.


def loop(updates: int, tape: Any, pacer: Callable[[Any], Any] | None, factor: float = 1.0) -> None:
    """A flow in one dimension, as a host would have it: its own draw is `torch.rand`."""
    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    paced = None if pacer is None else pacer(optimizer)
    for _ in range(updates):
        x0, noise = torch.randn(16, 1), torch.randn(16, 1)
        pace = None if paced is None else paced.draw(x0)
        u = torch.rand(16) if pace is None else pace.u * factor
        mixed = (1 - u)[:, None] * x0 + u[:, None] * noise
        losses = (network(torch.cat([mixed, u[:, None]], 1)) - (noise - x0)).square()
        if pace is not None:
            paced.observe(losses.mean(1))
            losses = losses * pace.weight[:, None]
        tape(losses.mean())
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


def host(factor: float = 1.0, feeds: bool = True) -> Any:
    @contextmanager
    def fed(paces: Iterator[Any]) -> Iterator[None]:
        def rand(count: int) -> torch.Tensor:
            u = next(paces).u
            return u if feeds else own(count)

        own = torch.rand
        with mock.patch.object(torch, "rand", rand):
            yield

    return check.Host(
        name="a loop",
        version="1",
        ran="all",
        left_out="nothing",
        diff=DIFF,
        published=lambda updates, tape: loop(updates, tape, None),
        paced=lambda updates, tape: loop(
            updates, tape, lambda optimizer: stepwell.Pacer("auto", "flow").attach(optimizer), factor
        ),
        fed=fed,
    )


def test_a_row_says_what_was_measured() -> None:
    row = check.row(host())
    assert row["bit_equal_when_fed"] is True
    assert row["lines_changed"] == 3
    assert row["overhead"]["least"] <= row["overhead"]["ratio"] <= row["overhead"]["most"]
    for masses in row["mass_by_quarter"].values():
        assert sum(masses) == pytest.approx(1, abs=1e-3)
    assert row["mass_by_quarter"]["loss-root"] != row["mass_by_quarter"]["before"]
    assert run.cells(row)[4] == "yes"


def test_other_times_than_the_pacers_are_found() -> None:
    assert not check.bit_equal_when_fed(host(factor=0.999), check.trained(host().published))


def test_a_feed_that_reaches_nothing_is_refused() -> None:
    with pytest.raises(SystemExit, match="changed no loss"):
        check.bit_equal_when_fed(host(feeds=False), check.trained(host().published))


def test_a_resume_is_compared_with_a_run_that_was_not_interrupted() -> None:
    def halves(updates: int, tape: Any, saved: bool) -> None:
        state = {}

        def pacer(optimizer: Any) -> Any:
            made = stepwell.Pacer("auto", "flow").attach(optimizer)
            if state and saved:
                made.load_state_dict(state["pacer"].state_dict())
            state["pacer"] = made
            return made

        for _ in range(2):
            loop(updates // 2, tape, pacer)

    with check.recorded() as kept:
        check.trained(host().paced)
    resumed = check._resumed(lambda updates, tape: halves(updates, tape, saved=True), kept.paces)
    forgotten = check._resumed(lambda updates, tape: halves(updates, tape, saved=False), kept.paces)
    assert int(resumed.split()[0]) > 0
    assert forgotten == "0 of 30 draws"


def test_a_tape_interrupts_after_its_updates() -> None:
    tape = check.Tape()
    with pytest.raises(check.Stopped):
        loop(5, tape.until(2), None)
    assert len(tape.losses) == 2
