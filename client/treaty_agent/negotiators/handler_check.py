"""Try a handler against its test cases in the sandbox, and return the recorded vectors.

    messages     a case of the source's form, which has messages alone, gets its operation, arguments and outcome
    alone        each role alone with the messages of the cases: it must send the shown messages, except for ids that it draws
    together     the two roles with each other, in two workers: each call must return its outcome
    unanswered   an unanswered call must fail when its timers expire; the loss of the peer must raise nothing
    strangers    no bytes may raise: nonsense, halves of the cases' messages, messages in the wrong direction
    moved        the vectors of `alone` are replayed, with a snapshot and a new worker after every step

The first failure is raised, with the expected and the actual value.

A test case was written before the seed of the session was known. So it has a text such as `msg001` in the place of
`derive_id(seed, 1)`. The first message that contains such a text defines its id for the session. One text has one id, and one id
has one text. All other values are compared exactly; `1`, `1.0` and `true` are three values.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NoReturn, TypeVar

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import HandlerPackage, Manifest, OperationKind, Role
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
    decode_json,
    derive_id,
    encode_json,
)
from treaty_io.codes import NegotiationCode
from treaty_sandbox import LoadedHandler, SandboxPool, parse_vector, run_vectors
from treaty_sandbox.interface import RunningHandler, Runtime
from treaty_sandbox.vectors import LOCAL, PEER, format_vector

from .test_cases import Case, CaseMessage, MessageCase, Outcome, Success, TestCase, describe

# Ids that a handler may draw in one trial; all of them are computed for each seed.
MAX_IDS = 1_024
MAX_COMPARED = 128 * 1024
"""Bytes of a message that is compared; the test cases have at most half as many together."""
MAX_TEXTS = 128
"""Ids in one session: each costs a search in every text of a message."""
# Every id has the same length, so a search for all of them is one pass over the text.
_LENGTH = len(derive_id("", 0))


class Ids:
    """Map the ids of the handlers with these seeds to the texts in test cases."""

    def __init__(self, *seeds: str) -> None:
        self._drawn = frozenset(derive_id(seed, number) for seed in seeds for number in range(MAX_IDS))
        self._texts: dict[str, str] = {}

    def matches(self, expected: CaseMessage, data: bytes) -> bool:
        """Return whether `data` is the expected message except for ids. If so, remember the texts of its ids."""
        if len(data) > MAX_COMPARED:
            return False
        if expected.notation == "json":
            with suppress(ValueError):
                return self.same(expected.content, decode_json(data))
            return False
        return self._same_text(expected.data.decode("latin-1"), data.decode("latin-1"))

    def same(self, expected: Value, actual: Value) -> bool:
        """Return whether two JSON values are equal except for ids."""
        match expected, actual:
            case dict(), dict():
                return expected.keys() == actual.keys() and all(self.same(expected[name], actual[name]) for name in expected)
            case list(), list():
                return len(expected) == len(actual) and all(map(self.same, expected, actual))
            case str(), str():
                return self._same_text(expected, actual)
            case _:
                return json.dumps(expected) == json.dumps(actual)

    def fill(self, message: CaseMessage) -> bytes:
        """Return a message of a test case with its texts replaced by the ids."""
        if message.notation == "json":
            return encode_json(self._filled(message.content))
        return self._filled_text(message.data.decode("latin-1")).encode("latin-1")

    def _same_text(self, expected: str, actual: str) -> bool:
        shared = {actual[start : start + _LENGTH] for start in range(len(actual) - _LENGTH + 1)} & self._drawn
        if not shared:
            return expected == actual
        if len(shared) > MAX_TEXTS:
            return False
        pieces = re.split(f"({'|'.join(sorted(shared))})", actual)
        # Noted only when the whole text matches: a failed attempt must not define ids.
        learnt: dict[str, str] = {}
        position = 0
        for index in range(0, len(pieces), 2):
            if not expected.startswith(pieces[index], position):
                return False
            position += len(pieces[index])
            if index + 1 < len(pieces):
                text = self._text_at(expected, position, pieces[index + 1], pieces[index + 2], learnt)
                if text is None:
                    return False
                position += len(text)
        if position != len(expected) or len(self._texts | learnt) > MAX_TEXTS:
            return False
        self._texts |= learnt
        return True

    def _text_at(self, expected: str, position: int, drawn: str, following: str, learnt: dict[str, str]) -> str | None:
        """Return the text of an id at this position: the known one, else the shortest text before the next fixed part of the
        message."""
        texts = {**self._texts, **learnt}
        if drawn in texts:
            return texts[drawn] if expected.startswith(texts[drawn], position) else None
        end = expected.find(following, position + 1) if following else len(expected)
        text = expected[position:end] if end > position else ""
        if not text or text in texts.values():
            return None
        learnt[drawn] = text
        return text

    def _filled(self, value: Value) -> Value:
        match value:
            case dict():
                return {name: self._filled(item) for name, item in value.items()}
            case list():
                return [self._filled(item) for item in value]
            case str():
                return self._filled_text(value)
            case _:
                return value

    def _filled_text(self, text: str) -> str:
        ids = {placeholder: drawn for drawn, placeholder in self._texts.items()}
        if not ids:
            return text
        # Else `msg1` would be replaced inside `msg10`.
        longest_first = sorted(ids, key=len, reverse=True)
        pattern = rf"(?<![A-Za-z0-9_-])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9_-])"
        return re.sub(pattern, lambda match: ids[match[0]], text)


MAX_SHOWN = 1_500
"""Characters of a message or value in an error."""
MAX_MESSAGES = 64
"""Messages that the two roles may send together after one call: they could answer each other for ever."""

_CALLER_SEED, _SERVER_SEED = "0" * 32, "1" * 32
# Empty, not UTF-8, not JSON, JSON of another shape, deep, long, and a number beyond doubles: what strangers send.
_NONSENSE = (
    *(b"", b"\0", b"\xff\xfe\xfd", b"\n", b"{}", b"[]", b"null", b"1", b'"text"', b'{"a":', b"[" * 1_000),
    *(b"A" * 10_000, b'{"type":[],"messageId":{}}', b"1e999", "\u2028é".encode()),
)
_DRAWN = "ids may differ only where they are derive_id(seed, number)"
E = TypeVar("E", bound=Effect)


def roles_of(manifest: Manifest) -> tuple[Role, Role]:
    """Return the calling role and the serving role. Raises `Refused` (`negotiation.code`) unless there are exactly these two,
    and all operations are requests."""
    callers = [role for role in manifest.roles.values() if role.calls and not role.invokes]
    servers = [role for role in manifest.roles.values() if role.invokes and not role.calls]
    if len(manifest.roles) != 2 or len(callers) != 1 or len(servers) != 1 or callers[0].calls.keys() != servers[0].invokes.keys():
        raise Refused(
            NegotiationCode.CODE,
            "A negotiated protocol has two roles: one has all operations under `calls`, the other the same under `invokes`.",
        )
    # A test case is one request and one response; it cannot try the other kinds.
    if any(operation.kind is not OperationKind.REQUEST for operation in manifest.operations.values()):
        raise Refused(NegotiationCode.CODE, "The operations of a negotiated protocol are requests: leave `kind` out.")
    return callers[0], servers[0]


async def complete_cases(runtime: Runtime, package: HandlerPackage, cases: Sequence[Case]) -> tuple[TestCase, ...]:
    """Find what cases of the source's form mean to a handler: the operation and the arguments that a request leads to, and the
    outcome that a response gives to the caller.

    The caller must send the request. The server must send a response of the form of the shown one, which gives the caller the
    same outcome: its words for people may be others. A request that the server answers without its application is checked and
    left out. Raises `Refused` (`negotiation.code`) and the errors of the sandbox.
    """
    calls = _calls(cases)
    if len(calls) == len(cases):
        return calls
    caller, server = roles_of(package.manifest)
    sides = [
        await _Conversation.begin(role, await runtime.open(package, role, local=LOCAL, peer=PEER, seed=_CALLER_SEED))
        for role in (caller.name, caller.name, server.name)
    ]
    try:
        return await _Reading(*sides).completed(cases)
    finally:
        for side in sides:
            await side.session.close()


async def try_handler(pool: SandboxPool, package: HandlerPackage, cases: Sequence[Case]) -> dict[str, bytes]:
    """Run all checks; return the vectors, file name → content.

    Raises `Refused` (`negotiation.code`), the errors of the handler's loading and events, and
    `Unavailable` (`sandbox.unavailable`) when the sandbox cannot run.
    """
    # The order is that of cost and of help to the model: a single role fails with the clearest message.
    caller, server = roles_of(package.manifest)
    async with _loaded(pool, package, LOCAL, PEER) as worker:
        calls = _calls(cases)
        if len(calls) < len(cases):
            sides = [await _opened(worker, name) for name in (caller.name, caller.name, server.name)]
            calls = await _Reading(*sides).completed(cases)
        vectors = {
            f"{caller.name}.json": await _caller_alone(worker, caller.name, calls),
            f"{server.name}.json": await _server_alone(worker, server.name, calls),
        }
        for case in calls[:1]:
            await _unanswered(worker, caller.name, case)
        requests, responses = [case.request.data for case in cases], [case.response.data for case in cases]
        await _strangers(worker, caller.name, [*requests, *responses])
        await _strangers(worker, server.name, responses)
        # A worker of its own: two roles in one process could share state that they do not have in two agents.
        async with _loaded(pool, package, PEER, LOCAL) as other:
            await _together(worker, caller.name, other, server.name, calls)
    # Last, because it replays the vectors that the parts above recorded.
    mismatches = await run_vectors(pool, package, [parse_vector(name, data) for name, data in vectors.items()])
    if mismatches:
        raise Refused(NegotiationCode.CODE, f"Replayed from a snapshot: {printable(str(mismatches[0]), MAX_SHOWN)}.")
    return vectors


class _Conversation:
    """A session that records its steps. `where`: the place for error messages."""

    def __init__(self, role: str, session: RunningHandler) -> None:
        self.role, self.session = role, session
        self.steps: list[tuple[Event, Sequence[Effect]]] = []
        self.where = f"The role {role}"

    @classmethod
    async def begin(cls, role: str, session: RunningHandler) -> _Conversation:
        """Return a session after its first event."""
        conversation = cls(role, session)
        # A role that speaks first would speak before the other side is ready.
        conversation.none_of(await conversation.give(Opened()), "when the session opens", Send, Invoke, Return, End)
        return conversation

    async def give(self, event: Event) -> Sequence[Effect]:
        """Return the effects of an event. Raises the error of the event, with the place."""
        try:
            effects = await self.session.handle(event)
        except TreatyError as error:
            what = printable(repr(event), MAX_SHOWN)
            # The same class and code, so that a missing sandbox is still told from a fault of the code.
            raise type(error)(error.code, f"{self.where}, at {what}: {error.message}", fix=error.fix) from error
        self.steps.append((event, effects))
        return effects

    @property
    def is_over(self) -> bool:
        """Return whether the handler has ended the session."""
        return any(isinstance(effect, End) for _, effects in self.steps[-1:] for effect in effects)

    def at(self, number: int, case: Case) -> None:
        """Set the place to a test case."""
        self.where = f"Test case {number} ({case.title}), role {self.role}"

    def one(self, effects: Sequence[Effect], kind: type[E], when: str) -> E:
        """Return the only effect of a kind. Timers, storage and notes may accompany it, other effects may not."""
        others = {Send, Invoke, Return, End} - {kind}
        self.none_of(effects, when, *others)
        matching = [effect for effect in effects if isinstance(effect, kind)]
        if len(matching) != 1:
            self.fail(f"one {kind.__name__} {when}", effects)
        return matching[0]

    def none_of(self, effects: Sequence[Effect], when: str, *kinds: type[Effect]) -> None:
        """Raise `Refused` if there is an effect of these kinds."""
        if any(isinstance(effect, kinds) for effect in effects):
            self.fail(f"no {' or '.join(sorted(kind.__name__ for kind in kinds))} {when}", effects)

    def fail(self, expected: str, actual: object) -> NoReturn:
        """Raise `Refused` with the expected and the actual value."""
        actual_text = actual if isinstance(actual, str) else repr(actual)
        raise Refused(
            NegotiationCode.CODE,
            f"{self.where}: expected {printable(expected, MAX_SHOWN)}, got {printable(actual_text, MAX_SHOWN)}.",
        )


@asynccontextmanager
async def _loaded(pool: SandboxPool, package: HandlerPackage, local: str, peer: str) -> AsyncIterator[LoadedHandler]:
    worker = await pool.load(package, local=local, peers=[peer])
    try:
        yield worker
    finally:
        await worker.close()


async def _opened(worker: LoadedHandler, role: str, seed: str = _CALLER_SEED) -> _Conversation:
    return await _Conversation.begin(role, await worker.open(role, seed=seed))


def _calls(cases: Sequence[Case]) -> tuple[TestCase, ...]:
    return tuple(case for case in cases if isinstance(case, TestCase))


class _Reading:
    """Read the messages of cases of the source's form, in three sessions: `asking` gets the shown responses, `checking` those
    that `serving` sends."""

    def __init__(self, asking: _Conversation, checking: _Conversation, serving: _Conversation) -> None:
        self._asking, self._checking, self._serving = asking, checking, serving

    async def completed(self, cases: Sequence[Case]) -> tuple[TestCase, ...]:
        """Return all cases with their calls. Raises `Refused` for a message that the code does not send or read."""
        read = [
            case if isinstance(case, TestCase) else await self._with_call(case, number) for number, case in enumerate(cases, 1)
        ]
        return tuple(case for case in read if case is not None)

    async def _with_call(self, case: MessageCase, number: int) -> TestCase | None:
        for side in (self._asking, self._checking, self._serving):
            side.at(number, case)
        effects = await self._serving.give(Received(peer=PEER, data=case.request.data))
        if not any(isinstance(effect, Invoke) for effect in effects):
            self._sent(effects, case.response)
            return None
        invoked = self._serving.one(effects, Invoke, f"after {_shown(case.request)}")
        outcome = await self._outcome(self._asking, f"c{number}", invoked, case.request, case.response)
        sent = self._sent(await self._serving.give(_result(invoked.call, outcome)), case.response)
        understood = await self._outcome(self._checking, f"c{number}", invoked, case.request, sent)
        if _json(describe(understood)) != _json(describe(outcome)):
            self._serving.fail(f"a response that means {_json(describe(outcome))}", _shown(sent))
        return TestCase(case.title, invoked.operation, invoked.arguments, outcome, case.request, sent, case.expected)

    async def _outcome(
        self, side: _Conversation, call: str, invoked: Invoke, request: CaseMessage, response: CaseMessage
    ) -> Outcome:
        """Make the call that a request stands for, and return the outcome that the response gives."""
        ids = Ids(_CALLER_SEED)  # of one case: a foreign text may use an id twice
        effects = await side.give(Call(call=call, operation=invoked.operation, arguments=invoked.arguments))
        _expect_message(side, effects, request, ids, "request")
        effects = await side.give(Received(peer=PEER, data=ids.fill(response)))
        returned = side.one(effects, Return, f"after the response {_shown(response)}")
        return returned.error if returned.error is not None else Success(returned.value)

    def _sent(self, effects: Sequence[Effect], message: CaseMessage) -> CaseMessage:
        """Return the response that the serving role sent. It has the form of the shown one."""
        if message.notation != "json":
            _expect_message(self._serving, effects, message, Ids(_CALLER_SEED), "response")
            return message
        sent = self._serving.one(effects, Send, "as the response")
        try:
            content = decode_json(sent.data)
        except ValueError:
            content = None
        if _form(content) != _form(message.content):
            self._serving.fail(f"a response of the form of {_shown(message)}", _bytes(sent.data))
        return CaseMessage("json", content)


def _form(value: Value) -> object:
    """Return a JSON value without its texts."""
    if isinstance(value, dict):
        return {name: _form(item) for name, item in value.items()}
    return [_form(item) for item in value] if isinstance(value, list) else "" if isinstance(value, str) else json.dumps(value)


def _expect_message(side: _Conversation, effects: Sequence[Effect], message: CaseMessage, ids: Ids, what: str) -> None:
    sent = side.one(effects, Send, f"as the {what}")
    if not ids.matches(message, sent.data):
        side.fail(f"the {what} {_shown(message)}", f"{_bytes(sent.data)} ({_DRAWN})")


async def _caller_alone(worker: LoadedHandler, role: str, cases: Sequence[TestCase]) -> bytes:
    side, ids = await _opened(worker, role), Ids(_CALLER_SEED)
    for number, case in enumerate(cases, 1):
        side.at(number, case)
        call = f"c{number}"
        effects = await side.give(Call(call=call, operation=case.operation, arguments=dict(case.arguments)))
        _expect_message(side, effects, case.request, ids, "request")
        effects = await side.give(Received(peer=PEER, data=ids.fill(case.response)))
        returned = side.one(effects, Return, f"after the response {_shown(case.response)}")
        if returned.call != call or not _is_outcome(returned, case.outcome, ids):
            side.fail(f"the outcome {_json(describe(case.outcome))} for the call {call}", returned)
    await side.give(Close())
    return format_vector(f"The test cases, as {role}", role, side.steps)


async def _server_alone(worker: LoadedHandler, role: str, cases: Sequence[TestCase]) -> bytes:
    side, ids = await _opened(worker, role), Ids(_CALLER_SEED)
    for number, case in enumerate(cases, 1):
        side.at(number, case)
        invoked = side.one(await side.give(Received(peer=PEER, data=case.request.data)), Invoke, f"after {_shown(case.request)}")
        if invoked.operation != case.operation or not ids.same(dict(case.arguments), invoked.arguments):
            side.fail(f"{case.operation} with {_json(dict(case.arguments))}", invoked)
        _expect_message(side, await side.give(_result(invoked.call, case.outcome)), case.response, ids, "response")
    await side.give(Close())
    return format_vector(f"The test cases, as {role}", role, side.steps)


async def _together(caller: LoadedHandler, calls: str, server: LoadedHandler, serves: str, cases: Sequence[TestCase]) -> None:
    ids = Ids(_CALLER_SEED, _SERVER_SEED)
    asking, serving = await _opened(caller, calls), await _opened(server, serves, _SERVER_SEED)
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
    """Deliver the messages of both roles in their order, until the caller returns. Return the `Return` effects."""
    side, answers = asking, 0
    waiting: deque[tuple[_Conversation, bytes]] = deque()
    while not (returned := [effect for effect in effects if isinstance(effect, Return)]):
        sent = [effect.data for effect in effects if isinstance(effect, Send)]
        answers += len(sent)
        # Two handlers may answer each other for ever.
        if answers > MAX_MESSAGES:
            asking.fail(f"an answer after at most {MAX_MESSAGES} messages of both roles", f"{answers} messages and none")
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


async def _unanswered(worker: LoadedHandler, role: str, case: TestCase) -> None:
    side = await _opened(worker, role)
    side.where = f"The role {role}, whose call of {case.operation} is not answered"
    call = Call(call="c1", operation=case.operation, arguments=dict(case.arguments))
    # Expired at once and in order: the trial does not wait for real time.
    timers = [effect.name for effect in await side.give(call) if isinstance(effect, SetTimer) and effect.seconds is not None]
    effects = [effect for name in timers for effect in await side.give(Timer(name=name))]
    returned = side.one(effects, Return, "once its timers ran out")
    if returned.error is None:
        side.fail("a failure, such as code 504", returned)
    await side.session.close()
    side = await _opened(worker, role)
    await side.give(call)
    await side.give(PeerLost(peer=PEER))
    await side.session.close()


async def _strangers(worker: LoadedHandler, role: str, unexpected: Sequence[bytes]) -> None:
    side = await _opened(worker, role)
    for data in (*_NONSENSE, *(data[: len(data) // 2] for data in unexpected), *unexpected):
        await side.give(Received(peer=PEER, data=data))
        # A handler may end the session at nonsense. The remaining bytes are tried with a new one.
        if side.is_over:
            side = await _opened(worker, role)
    await side.session.close()


def _result(call: str, outcome: Outcome) -> Result:
    if isinstance(outcome, Success):
        return Result(call=call, value=outcome.value)
    return Result(call=call, error=outcome)


def _is_outcome(returned: Return, outcome: Outcome, ids: Ids) -> bool:
    """Return whether the value or the code is equal. The message of a failure is for people, and a protocol need not carry it."""
    if isinstance(outcome, Success):
        return returned.error is None and ids.same(outcome.value, returned.value)
    return returned.error is not None and returned.error.code == outcome.code


def _shown(message: CaseMessage) -> str:
    return _bytes(message.data)


def _bytes(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"the bytes {data.hex()}"


def _json(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)
