"""A session that rests now and then answers exactly as one that never does, whatever happens in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256

from depth import examples
from handler_packages import MANIFEST, PEER, package
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_consensus.errors import TreatyError
from treaty_handler import (
    Audit,
    Call,
    Close,
    Effect,
    Event,
    Invoke,
    Opened,
    PeerLost,
    Persist,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
)
from treaty_sandbox.operation_schemas import Operations
from treaty_sandbox.passivation import Passivation, PassiveHandler, WorkerPool
from treaty_sandbox.validation import SessionRules

CHECKED = package().manifest
OPERATIONS = Operations(CHECKED)
assert set(MANIFEST["roles"]) == set(CHECKED.roles)


class Diary:
    """A handler whose every effect depends on all that it ever saw. It invokes, sets timers and keeps things, as its role may."""

    def __init__(self, role: str, snapshot: bytes = b"0") -> None:
        self.role = role
        count, _, self.state = snapshot.partition(b"/")
        self.invoked = int(count)

    def snapshot(self) -> bytes:
        return b"%d/%s" % (self.invoked, self.state)

    def handle(self, event: Event) -> list[Effect]:
        self.state = sha256(self.state + repr(event).encode()).digest()
        text = self.state.hex()
        match event:
            case Opened():
                return [Audit(text=text)]
            case Received() if self.role == "server":
                self.invoked += 1
                return [Invoke(call=str(self.invoked), operation="serve", arguments={"told": text})]
            case Received():
                return [Send(peer=PEER, data=text.encode()), Persist(key="told", value=text.encode())]
            case Call(call=call):
                return [SetTimer(name="t", seconds=1 + len(text)), Return(call=call, value={"told": text, "b": 1, "a": [text]})]
            case Result(error=None):
                return [Send(peer=PEER, data=text.encode()), SetTimer(name="t", seconds=None)]
            case _:
                return [Audit(text=text)]


class Inline:
    """A session of a diary in this process, judged as in the sandbox. `alive`: whether there is a diary, which is the worker."""

    kept = None
    has_calls = False

    def __init__(self, role: str) -> None:
        self.diary: Diary | None = Diary(role)
        self.resumed = 0
        self._role, self._snapshot = role, b""
        self._rules = SessionRules(CHECKED.roles[role], OPERATIONS, [PEER])

    may_go_on = False

    @property
    def alive(self) -> bool:
        return self.diary is not None

    async def handle(self, event: Event) -> Sequence[Effect]:
        assert self.diary is not None
        if not self._rules.enter(event):
            return []
        return self._rules.leave(event, self.diary.handle(event))

    async def rest(self) -> None:
        assert self.diary is not None
        self._snapshot = self.diary.snapshot()

    async def resume(self) -> None:
        self.diary, self._snapshot = Diary(self._role, self._snapshot), b""
        self.resumed += 1

    async def close(self) -> None:
        self.diary = None


REST = None
text = st.text(max_size=8)
values = st.none() | st.integers(-9, 9) | text | st.dictionaries(text, st.integers(0, 9), max_size=3)
common = [
    st.just(REST),
    st.builds(
        Received,
        peer=st.sampled_from([PEER, PEER, "did:wba:stranger.example"]),
        data=st.binary(max_size=20),
        at=st.integers(0, 99),
    ),
    st.builds(Timer, name=st.just("t")),
    st.builds(PeerLost, peer=st.just(PEER)),
]
calls = st.builds(
    Call, call=text, operation=st.sampled_from(["ask", "ask", "nothing"]), arguments=st.dictionaries(text, values, max_size=3)
)
results = st.builds(Result, call=st.sampled_from(["1", "2", "3"]), value=text | st.integers(0, 9))
stories = st.tuples(st.just("client"), st.lists(st.one_of(*common, calls), max_size=25)) | st.tuples(
    st.just("server"), st.lists(st.one_of(*common, results), max_size=25)
)


async def outcomes(role: str, story: list[Event | None], *, resting: bool) -> list[object]:
    """The effects of each event, or the code of its refusal; then goodbye."""
    workers = WorkerPool(Passivation(max_workers=1))
    session = Inline(role)

    async def start() -> Inline:
        return session

    handler: PassiveHandler = await workers.open(start, lambda: None)
    events: list[object] = []
    for event in [Opened(stored={"kept": b"1"}), *story, Close()]:
        if event is REST:
            if resting:
                await handler.rest()
            continue
        try:
            events.append(await handler.handle(event))
        except TreatyError as error:
            events.append(error.code)
        except ValueError as error:  # what only a broken host does, and this one is
            events.append(str(error))
    await handler.close()
    await workers.close()
    rested = any(event is REST for event in story)
    assert (session.alive, bool(session.resumed)) == (False, resting and rested)
    return events


@settings(max_examples=examples(150), deadline=None)
@given(stories)
def test_resting_changes_nothing(story: tuple[str, list[Event | None]]) -> None:
    role, events = story

    async def both() -> None:
        assert await outcomes(role, events, resting=True) == await outcomes(role, events, resting=False)

    asyncio.run(both())
