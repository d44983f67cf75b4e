"""The README is executed: its shell blocks run as a new user would run them, its example is the file it shows."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@contextmanager
def make_run(folder: Path, until: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`make run` on a free port, once it has printed `until`: its URL, and the process.

    SIGTERM ends it: where a shell started these tests in the background, they and all that they start ignore SIGINT.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "demo/run.py", "--port", str(port), "--data", str(folder / "registry")]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        deadline = time.monotonic() + 120
        while until not in (folder / "run.log").read_text():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "run.log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """`make run` with its catalogue published: its URL."""
    with make_run(tmp_path, "README.md goes on") as (url, _):
        assert httpx.get(f"{url}/health/ready").status_code == 200
        yield url


def test_a_terminated_run_ends_its_registry_and_database(tmp_path: Path) -> None:
    with make_run(tmp_path, "The catalogue") as (url, process):
        assert (tmp_path / "registry" / "postgres" / "postmaster.pid").exists()
        process.terminate()  # in the midst of publishing
        assert process.wait(timeout=60) == 0
        assert not (tmp_path / "registry" / "postgres" / "postmaster.pid").exists()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health/live")


def test_a_new_user_publishes_fetches_and_talks(registry: str, tmp_path: Path) -> None:
    work = tmp_path / "clone"
    work.mkdir()
    for name in (".venv", "examples"):
        (work / name).symlink_to(ROOT / name)
    script = "set -eu\n" + "\n".join(blocks("sh")).replace("http://127.0.0.1:8080", registry)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TREATY_")}
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(
        ["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("Hello, Ada!")
    assert "10 lock" in done.stdout
    assert (work / "fetched" / "document.md").read_bytes() == (ROOT / "examples/greeting/document.md").read_bytes()


def test_the_example_is_the_file_it_shows() -> None:
    assert blocks("python") == [(ROOT / "examples/agents.py").read_text(encoding="utf-8")]


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`|; )make ([a-z]+)", documents, re.MULTILINE))
    assert {"demo", "run", "test"} <= named
    assert named <= targets


def test_every_file_that_is_linked_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
