"""Message routing for tests: its package, the members of the feedback loop, and sessions that are wired to each other."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import feedback_script as script

import treaty_client
from treaty_client.protocols.project import Project, load_project
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_handler import (
    Audit,
    Call,
    End,
    Event,
    Failure,
    Invoke,
    Multicast,
    Opened,
    PeerJoined,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
)
from treaty_sandbox import Isolation, SandboxPool
from treaty_sandbox.interface import RunningHandler

# Beside the client that is imported, so that the copy with a mutant has its own.
FOLDER = Path(treaty_client.__file__).parents[2] / "protocols" / "message-routing" / "1.0"
URI = "https://registry.example/protocols/example.com/message-routing/1.0"
ENVIRONMENT = "did:wba:environment.example"


@cache
def routing_project() -> Project:
    """The project folder."""
    return load_project(FOLDER)


@cache
def routing_package() -> HandlerPackage:
    """The package, as it is published."""
    return read_wheel(*routing_project().build_wheel(URI))


@cache
def rules() -> ModuleType:
    """The handler's package, imported into this process; its modules are attributes."""
    name = "treaty_handler_message_routing"
    if name not in sys.modules:
        place = FOLDER / "handler"
        spec = importlib.util.spec_from_file_location(name, place / "__init__.py", submodule_search_locations=[str(place)])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    importlib.import_module(f"{name}.in_process")
    return sys.modules[name]


class Script:
    """The application of one member of the feedback loop. `calls`: the number of messages that it worked on, by their cause."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name, self.rounds, self.turns = name, rounds, 0
        self.calls: Counter[str] = Counter()

    async def act(self, action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
        """Work on each message of the news."""
        await asyncio.sleep(0)  # as a model would let others go on
        published = []
        for message in news:
            self.calls[message["cause_by"]] += 1
            answer = script.model(f"{action}: {message['content']}")
            published += script.drafts(self.name, answer, self.rounds)
        self.turns += 1
        return {"publish": published, "response": script.dummy(self.name, self.turns)}

    async def think(self, state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, str]:
        """Choose the first state; a member with one action is not asked."""
        return {"state": choices[0]}


def joining(name: str) -> dict[str, Any]:
    """The arguments with which a member of the feedback loop joins."""
    action = script.ACTIONS[name]
    transitions = {"<idle>": [action], action: ["<idle>"]}
    return {"name": name, "address": script.MEMBERS[name], "watch": script.WATCHES[name], "transitions": transitions}


def member_did(name: str) -> str:
    """The DID of a member."""
    return f"did:wba:{name.lower()}.example"


class Wired:
    """Sessions of one environment and its members, without a network: a message to a peer is an event of its session."""

    def __init__(self, sessions: Mapping[str, RunningHandler], applications: Mapping[str, Any]) -> None:
        self.sessions, self.applications = sessions, applications
        self.notes: list[str] = []
        self.ended: list[str] = []
        self.received: Counter[str] = Counter()
        # A message and all that follows from it come before the next, as they do on one connection.
        self._turn = asyncio.Lock()
        self._calls = 0
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, did: str, operation: str, **arguments: Any) -> Any:
        """Call an operation. A failure is returned, not raised."""
        self._calls += 1
        call = str(self._calls)
        answer = self._answers[call] = asyncio.get_running_loop().create_future()
        await self.give(did, Call(call=call, operation=operation, arguments=arguments))
        return await asyncio.wait_for(answer, 60)

    async def lose(self, did: str) -> None:
        """Have the environment lose a member."""
        await self.give(ENVIRONMENT, PeerLost(peer=did))

    async def come(self, did: str) -> None:
        """Have the environment's session get a peer."""
        await self.give(ENVIRONMENT, PeerJoined(peer=did, role="member", is_proved=True))

    async def history(self) -> list[dict[str, Any]]:
        """The whole history."""
        messages: list[dict[str, Any]] = []
        while True:
            page = await self.call(ENVIRONMENT, "readHistory", start=len(messages))
            messages += page["messages"]
            if len(messages) == page["total"]:
                return messages

    async def give(self, did: str, event: Event) -> None:
        """Give an event to a session, and perform its effects."""
        async with self._turn:
            await self._give(did, event)

    async def send(self, did: str, peer: str, data: bytes) -> None:
        """Send a message from one session to another."""
        if peer not in self.ended:
            await self._give(peer, Received(peer=did, data=data))

    async def _give(self, did: str, event: Event) -> None:
        for effect in await self.sessions[did].handle(event):
            match effect:
                case Send(peer=peer, data=data):
                    self.received[peer] += 1
                    await self.send(did, peer, data)
                case Multicast(peers=peers, data=data):
                    for peer in peers:
                        self.received[peer] += 1
                        await self.send(did, peer, data)
                case Invoke():
                    task = asyncio.create_task(self._invoke(did, effect))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case Return(call=call, value=value, error=error):
                    self._answers.pop(call).set_result(error or value)
                case Audit(text=text):
                    self.notes.append(text)
                case End():
                    self.ended.append(did)

    async def _invoke(self, did: str, effect: Invoke) -> None:
        function = getattr(self.applications[did], effect.operation)
        try:
            result = Result(call=effect.call, value=await function(**effect.arguments))
        except Exception as error:
            result = Result(call=effect.call, error=Failure(code=500, message=str(error)))
        await self.give(did, result)


@asynccontextmanager
async def wired(applications: Mapping[str, Any], isolation: Isolation = "none") -> AsyncIterator[Wired]:
    """An environment, and a session for each of these applications, by name."""
    dids = {name: member_did(name) for name in applications}
    package = routing_package()
    async with SandboxPool(size=0, levels=(isolation,)) as pool:
        sessions: dict[str, RunningHandler] = {}
        hub = await pool.load(package, local=ENVIRONMENT, peers=list(dids.values()))
        sessions[ENVIRONMENT] = await hub.open("environment")
        for did in dids.values():
            worker = await pool.load(package, local=did, peers=[ENVIRONMENT])
            sessions[did] = await worker.open("member")
        for session in sessions.values():
            await session.handle(Opened())
        for did in dids.values():
            await sessions[ENVIRONMENT].handle(PeerJoined(peer=did, role="member", is_proved=True))
        yield Wired(sessions, {did: applications[name] for name, did in dids.items()})
