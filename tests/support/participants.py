"""Processes of an example whose agents talk in a room: they hear and say lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class Participant:
    """A process of the example."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout

    def hears(self) -> str:
        """The next line of the process."""
        return self._output.readline().strip()

    def says(self, text: str) -> None:
        """Give it a line."""
        self._input.write(text + "\n")
        self._input.flush()

    def leaves(self) -> int:
        """End the input, and return the exit status."""
        self._input.close()
        return self.process.wait()


@contextmanager
def participant(script: Path, name: str, port: int, home: Path) -> Iterator[Participant]:
    """A process of `script` by this name, which is killed at the end."""
    command = [sys.executable, str(script), name, str(port), str(home / name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Participant(process)
        finally:
            process.kill()
