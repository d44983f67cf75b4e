"""Whether a handler does what its test cases say, tried in the sandbox, and the vectors that follow.

    alone      each role by itself against the messages of the cases: what it sends is what they show, but for ids it draws
    together   the two roles against each other, each in a worker of its own: every call comes back with its outcome
    unanswered a call that nobody answers fails when its timers run out, and the loss of the peer is survived
    strangers  no bytes make it raise, not even cases' messages that come in the wrong direction or cut in half
    moved      all of `alone`, recorded, is replayed with the session moved by snapshot after every step

The first thing that is not so is raised, with what was expected and what came.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import HandlerPackage, Manifest, Role
from treaty_consensus.printable import printable
from treaty_handler import (
    Call,
    Close,
    Effect,
    End,
    Event,
    Invoke,
    Opened,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
)

from ..handlers import SandboxPool, Session, Worker, parse_vector, run_vectors
from ..handlers.vectors import LOCAL, PEER, format_vector
from .ids import Ids
from .test_cases import Message, Outcome, Success, TestCase, describe

MAX_SHOWN = 1_500
"""Characters of a message or value in a complaint."""
MAX_MESSAGES = 64
"""Messages that the two roles together may send because of one call."""

_CALLER_SEED, _SERVER_SEED = "0" * 32, "1" * 32
_NONSENSE = (
    *(b"", b"\0", b"\xff\xfe\xfd", b"\n", b"{}", b"[]", b"null", b"1", b'"text"', b'{"a":', b"[" * 1_000),
    *(b"A" * 10_000, b'{"type":[],"messageId":{}}', b"1e999", "\u2028é".encode()),
)
_DRAWN = "ids may differ only where they are derive_id(seed, number)"
E = TypeVar("E", bound=Effect)


def roles_of(manifest: Manifest) -> tuple[Role, Role]:
    """Who calls and who serves. Raises `Refused` (`negotiation.roles`) unless there are just these two."""
    callers = [role for role in manifest.roles.values() if role.calls and not role.invokes]
    servers = [role for role in manifest.roles.values() if role.invokes and not role.calls]
    if len(manifest.roles) != 2 or len(callers) != 1 or len(servers) != 1 or callers[0].calls.keys() != servers[0].invokes.keys():
        raise Refused(
            "negotiation.roles",
            "A negotiated protocol has two roles: one has all operations under `calls`, the other the same under `invokes`.",
        )
    return callers[0], servers[0]


async def try_handler(pool: SandboxPool, package: HandlerPackage, cases: Sequence[TestCase]) -> dict[str, bytes]:
    """Try all of it; returns the vectors, file name to content.

    Raises `Refused` (`negotiation.test-case`, `negotiation.roles`), what a handler's loading and events raise, and `Unavailable`
    (`sandbox.unavailable`) when nothing can be tried.
    """
    caller, server = roles_of(package.manifest)
    async with _loaded(pool, package, LOCAL, PEER) as worker:
        vectors = {
            f"{caller.name}.json": await _caller_alone(worker, caller.name, cases),
            f"{server.name}.json": await _server_alone(worker, server.name, cases),
        }
        await _unanswered(worker, caller.name, cases[0])
        requests, responses = [case.request.data for case in cases], [case.response.data for case in cases]
        await _strangers(worker, caller.name, [*requests, *responses])
        await _strangers(worker, server.name, responses)
        async with _loaded(pool, package, PEER, LOCAL) as other:
            await _together(worker, caller.name, other, server.name, cases)
    mismatches = await run_vectors(pool, package, [parse_vector(name, data) for name, data in vectors.items()])
    if mismatches:
        raise Refused("negotiation.test-case", f"Replayed from a snapshot: {printable(str(mismatches[0]), MAX_SHOWN)}.")
    return vectors


class _Conversation:
    """A session that remembers what happened in it. `where`: for complaints."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.steps: list[tuple[Event, Sequence[Effect]]] = []
        self.where = f"The role {session.role}"

    @classmethod
    async def begin(cls, worker: Worker, role: str, seed: str) -> _Conversation:
        """A session that has been opened."""
        conversation = cls(await worker.open(role, seed=seed))
        conversation.none_of(await conversation.give(Opened()), "when the session opens", Send, Invoke, Return, End)
        return conversation

    async def give(self, event: Event) -> Sequence[Effect]:
        """The effects of an event. Raises what it raises, with the place."""
        try:
            effects = await self.session.handle(event)
        except TreatyError as error:
            what = printable(repr(event), MAX_SHOWN)
            raise type(error)(error.code, f"{self.where}, at {what}: {error.message}", fix=error.fix) from error
        self.steps.append((event, effects))
        return effects

    def at(self, number: int, case: TestCase) -> None:
        """From now on it is this case's turn."""
        self.where = f"Test case {number} ({case.title}), role {self.session.role}"

    def one(self, effects: Sequence[Effect], kind: type[E], when: str) -> E:
        """The one effect of a kind, with nothing else but timers, storage and notes beside it."""
        others = {Send, Invoke, Return, End} - {kind}
        self.none_of(effects, when, *others)
        found = [effect for effect in effects if isinstance(effect, kind)]
        if len(found) != 1:
            self.fail(f"one {kind.__name__} {when}", effects)
        return found[0]

    def none_of(self, effects: Sequence[Effect], when: str, *kinds: type[Effect]) -> None:
        """Complain about effects of these kinds."""
        if any(isinstance(effect, kinds) for effect in effects):
            self.fail(f"no {' or '.join(sorted(kind.__name__ for kind in kinds))} {when}", effects)

    def fail(self, expected: str, actual: object) -> NoReturn:
        """Complain."""
        shown = actual if isinstance(actual, str) else repr(actual)
        raise Refused(
            "negotiation.test-case",
            f"{self.where}: expected {printable(expected, MAX_SHOWN)}, got {printable(shown, MAX_SHOWN)}.",
        )


@asynccontextmanager
async def _loaded(pool: SandboxPool, package: HandlerPackage, local: str, peer: str) -> AsyncIterator[Worker]:
    worker = await pool.load(package, local=local, peers=[peer])
    try:
        yield worker
    finally:
        await worker.close()


async def _caller_alone(worker: Worker, role: str, cases: Sequence[TestCase]) -> bytes:
    side, ids = await _Conversation.begin(worker, role, _CALLER_SEED), Ids(_CALLER_SEED)
    for number, case in enumerate(cases, 1):
        side.at(number, case)
        call = f"c{number}"
        effects = await side.give(Call(call=call, operation=case.operation, arguments=dict(case.arguments)))
        sent = side.one(effects, Send, "because of the call")
        if not ids.matches(case.request, sent.data):
            side.fail(f"the request {_shown(case.request)}", f"{_bytes(sent.data)} ({_DRAWN})")
        effects = await side.give(Received(peer=PEER, data=ids.fill(case.response)))
        returned = side.one(effects, Return, f"after the response {_shown(case.response)}")
        if returned.call != call or not _is_outcome(returned, case.outcome, ids):
            side.fail(f"the outcome {_json(describe(case.outcome))} for the call {call}", returned)
    await side.give(Close())
    return format_vector(f"The test cases, as {role}", role, side.steps)


async def _server_alone(worker: Worker, role: str, cases: Sequence[TestCase]) -> bytes:
    side, ids = await _Conversation.begin(worker, role, _CALLER_SEED), Ids(_CALLER_SEED)
    for number, case in enumerate(cases, 1):
        side.at(number, case)
        invoked = side.one(await side.give(Received(peer=PEER, data=case.request.data)), Invoke, f"after {_shown(case.request)}")
        if invoked.operation != case.operation or not ids.same(dict(case.arguments), invoked.arguments):
            side.fail(f"{case.operation} with {_json(dict(case.arguments))}", invoked)
        sent = side.one(await side.give(_result(invoked.call, case.outcome)), Send, "because of the result")
        if not ids.matches(case.response, sent.data):
            side.fail(f"the response {_shown(case.response)}", f"{_bytes(sent.data)} ({_DRAWN})")
    await side.give(Close())
    return format_vector(f"The test cases, as {role}", role, side.steps)


async def _together(caller: Worker, calls: str, server: Worker, serves: str, cases: Sequence[TestCase]) -> None:
    ids = Ids(_CALLER_SEED, _SERVER_SEED)
    asking = await _Conversation.begin(caller, calls, _CALLER_SEED)
    serving = await _Conversation.begin(server, serves, _SERVER_SEED)
    for number, case in enumerate(cases, 1):
        for side in (asking, serving):
            side.at(number, case)
            side.where += " together with the other"
        effects = await asking.give(Call(call=f"c{number}", operation=case.operation, arguments=dict(case.arguments)))
        returned = await _returned(asking, serving, effects, case)
        if len(returned) != 1 or not _is_outcome(returned[0], case.outcome, ids):
            asking.fail(f"the outcome {_json(describe(case.outcome))}", returned)
    await asking.session.close()
    await serving.session.close()


async def _returned(asking: _Conversation, serving: _Conversation, effects: Sequence[Effect], case: TestCase) -> list[Return]:
    """What the caller returns at last, once what both send is delivered, each message in its turn."""
    side, said = asking, 0
    waiting: deque[tuple[_Conversation, bytes]] = deque()
    while not (returned := [effect for effect in effects if isinstance(effect, Return)]):
        sent = [effect.data for effect in effects if isinstance(effect, Send)]
        said += len(sent)
        if said > MAX_MESSAGES:
            asking.fail(f"an answer after at most {MAX_MESSAGES} messages of both roles", f"{said} messages and none")
        waiting.extend((serving if side is asking else asking, data) for data in sent)
        if not waiting:
            asking.fail("an answer of the other role", "nothing")
        side, data = waiting.popleft()
        effects = await side.give(Received(peer=PEER if side is asking else LOCAL, data=data))
        if side is serving and (invoked := [effect for effect in effects if isinstance(effect, Invoke)]):
            if len(invoked) > 1:
                serving.fail("one Invoke because of a message", effects)
            effects = [*effects, *await serving.give(_result(invoked[0].call, case.outcome))]
    return returned


async def _unanswered(worker: Worker, role: str, case: TestCase) -> None:
    side = await _Conversation.begin(worker, role, _CALLER_SEED)
    side.where = f"The role {role}, whose call of {case.operation} nobody answers"
    call = Call(call="c1", operation=case.operation, arguments=dict(case.arguments))
    timers = [effect.name for effect in await side.give(call) if isinstance(effect, SetTimer) and effect.seconds is not None]
    effects = [effect for name in timers for effect in await side.give(Timer(name=name))]
    returned = side.one(effects, Return, "once its timers ran out")
    if returned.error is None:
        side.fail("a failure, such as code 504", returned)
    await side.session.close()
    side = await _Conversation.begin(worker, role, _CALLER_SEED)
    await side.give(call)
    await side.give(PeerLost(peer=PEER))
    await side.session.close()


async def _strangers(worker: Worker, role: str, unexpected: Sequence[bytes]) -> None:
    side = await _Conversation.begin(worker, role, _CALLER_SEED)
    for data in (*_NONSENSE, *(data[: len(data) // 2] for data in unexpected), *unexpected):
        await side.give(Received(peer=PEER, data=data))
        if side.session.ended:
            side = await _Conversation.begin(worker, role, _CALLER_SEED)
    await side.session.close()


def _result(call: str, outcome: Outcome) -> Result:
    if isinstance(outcome, Success):
        return Result(call=call, value=outcome.value)
    return Result(call=call, error=outcome)


def _is_outcome(returned: Return, outcome: Outcome, ids: Ids) -> bool:
    """Whether the value is the same, or the code: the sentence beside a code is for people, and no protocol has to carry it."""
    if isinstance(outcome, Success):
        return returned.error is None and ids.same(outcome.value, returned.value)
    return returned.error is not None and returned.error.code == outcome.code


def _shown(message: Message) -> str:
    return _bytes(message.data)


def _bytes(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"the bytes {data.hex()}"


def _json(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)
