"""The chat room of examples/: a room and three members, each in a process. One is killed, and the others go on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from participants import participant

SCRIPT = Path(__file__).parents[2] / "examples" / "chat_room.py"


@pytest.mark.deep
def test_a_chat_outlives_a_killed_member(tmp_path: Path) -> None:
    with ExitStack() as stack:
        room = stack.enter_context(participant(SCRIPT, "room", 0, tmp_path))
        port = int(room.hears().split()[-1])
        ada, bob, carol = (stack.enter_context(participant(SCRIPT, name, port, tmp_path)) for name in ("Ada", "Bob", "Carol"))
        assert [one.hears() for one in (ada, bob, carol)] == ["Joined."] * 3
        ada.says("Good morning.")
        assert [one.hears() for one in (ada, bob, carol)] == ["Ada: Good morning."] * 3
        bob.process.kill()
        bob.process.wait()
        for number in range(3):
            carol.says(f"Where is Bob? {number}")
            assert [one.hears() for one in (ada, carol)] == [f"Carol: Where is Bob? {number}"] * 2
        # A member that comes back is a new session.
        again = stack.enter_context(participant(SCRIPT, "Bob", port, tmp_path))
        assert again.hears() == "Joined."
        again.says("Here.")
        assert [one.hears() for one in (ada, again, carol)] == ["Bob: Here."] * 3
        assert [one.leaves() for one in (ada, again, carol)] == [0, 0, 0]
        room.process.kill()
