"""`tools/supervise.py` ends all that a command starts, and passes on its status."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interrupted_make import on_terminal

SUPERVISE = Path(__file__).parents[2] / "tools" / "supervise.py"
# An orphan in a session of its own, as servers are. It tells its process id to the command, which waits for that.
WITH_ORPHAN = """
mkfifo "$1/told"
(setsid sh -c '{before} echo $$ >"$0/told"; {then} exec sleep 600' "$1" &)
read -r orphan <"$1/told"
"""


def supervise(script: str, *options: str, folder: Path, ignored: signal.Signals | None = None) -> subprocess.Popen[str]:
    """Start a shell script, whose $1 is its folder, below a supervisor that makes temporary files in `folder`."""

    def set_signals() -> None:
        # A shell in the background lets its programs ignore the first two, and nohup the third. A child inherits that.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if ignored:
            signal.signal(ignored, signal.SIG_IGN)

    return subprocess.Popen(
        [sys.executable, str(SUPERVISE), *options, "--", "sh", "-c", script, "sh", "{tmpdir}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        preexec_fn=set_signals,  # noqa: PLW1509 (two system calls)
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for its end, and that of all that hold its output. Return the exit status and the output that was not read yet."""
    out, _ = process.communicate(timeout=50)
    return process.returncode, out


@contextmanager
def ready(script: str, *options: str, folder: Path, ignored: signal.Signals | None = None) -> Iterator[subprocess.Popen[str]]:
    """A script that has printed `ready`."""
    process = supervise(script, *options, folder=folder, ignored=ignored)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        # After a failure it may run for ever. Its command gets a signal when it is killed; what that leaves holds the pipe open.
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 128 + 9)])
def test_the_status_of_the_command_is_passed_on(script: str, status: int, tmp_path: Path) -> None:
    assert finished(supervise(script, folder=tmp_path)) == (status, "")


def test_a_command_that_cannot_start_leaves_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(SUPERVISE), "--tmpdir", "--", "/no/such/program"]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "/no/such/program: No such file or directory\n")
    assert [*tmp_path.iterdir()] == []


# Processes


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("before", "then"), [("", ""), ('trap "" TERM;', ""), ("", "kill -STOP $$;")], ids=["plain", "ignores SIGTERM", "stopped"]
)
def test_an_orphan_ends_after_the_command(before: str, then: str, tmp_path: Path) -> None:
    script = WITH_ORPHAN.format(before=before, then=then) + "echo $orphan; exit 5"
    status, out = finished(supervise(script, "--tmpdir", folder=tmp_path))
    assert status == 5
    assert not Path("/proc", out.strip()).exists()


def test_an_orphan_that_has_ended_is_gone_while_the_command_runs(tmp_path: Path) -> None:
    script = WITH_ORPHAN.format(before="", then="exit;") + "while kill -0 $orphan; do sleep 0.05; done 2>/dev/null; echo gone"
    assert finished(supervise(script, "--tmpdir", folder=tmp_path)) == (0, "gone\n")


# The folder


def test_the_folder_is_for_the_command_and_removed(tmp_path: Path) -> None:
    script = 'cd "$TMPDIR"; pwd; echo "$1"; stat -c %a .; mkdir -p closed/inner; touch closed/inner/file; chmod 0 closed'
    status, out = finished(supervise(script, "--tmpdir", folder=tmp_path))
    first, second, mode = out.splitlines()
    assert (status, first, mode) == (0, second, "711")
    assert Path(first).parent == tmp_path
    assert [*tmp_path.iterdir()] == []


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.mkdir(mode=0o500)
    assert finished(supervise('ln -s "$TMPDIR/../kept" "$1/link"', "--tmpdir", folder=tmp_path)) == (0, "")
    assert [*tmp_path.iterdir()] == [target]
    assert target.stat().st_mode & 0o777 == 0o500


def test_the_folder_of_a_command_that_fails_may_be_kept(tmp_path: Path) -> None:
    options = ("--tmpdir", "--keep-failed")
    assert finished(supervise("exit 0", *options, folder=tmp_path)) == (0, "")
    with ready("echo ready; exec sleep 600", *options, folder=tmp_path) as process:
        process.send_signal(signal.SIGINT)
        assert finished(process) == (130, "")
    assert [*tmp_path.iterdir()] == []
    status, out = finished(supervise('echo "$1"; exit 1', *options, folder=tmp_path))
    assert status == 1
    assert [str(path) for path in tmp_path.iterdir()] == [out.strip()]


# Signals


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_a_signal_is_passed_on_once(name: str, tmp_path: Path) -> None:
    script = f"trap 'echo {name}; sleep 0.5; exit 4' {name}; echo ready; sleep 600 & wait"
    with ready(script, folder=tmp_path) as process:
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert finished(process) == (4, f"{name}\n")


def test_two_signals_at_once_are_one(tmp_path: Path) -> None:
    script = "trap 'sleep 0.5; echo by itself; exit 4' INT TERM; echo ready; sleep 600 & wait"
    with ready(script, folder=tmp_path) as process:
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        assert finished(process) == (4, "by itself\n")


def test_a_second_signal_ends_a_command_that_ignores_the_first(tmp_path: Path) -> None:
    with ready("trap '' INT; echo ready; sleep 600", folder=tmp_path) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # else it is the same signal
        process.send_signal(signal.SIGINT)
        assert finished(process) == (130, "")


def test_a_signal_that_is_ignored_from_the_start_stays_ignored(tmp_path: Path) -> None:
    with ready("echo ready; sleep 600", folder=tmp_path, ignored=signal.SIGINT) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert finished(process) == (143, "")


def test_the_command_ends_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with ready("echo ready; exec sleep 600", folder=tmp_path) as process:
        process.kill()
        assert finished(process) == (-9, "")


def test_the_command_reads_from_the_terminal_of_the_supervisor() -> None:
    script = 'read -r line; test -t 1 && echo "[$line]"'
    process, terminal = on_terminal([sys.executable, str(SUPERVISE), "--", "sh", "-c", script], os.environ)
    os.write(terminal, b"typed\n")
    output = b""
    # Where Linux stops the command, nothing comes.
    while b"[typed]" not in output and select.select([terminal], [], [], 50)[0]:
        output += os.read(terminal, 1024)
    process.terminate()
    process.wait(timeout=50)
    os.close(terminal)
    assert b"[typed]" in output
