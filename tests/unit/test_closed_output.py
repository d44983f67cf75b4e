"""A command whose reader has gone, as in `treaty … | head`: it ends quietly, with the status of SIGPIPE."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from treaty_io.closed_output import STATUS, ending_quietly

AGENT, REGISTRY = "from treaty_command import main", "from treaty_registry.cli import main"


def into_closed_pipe(program: str, *arguments: str) -> tuple[int, str]:
    """Run a program whose standard output nobody reads: its exit status, and its standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    code = f"import sys; sys.argv[0] = 'treaty'; {program}; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (AGENT, ["--version"]),
        (AGENT, ["completion", "bash"]),
        (AGENT, ["--help"]),
        (AGENT, ["topics", "--home", "{home}", "--json"]),
        (REGISTRY, ["--help"]),
        (REGISTRY, ["audit", "--data", "{home}", "--json"]),
    ],
)
def test_a_command_whose_reader_has_gone_ends_quietly(program: str, arguments: list[str], tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    assert into_closed_pipe(program, *(argument.format(home=home) for argument in arguments)) == (STATUS, "")


def test_a_broken_connection_elsewhere_is_an_error_as_before() -> None:
    with pytest.raises(BrokenPipeError), ending_quietly():
        raise BrokenPipeError("of a socket")


def test_a_command_that_succeeds_or_fails_keeps_its_status() -> None:
    with ending_quietly():
        pass
    for status in (0, 1, 3):
        with pytest.raises(SystemExit) as ended, ending_quietly():
            sys.exit(status)
        assert ended.value.code == status
