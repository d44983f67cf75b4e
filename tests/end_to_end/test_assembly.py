"""The assembly of examples/: a room and three members, each in a process, in one session of the room's sandboxed handler."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from participants import participant

SCRIPT = Path(__file__).parents[2] / "examples" / "assembly_room.py"


@pytest.mark.deep
def test_an_assembly_outlives_a_killed_member(tmp_path: Path) -> None:
    with ExitStack() as stack:
        room = stack.enter_context(participant(SCRIPT, "room", 0, tmp_path))
        port = int(room.hears().split()[-1])
        ada, bob, carol = (stack.enter_context(participant(SCRIPT, name, port, tmp_path)) for name in ("Ada", "Bob", "Carol"))
        assert [one.hears() for one in (ada, bob, carol)] == ["Joined."] * 3
        ada.says("Good morning.")
        assert [one.hears() for one in (ada, bob, carol)] == ["1. Ada: Good morning."] * 3
        bob.process.kill()
        bob.process.wait()
        for number in range(2, 5):
            carol.says("Where is Bob?")
            assert [one.hears() for one in (ada, carol)] == [f"{number}. Carol: Where is Bob?"] * 2
        room.says("Bob has left.")
        assert [one.hears() for one in (ada, carol)] == ["5. Bob has left."] * 2
        assert room.hears() == "Announced to 2"
        # A member that comes back joins the same session, and hears the last texts.
        again = stack.enter_context(participant(SCRIPT, "Bob", port, tmp_path))
        lines = ["1. Ada: Good morning.", *(f"{number}. Carol: Where is Bob?" for number in range(2, 5)), "5. Bob has left."]
        assert sorted(again.hears() for _ in range(6)) == sorted([*lines, "Joined."])
        assert [one.leaves() for one in (ada, again, carol)] == [0, 0, 0]
        assert room.leaves() == 0
