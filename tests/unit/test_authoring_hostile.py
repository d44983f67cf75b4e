"""`treaty test` sends hostile messages: a handler that breaks the rule is found with its place, an honest one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treaty_client.authoring.building import build
from treaty_client.authoring.check import check_project
from treaty_client.authoring.new_project import NewProtocol, write_project
from treaty_client.protocols.project import load_project
from treaty_handler import Event, Received, decode_json, encode_json
from treaty_sandbox import SandboxPool, hostile
from treaty_sandbox.hostile import run_hostile
from treaty_sandbox.in_process import LocalSession
from treaty_sandbox.mutations import LONG, mutations

GREETING = Path(__file__).parents[2] / "examples" / "greeting"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new protocol with a handler in Python."""
    write_project(tmp_path / "items", NewProtocol("items", "a/b", "request", "python", "Ask for an item."))
    return tmp_path / "items"


def edit(folder: Path, *changes: tuple[str, str]) -> None:
    path = folder / "handler" / "__init__.py"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


def test_the_mutations_of_a_message_are_of_every_kind() -> None:
    message = encode_json({"id": "1", "n": 2, "list": [{"deep": True}], "none": None})
    changes = dict(mutations(message))
    assert changes["no bytes"] == b"" and changes["cut in half"] == message[: len(message) // 2]
    assert changes["a list of it"] == b"[" + message + b"]"
    decoded = {change: decode_json(data) for change, data in changes.items() if " = " in change or "without" in change}
    assert "id" not in decoded["without id"] and decoded["without list.0.deep"]["list"] == [{}]
    assert decoded["id = null"]["id"] is None and decoded["n = -1"]["n"] == -1
    assert decoded["list.0.deep = {}"]["list"] == [{"deep": {}}]
    assert any(len(value["id"]) == LONG for value in decoded.values() if isinstance(value.get("id"), str))
    assert all(data != message for data in changes.values())
    flipped = dict(mutations(b"\x00\x01\x82"))
    assert flipped["another byte 2"] == b"\x00\xfe\x82" and flipped["without its last byte"] == b"\x00\x01"


async def test_an_honest_handler_survives_each_message(folder: Path) -> None:
    check = await check_project(folder)
    assert check.passed and check.hostile is not None
    assert check.hostile.tried == check.hostile.total > 100


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        # After a state change: the first answer closes the request, and the second one finds none.
        ('"open"].pop(message["id"], None)', '"open"].pop(message["id"])', "KeyError: 'ce4b620fa96723c3' (treaty_handler_items/"),
        # A member is used before it is checked.
        ("faults = handler.validate(message, self.other)", "faults = []", "KeyError: 'id' (treaty_handler_items/"),
        # No exception, but an effect that the host refuses, which ends the session as well.
        ('message=message["message"][:500]', 'message=message["message"]', "The handler returned a result of getItem"),
    ],
)
async def test_a_handler_that_breaks_the_rule_is_found(folder: Path, old: str, new: str, error: str) -> None:
    edit(folder, (old, new))
    check = await check_project(folder)
    assert not check.passed and not check.mismatches, "its vectors do not show the fault"
    problems = [problem for problem in check.problems if error in problem.error.message]
    assert problems, check.problems
    assert problems[0].file.startswith("vectors/") and problems[0].field.startswith("step ")
    assert "the message twice" in problems[0].error.message or "pop(" not in old
    assert problems[0].error.code == "handler.failed" and "Foreign bytes never raise" in problems[0].error.fix
    assert len({problem.error.message for problem in check.problems}) == len(check.problems) <= hostile.MAX_FINDINGS


@pytest.mark.deep
async def test_a_member_of_a_room_may_be_a_stranger(tmp_path: Path) -> None:
    write_project(tmp_path / "room", NewProtocol("room", "a/b", "shared", "python", "Post texts."))
    expression = '{"did:example:peer": 1, "did:example:peer2": 2, "did:example:other": 3}[peer]\n                '
    edit(
        tmp_path / "room",
        (
            "            case Received(peer=peer, data=data):\n                ",
            f"            case Received(peer=peer, data=data):\n                {expression}",
        ),
    )
    [problem] = (await check_project(tmp_path / "room")).problems
    assert "with the message from one that just joined" in problem.error.message
    assert f"KeyError: '{hostile.STRANGER}'" in problem.error.message


@pytest.mark.deep
async def test_an_endless_loop_is_found(folder: Path) -> None:
    edit(
        folder,
        (
            '        if len(message["item"]) > 100:\n',
            '        while message["item"] == "no-such-value":\n            pass\n        if len(message["item"]) > 100:\n',
        ),
    )
    [problem] = (await check_project(folder)).problems
    assert 'item = "no-such-value"' in problem.error.message and "took longer" in problem.error.message


async def test_a_run_is_bounded_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    project = load_project(GREETING)
    monkeypatch.setattr(hostile, "MAX_EVENTS", 300)
    delivered: list[list[bytes]] = []
    for _ in range(2):
        seen: list[bytes] = []
        handle = LocalSession.handle

        async def counted(session: LocalSession, event: Event, seen: list[bytes] = seen, handle: Any = handle) -> Any:
            seen += [event.data] if isinstance(event, Received) else []
            return await handle(session, event)

        with monkeypatch.context() as patched:
            patched.setattr(LocalSession, "handle", counted)
            async with SandboxPool(size=0) as pool:
                run = await run_hostile(pool, build(project), project.vectors)
        assert not run.findings and 0 < run.tried < run.total
        assert run.summary == f"{run.tried} hostile messages of {run.total}"
        delivered.append(seen)
    assert delivered[0] == delivered[1] and len(delivered[0]) < 300
