"""The README is executed: its shell blocks run as a new user would run them, its example is the file it shows."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from ports import free_port
from run_process import DOMAINS_READY, accepts, make_run, run_script

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.deep
def test_a_terminated_run_ends_its_registry_and_database(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.wait_for("The catalogue")
        assert run.database.exists()
        run.process.terminate()  # in the midst of publishing
        assert run.process.wait(timeout=60) == 0
        assert not run.database.exists()
        assert not accepts(run.port) and not accepts(run.web_port)


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", ["makes its database", "opens its log", "The catalogue"])
def test_a_killed_run_ends_its_registry_and_database(tmp_path: Path, moment: str) -> None:
    with make_run(tmp_path) as run:
        run.wait_for(moment)
        run.process.kill()
        run.process.wait()
        run.wait_until_gone()


@pytest.mark.deep
def test_an_interrupted_run_ends_its_registry_and_database(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.wait_for("The catalogue")
        if ignores_interrupts(run.process.pid):
            pytest.skip("a shell started these tests in the background, so all that they start ignores SIGINT")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=60) == 0
        assert not run.database.exists()


def ignores_interrupts(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = re.search(r"^SigIgn:\t([0-9a-f]+)$", status, re.MULTILINE)
    assert ignored
    return bool(int(ignored[1], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.deep
def test_a_second_run_says_what_is_taken_and_changes_nothing(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.wait_for(DOMAINS_READY)
        before = sorted(path for path in tmp_path.rglob("*") if "postgres" not in path.parts)
        elsewhere = tmp_path / "elsewhere"
        for folder, port, web_port, reason in (
            (tmp_path, free_port(), free_port(), f"Another `make run` uses {run.data}."),
            (elsewhere, run.port, free_port(), f"Port {run.port} is taken"),
            (elsewhere, free_port(), run.web_port, f"Port {run.web_port} is taken"),
        ):
            command = ["--port", str(port), "--web-port", str(web_port), "--data", str(folder / "registry")]
            done = subprocess.run(
                [sys.executable, "demo/run.py", *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
            )
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"✗ {reason}")
        assert not elsewhere.exists()
        assert sorted(path for path in tmp_path.rglob("*") if "postgres" not in path.parts) == before
        assert httpx.get(f"{run.url}/health/ready").status_code == 200


@pytest.mark.deep
def test_a_failed_registry_start_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "postgres").write_text("a file where the database should be")
    with make_run(tmp_path) as run:
        assert run.process.wait() == 1
        assert "the registry ended with status 1; its last lines are above" in run.said()
        assert "system.file" in run.said()


@pytest.mark.deep
def test_a_new_user_comes_from_a_protocol_to_a_consensus(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.wait_for(DOMAINS_READY)
        work = tmp_path / "clone"
        done = run_script(run, work, "\n".join(blocks("sh")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Hello, Ada!") == 3
    assert "10 lock" in done.stdout
    assert " vectors, for " in done.stdout
    phrases = ("needs 2", "published → candidate", "/greeting 1.0 is the consensus", "provisional → consensus", "3 decisions")
    places = [done.stdout.index(text) for text in phrases]
    assert places == sorted(places)
    assert "weighs nothing" not in done.stdout
    assert (work / "fetched" / "document.md").read_bytes() == (ROOT / "examples/greeting/document.md").read_bytes()
    assert not (tmp_path / ".treaty").exists()


def test_the_example_is_the_file_it_shows() -> None:
    example, negotiation = blocks("python")
    assert example == (ROOT / "examples/agents.py").read_text(encoding="utf-8")
    assert "requirement=" in negotiation, "tests/unit/test_guide_negotiation.py runs it"


@pytest.mark.deep
def test_make_examples_runs_the_example_of_each_protocol() -> None:
    examples = sorted(f"protocols/{path.parent.name}/example" for path in (ROOT / "protocols").glob("*/example"))
    assert len(examples) >= 3
    # The interpreter of the tests, and nothing is installed. At the end of its input an example asks no person.
    command = ["make", "--old-file", ".venv/runtime", "examples", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line in examples] == examples
    # Each of them said something after its name.
    assert all(done.stdout.split(f"{name}\n")[1].strip() for name in examples)


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
