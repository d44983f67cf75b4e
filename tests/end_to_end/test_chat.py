"""The chat room of examples/: a room and three members, each in a process. One is killed, and the others go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

SCRIPT = Path(__file__).parents[2] / "examples" / "chat_room.py"


class Participant:
    """A process of the example."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout

    def hears(self) -> str:
        return self._output.readline().strip()

    def says(self, text: str) -> None:
        self._input.write(text + "\n")
        self._input.flush()

    def leaves(self) -> int:
        """End the input, and return the exit status."""
        self._input.close()
        return self.process.wait()


@contextmanager
def participant(name: str, port: int, home: Path) -> Iterator[Participant]:
    command = [sys.executable, str(SCRIPT), name, str(port), str(home / name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Participant(process)
        finally:
            process.kill()


def test_a_room_tells_all_members_and_goes_on_without_one_that_was_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        room = stack.enter_context(participant("room", 0, tmp_path))
        port = int(room.hears().split()[-1])
        ada, bob, carol = (stack.enter_context(participant(name, port, tmp_path)) for name in ("Ada", "Bob", "Carol"))
        assert [one.hears() for one in (ada, bob, carol)] == ["Joined."] * 3
        ada.says("Good morning.")
        assert [one.hears() for one in (ada, bob, carol)] == ["Ada: Good morning."] * 3
        bob.process.kill()
        bob.process.wait()
        for number in range(3):
            carol.says(f"Where is Bob? {number}")
            assert [one.hears() for one in (ada, carol)] == [f"Carol: Where is Bob? {number}"] * 2
        # A member that comes back is a new session.
        again = stack.enter_context(participant("Bob", port, tmp_path))
        assert again.hears() == "Joined."
        again.says("Here.")
        assert [one.hears() for one in (ada, again, carol)] == ["Bob: Here."] * 3
        assert [one.leaves() for one in (ada, again, carol)] == [0, 0, 0]
        room.process.kill()
