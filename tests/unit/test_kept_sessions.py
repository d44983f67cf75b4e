"""A shared session that outlives its agent, in simulated time: what is kept, what is told, and which file is refused."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from assemblies import ASSEMBLY, Meeting
from meetings import URI_2, product_info
from queued_steps import Queue

from treaty_agent import Malformed, TreatyError, Unavailable
from treaty_agent.sessions.handler_context import HandlerContext
from treaty_agent.sessions.handler_host import HandlerHost
from treaty_agent.sessions.handler_state import SessionStore
from treaty_agent.sessions.invocations import event_time
from treaty_agent.sessions.operations import Functions
from treaty_agent.sessions.room_file import KeptRoom, RoomFile
from treaty_agent.testing import Simulation, run
from treaty_handler import (
    Call,
    Cancel,
    Cancelled,
    Effect,
    End,
    Event,
    PeerLost,
    Persist,
    Received,
    Request,
    Result,
    Send,
    SetTimer,
    Timer,
)
from treaty_io.identity import UNNAMED
from treaty_sandbox.in_process import LocalSession
from treaty_sandbox.kept_session import KeptSession

URI, LOCAL, WHEEL = "https://registry.example/protocols/example.com/room/1.0", "did:wba:room.example", "ab" * 32
ADA = "did:wba:ada.example"
ROLE = product_info(URI_2).package.manifest.roles["provider"]
EMPTY = KeptSession("0" * 32, b"state", [ADA], {}, {})


class Scripted:
    """A handler that answers what it receives by effects that were set. `kept`: its session."""

    def __init__(self) -> None:
        self.kept: KeptSession | None = EMPTY
        self.effects: Sequence[Effect] = ()
        self.at_loss: Sequence[Effect] = ()
        self.seen: list[Event] = []

    async def handle(self, event: Event) -> Sequence[Effect]:
        self.seen.append(event)
        return self.effects if isinstance(event, Received) else self.at_loss if isinstance(event, PeerLost) else ()

    async def close(self) -> None: ...


class Room:
    """A host with the file of its session. `sent`: each message, and the file when it left."""

    def __init__(self, home: Path) -> None:
        self.handler, self.file = Scripted(), RoomFile(home, URI, "room", LOCAL, WHEEL)
        self.file.take_up()
        self.sent, self.queue = list[tuple[bytes, bytes]](), Queue(UNNAMED)
        self.store = SessionStore.of_all(home, WHEEL, "room", LOCAL)

        async def send_to(effect: Send, operation: str, metadata: object) -> None:
            self.sent.append((effect.data, self.content))

        context = HandlerContext(UNNAMED, ROLE, 10, interface=3, send_to=send_to)
        self.host = HandlerHost(self.handler, context, Functions(), self.store, self.queue, self.file)

    @property
    def content(self) -> bytes:
        return self.file.path.read_bytes() if self.file.exists else b""

    @property
    def session(self) -> KeptSession:
        digest, _, text = self.content.partition(b"\n")
        assert hashlib.sha256(text).hexdigest().encode() == digest
        return msgspec.json.decode(text, type=KeptRoom).session


@pytest.mark.threat(377, 379)
async def test_an_event_is_stored_before_it_is_visible(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.handler.effects = [
        Send(peer=ADA, data=b"hello"),
        SetTimer(name="tick", seconds=60),
        Persist(key="k", value=b"v"),
    ]
    before = event_time()
    await room.host.received(b"", peer=ADA)
    [(data, content)] = room.sent
    assert (data, content) == (b"hello", room.content)
    assert room.session.timers.keys() == {"tick"}
    assert 59_000 < room.session.timers["tick"] - before < 61_000
    assert await room.store.load() == {"k": b"v"}
    assert room.file.path.stat().st_mode & 0o777 == 0o600
    assert {folder.stat().st_mode & 0o777 for folder in (room.file.path.parent, room.file.path.parent.parent)} == {0o700}
    # A timer that is not set again, and a message that changes nothing, cost no write.
    version = room.file.path.stat().st_ino
    room.handler.effects = [Send(peer=ADA, data=b"again")]
    await room.host.received(b"", peer=ADA)
    assert (len(room.sent), room.file.path.stat().st_ino) == (2, version)
    await room.host.close()


@pytest.mark.threat(377)
async def test_an_event_that_cannot_be_written_is_told_to_nobody(tmp_path: Path) -> None:
    room = Room(tmp_path)
    await room.host.received(b"", peer=ADA)
    content, folder = room.content, room.file.path.parent
    room.handler.kept = msgspec.structs.replace(EMPTY, snapshot=b"newer")
    room.handler.effects = [Send(peer=ADA, data=b"hello")]
    folder.rename(folder.with_name("away"))
    folder.write_bytes(b"")  # no folder: the write fails, also as root
    with pytest.raises(Unavailable) as failure:
        await room.host.received(b"", peer=ADA)
    assert (failure.value.code, room.sent) == ("system.file", [])
    folder.unlink()
    folder.with_name("away").rename(folder)
    assert room.content == content
    await room.host.close()


@pytest.mark.parametrize("effects", [[End()], []])
async def test_a_session_that_ends_or_has_no_snapshot_leaves_no_file(tmp_path: Path, effects: list[Effect]) -> None:
    room = Room(tmp_path)
    await room.host.received(b"", peer=ADA)
    assert room.file.exists
    room.handler.kept, room.handler.effects = None, [Send(peer=ADA, data=b"bye"), *effects]
    await room.host.received(b"", peer=ADA)
    # An older state would come back without what the member was told.
    assert room.sent == [(b"bye", b"")]
    await room.host.close()


@pytest.mark.threat(377)
def test_the_next_process_ends_lost_members_and_keeps_timers(tmp_path: Path) -> None:
    async def main() -> None:
        first = Room(tmp_path)
        now = event_time()
        session = KeptSession(
            "0" * 32,
            b"state",
            [ADA, "did:wba:bob.example"],
            {"c-1": "announce"},
            {"f1": "getProductInfo", "f2": "getProductInfo"},
            {"due": now - 5_000, "later": now + 30_000, "never": now + 10**12},
        )
        await first.file.write(session)
        first.file.release()
        room = Room(tmp_path)
        assert room.file.kept == session
        # The handler gives one of the functions up, and asks the other one for items, when it hears of the loss.
        room.handler.at_loss = [Request(call="f1", count=1), Cancel(call="f2")]
        await room.host.open()
        events = [(type(event), getattr(event, "peer", getattr(event, "call", ""))) for event in room.handler.seen]
        assert events == [
            (PeerLost, ADA),
            (PeerLost, "did:wba:bob.example"),
            (Result, "f1"),
            (Cancelled, "c-1"),
        ]
        assert [event.error.code for event in room.handler.seen if isinstance(event, Result) and event.error] == [503]
        room.handler.seen.clear()
        for seconds, rung in ((1, ["due"]), (28, []), (2, ["later"]), (29 * 86_400, []), (86_400, ["never"])):
            await asyncio.sleep(seconds)
            await room.queue.perform()
            assert [event.name for event in room.handler.seen if isinstance(event, Timer)] == rung
            room.handler.seen.clear()
        await room.host.close()

    run(main())


@pytest.mark.threat(378)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:100],
        lambda data: b"",
        lambda data: data.replace(b"state", b"State").replace(b"c3RhdGU", b"U3RhdGU"),
        lambda data: signed(data.partition(b"\n")[2].replace(WHEEL.encode(), b"cd" * 32)),
        lambda data: signed(data.partition(b"\n")[2].replace(b"room.example", b"other.example")),
        lambda data: signed(data.partition(b"\n")[2].replace(b'"room":1', b'"room":2')),
        lambda data: signed(data.partition(b"\n")[2].replace(b'"room":1', b'"room":1,"more":1')),
        lambda data: signed(b"[]"),
        lambda data: data + b" " * 5_000_000,
    ],
    ids=["torn", "head", "empty", "flipped", "other wheel", "other agent", "newer", "unknown", "no object", "large"],
)
async def test_a_damaged_or_foreign_file_is_refused_and_stays(tmp_path: Path, damage: Any) -> None:
    room = Room(tmp_path)
    await room.file.write(EMPTY)
    room.file.release()
    assert damage(room.content) != room.content
    room.file.path.write_bytes(damage(room.content))
    before = room.content
    with pytest.raises(Malformed) as refusal:
        Room(tmp_path)
    assert refusal.value.code == "system.state"
    assert room.content == before
    # Nothing is locked either.
    room.file.path.unlink()
    assert Room(tmp_path).file.kept is None


def signed(text: bytes) -> bytes:
    """A file of this content with its right digest."""
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


@pytest.mark.threat(378)
async def test_a_room_is_had_by_one_process_alone(tmp_path: Path) -> None:
    room = Room(tmp_path)
    await room.file.write(EMPTY)
    before = room.content
    with pytest.raises(Unavailable) as refusal:
        Room(tmp_path)
    assert (refusal.value.code, room.content) == ("system.held", before)
    room.file.release()
    assert Room(tmp_path).file.kept == EMPTY


@pytest.mark.threat(378)
async def test_a_room_of_another_handler_is_named_in_the_log_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    room = Room(tmp_path)
    await room.file.write(EMPTY)
    before = room.content
    other = RoomFile(tmp_path, URI, "room", LOCAL, "cd" * 32)
    with caplog.at_level(logging.WARNING):
        other.take_up()
    assert other.kept is None
    await other.write(EMPTY)
    [line] = caplog.messages
    assert str(room.file.path) in line
    other.remove()
    assert room.content == before


def test_a_restarted_agent_keeps_its_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with Simulation([ASSEMBLY]) as simulation:
            for number in (1, 2, 3):
                meeting = Meeting(simulation)
                await meeting.room.prepare()
                assert meeting.members == []
                async with AsyncExitStack() as stack:
                    members = [await meeting.joined(stack, f"{name}.example") for name in ("ada", "bob")]
                    assert await members[0][1].call("say", text=f"Text {number}.") == number
                    for member, _ in members:
                        await member.has_heard(*(f"Text {past}." for past in range(1, number + 1)))
                        assert len(member.heard) == number
                    await meeting.room.aclose()

    run(main())


@pytest.mark.parametrize(("code", "stays"), [("handler.failed", False), ("sandbox.died", False), ("system.file", True)])
def test_a_handlers_fault_ends_a_room_and_a_machines_does_not(code: str, stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = LocalSession.handle

    async def fail(session: LocalSession, event: Event) -> list[Effect]:
        if isinstance(event, Call) and event.arguments["text"] == "Fail.":
            raise Unavailable(code, "It failed.")
        return await handle(session, event)

    monkeypatch.setattr(LocalSession, "handle", fail)

    async def main() -> None:
        async with Simulation([ASSEMBLY]) as simulation, AsyncExitStack() as stack:
            meeting = Meeting(simulation)
            await meeting.room.prepare()
            shared = meeting.room.shared(meeting.uri)
            await shared.call("announce", text="Before.")
            [file] = (meeting.room.context.home / "rooms").rglob("*.room")
            before = file.read_bytes()
            with pytest.raises(TreatyError):
                await shared.call("announce", text="Fail.")
            assert (file.read_bytes() == before) if stays else not file.exists()
            # The next one begins at once, or goes on.
            ada, says = await meeting.joined(stack, "ada.example")
            await ada.has_heard("Before.")  # by its snapshot, or as the room has stored it
            assert await says.call("say", text="After.") == 2

    run(main())


def test_call_ids_are_unique_over_the_processes_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, ids = LocalSession.handle, list[str]()

    async def note(session: LocalSession, event: Event) -> list[Effect]:
        ids.extend([event.call] if isinstance(event, Call) and session.role == "room" else [])
        return await handle(session, event)

    monkeypatch.setattr(LocalSession, "handle", note)

    async def main() -> None:
        async with Simulation([ASSEMBLY]) as simulation:
            for _ in range(2):
                meeting = Meeting(simulation)
                await meeting.room.prepare()
                for _ in range(2):
                    await meeting.room.shared(meeting.uri).call("announce", text="Hello.")
                await meeting.room.aclose()

    run(main())
    assert len(ids) == len(set(ids)) == 4


def test_an_agent_awaits_the_release_of_its_room() -> None:
    async def main() -> None:
        async with Simulation([ASSEMBLY]) as simulation, AsyncExitStack() as stack:
            first, second = Meeting(simulation), Meeting(simulation)
            await first.room.prepare()
            await first.room.shared(first.uri).call("announce", text="First.")
            await second.room.prepare()
            assert second.room.unserved[second.uri].code == "system.held"
            await first.room.aclose()
            await asyncio.sleep(10)  # it tries again soon
            assert not second.room.unserved
            ada, _ = await second.joined(stack, "ada.example")
            await ada.has_heard("First.")

    run(main())


def test_a_room_whose_protocol_is_withdrawn_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with Simulation([ASSEMBLY]) as simulation, AsyncExitStack() as stack:
            meeting = Meeting(simulation)
            await meeting.room.prepare()
            await meeting.joined(stack, "ada.example")
            [file] = (meeting.room.context.home / "rooms").rglob("*.room")
            await meeting.room.withdraw(meeting.uri)
            assert not file.exists()

    run(main())


def test_a_damaged_room_disables_its_protocol_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with Simulation([ASSEMBLY]) as simulation, AsyncExitStack() as stack:
            meeting = Meeting(simulation)
            await meeting.room.prepare()
            await meeting.joined(stack, "ada.example")
            [file] = (meeting.room.context.home / "rooms").rglob("*.room")
            await meeting.room.aclose()
            file.write_bytes(file.read_bytes()[:-1])
            with pytest.raises(TreatyError) as refusal:
                await Meeting(simulation).room.prepare()
            assert (refusal.value.code, str(file) in str(refusal.value)) == ("system.state", True)

    run(main())
