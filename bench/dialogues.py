"""Sessions of the three first-party protocols with handlers of code, wired to each other, and what they say in a turn.

    AIP                an inquiry in an open session, and its feedback
    handoff            a task is handed off, confirmed, worked on, and reported as completed
    message routing    the user's message to one member, its response to another one, and the two rounds in which they work

Messages are those on the wire, confirmations and signals of rounds included. The applications answer at once, nothing is stored
and no timer runs, so that a turn is the handler's work and the way to it.
"""

from __future__ import annotations

import base64
import importlib.util
import secrets
import sys
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from treaty_client.protocols.project import load_project
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_handler import Call, Effect, Event, Handler, Invoke, Multicast, Opened, PeerJoined, Received, Result, Return, Send
from treaty_handoff import Kind, build
from treaty_sandbox import SandboxPool
from treaty_sandbox.in_process import CompiledPackage, LocalWorker
from treaty_sandbox.operation_schemas import Operations

from .servers import REPOSITORY, SceneFailed

Way = Literal["bare", "in process", "plain worker", "sandbox"]
"""The handler alone; in this process; in a worker process without a sandbox; in a sandbox. Events and effects are checked
alike in all but the first."""
WAYS: tuple[Way, ...] = ("bare", "in process", "plain worker", "sandbox")
TEXT = "Is P12345 in stock?"
IMAGE = bytes(range(256)) * 256
"""64 KiB."""
SIZES = ("text", "large")
# The largest that fit: a message of handoff has at most 16 KiB, one of message routing 64 KiB as JSON.
NOTES, PICTURE = "n" * 14 * 1024, base64.b64encode(IMAGE[: 47 * 1024]).decode()

_FOLDERS = {"aip": "aip/0.0.1", "handoff": "handoff/1.0", "routing": "message-routing/1.0"}
HUB, BOB, CAROL = "did:example:hub", "did:example:bob", "did:example:carol"


class Handling(Protocol):
    """A session, as far as a dialogue needs it."""

    async def handle(self, event: Event) -> Sequence[Effect]:
        """Return the effects of an event."""


class Wiring:
    """Sessions by DID. A message to a DID is an event of its session. `messages`: the number of them so far."""

    def __init__(self, sessions: Mapping[str, Handling], answer: Callable[[Invoke], Any]) -> None:
        """Answer each function that a handler invokes by `answer`."""
        self._sessions, self._answer = sessions, answer
        self._waiting: deque[tuple[str, Event]] = deque()
        self._calls = 0
        self.messages = 0

    async def call(self, did: str, operation: str, **arguments: Any) -> Any:
        """Call an operation, and go on until no event is left. Return its value. Raises `SceneFailed` for a failure."""
        self._calls += 1
        call, returned = f"c{self._calls}", list[Return]()
        self._waiting.append((did, Call(call=call, operation=operation, arguments=arguments, at=_now())))
        while self._waiting:
            await self._step(returned)
        if not returned or returned[0].call != call or returned[0].error is not None:
            raise SceneFailed(f"{operation}: {returned}")
        return returned[0].value

    async def _step(self, returned: list[Return]) -> None:
        did, event = self._waiting.popleft()
        for effect in await self._sessions[did].handle(event):
            match effect:
                case Send(peer=peer, data=data):
                    self.messages += 1
                    self._waiting.append((peer, Received(peer=did, data=data, at=_now())))
                case Multicast(peers=peers, data=data):
                    self.messages += len(peers)
                    self._waiting.extend((peer, Received(peer=did, data=data, at=_now())) for peer in peers)
                case Invoke(call=call):
                    self._waiting.append((did, Result(call=call, value=self._answer(effect), at=_now())))
                case Return():
                    returned.append(effect)


class _Bare:
    """A session of a handler without any check of its events and effects."""

    def __init__(self, handler: Handler, role: str, did: str, peers: list[str]) -> None:
        self._session = handler.open(role, {"local": did, "peer": peers[0], "seed": secrets.token_hex(16)})

    async def handle(self, event: Event) -> Sequence[Effect]:
        return self._session.handle(event)


Turn = Callable[[], Awaitable[None]]


@asynccontextmanager
async def dialogue(name: str, size: str, way: Way) -> AsyncIterator[tuple[Wiring, Turn]]:
    """Open the sessions of a protocol. Yield them, and the function that has them talk for one turn."""
    package, handler = _load(_FOLDERS[name])
    peers = {"aip": (HUB, BOB), "handoff": (HUB, BOB), "routing": (HUB, BOB, CAROL)}[name]
    async with SandboxPool(size=0, levels=("none",) if way == "plain worker" else ("bubblewrap",)) as pool:
        sessions: dict[str, Handling] = {}
        for did in peers:
            others = [other for other in peers if other != did] if did == HUB else [HUB]
            role = _role(name, did)
            if way == "bare":
                sessions[did] = _Bare(handler, role, did, others)
            elif way == "in process":
                local = LocalWorker(CompiledPackage(package, Operations(package.manifest), handler), did, others)
                sessions[did] = await local.open(role)
            else:
                sessions[did] = await (await pool.load(package, local=did, peers=others)).open(role)
            await sessions[did].handle(Opened(at=_now()))
        begin = {"aip": _aip, "handoff": _handoff, "routing": _routing}[name]
        yield await begin(sessions, size)


async def _aip(sessions: Mapping[str, Handling], size: str) -> tuple[Wiring, Turn]:
    content = [{"image": base64.b64encode(IMAGE).decode()}] if size == "large" else [{"text": TEXT}]
    asked = {"session_id": "s", "sender_id": "hub", "receiver_id": "bob", "content": content}
    wiring = Wiring(sessions, lambda invoke: None)
    await wiring.call(HUB, "create_client", session_id="s", receiver_id="bob")

    async def turn() -> None:
        await wiring.call(HUB, "submit_inquiry", message=asked)
        await wiring.call(BOB, "submit_feedback", message={**asked, "sender_id": "bob", "receiver_id": "hub"})

    return wiring, turn


async def _handoff(sessions: Mapping[str, Handling], size: str) -> tuple[Wiring, Turn]:
    data = {"objective": TEXT, "sub_tasks": [{"sub_task_id": "1", "description": "Look."}]}
    summary = NOTES if size == "large" else None
    now = datetime.now(UTC)
    message = build(Kind.TASK_TRANSFER, data, sender="hub", recipient="bob", task="t", state="OPEN", now=now, summary=summary)
    wiring = Wiring(sessions, lambda invoke: {"status": "COMPLETED"})

    async def turn() -> None:
        # Another id each time: a repetition would have no effect.
        fresh = {**message, "metadata": {**message["metadata"], "message_id": str(uuid.uuid4())}}
        await wiring.call(HUB, "handOff", message=fresh)

    return wiring, turn


async def _routing(sessions: Mapping[str, Handling], size: str) -> tuple[Wiring, Turn]:
    about = {"image": PICTURE} if size == "large" else None

    def answer(invoke: Invoke) -> Any:
        done = {"content": TEXT, "instruct_content": about, "cause_by": invoke.arguments["action"]}
        return {"response": {**done, "send_to": ["Carol"]} if invoke.arguments["action"] == "Work" else None}

    wiring = Wiring(sessions, answer)
    for did, member, action in ((BOB, "Bob", "Work"), (CAROL, "Carol", "Read")):
        await sessions[HUB].handle(PeerJoined(peer=did, role="member", is_proved=True, at=_now()))
        transitions = {"<idle>": [action], action: ["<idle>"]}
        await wiring.call(did, "join", name=member, address=member, transitions=transitions)

    async def turn() -> None:
        await wiring.call(HUB, "publish", content=TEXT, instruct_content=about, send_to=["Bob"])
        ended = await wiring.call(HUB, "run", rounds=5)
        if ended != {"idle": True, "rounds": 2, "failures": []}:
            raise SceneFailed(f"run: {ended}")

    return wiring, turn


def _role(name: str, did: str) -> str:
    hub, other = {"aip": ("peer", "peer"), "handoff": ("sender", "receiver"), "routing": ("environment", "member")}[name]
    return hub if did == HUB else other


def _load(folder: str) -> tuple[HandlerPackage, Handler]:
    """The package, as it is published, and its handler, imported into this process."""
    place = REPOSITORY / "protocols" / folder
    uri = f"https://bench.example/protocols/bench.example/{folder}"
    package = read_wheel(*load_project(place).build_wheel(uri))
    handler: Handler = getattr(_imported(package.package, place / "handler"), package.entry_point.attribute)
    return package, handler


def _imported(name: str, place: Path) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, place / "__init__.py", submodule_search_locations=[str(place)])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def _now() -> int:
    return time.time_ns() // 1_000_000
