"""Let a caller of one version talk to a provider of another in memory, by the vectors of both.

    caller                                provider
    Call greet {"name": "Ada"}   ─ Send →
                                          Invoke greet {"name": "Ada"}
                                 ← Send ─ Result {"text": "Hello"}
    Return {"text": "Hello"}

Handlers do no input and output of their own, so this is a whole conversation. The arguments are those of the caller's vectors,
and the outcome is one of the provider's. A member that its reader does not declare may be lost on the way. Timers never expire
here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import HandlerPackage, Operation, OperationKind, Role
from treaty_handler import Call, Effect, Emit, Event, Invoke, Item, Opened, Received, Request, Requested, Result, Return, Send

from ..vector_calls import VectorCall, calls_of
from ..vectors import LOCAL, NO_SEED, PEER, published_vectors

if TYPE_CHECKING:
    from ..interface import LoadedHandler, LoadedSession
    from ..pool import SandboxPool

MAX_CALLS = 6
"""Calls of each operation and role. Vectors of one operation are much alike."""
MAX_ALL_CALLS = 96
MAX_EVENTS = 200
"""Events of one call. A hostile handler could send for ever."""
_ITEMS = 1_024


class Conversation:
    """The calls between a caller's package and a provider's package. `calls`: how many were made."""

    def __init__(self, pool: SandboxPool, caller: HandlerPackage, provider: HandlerPackage) -> None:
        """Load nothing yet. `pool`: runs the handlers. Raises `Malformed` (`vector.…`)."""
        self._pool, self._caller, self._provider = pool, caller, provider
        self._written, self._outcomes = (_calls_by_operation(package) for package in (caller, provider))
        self.calls = 0
        self.spoken: set[str] = set()
        """The operations of which a call was made."""

    async def faults(self, but: Container[str]) -> list[tuple[str, VectorCall, str]]:
        """Make the calls of all operations but these. Return the first fault of each: operation, call, and a sentence.

        Raises `Unavailable` if there is no sandbox for a handler with code, and `Refused` if one cannot be loaded.
        """
        async with AsyncExitStack() as workers:
            caller: LoadedHandler = await self._pool.load(self._caller, local=LOCAL, peers=[PEER])
            workers.push_async_callback(caller.close)
            own: LoadedHandler = await self._pool.load(self._caller, local=PEER, peers=[LOCAL])
            workers.push_async_callback(own.close)
            provider: LoadedHandler = await self._pool.load(self._provider, local=PEER, peers=[LOCAL])
            workers.push_async_callback(provider.close)
            return [fault async for fault in self._faults(caller, own, provider, but)]

    async def _faults(
        self, caller: LoadedHandler, own: LoadedHandler, provider: LoadedHandler, but: Container[str]
    ) -> AsyncIterator[tuple[str, VectorCall, str]]:
        for role, peer, name in self._dialogues():
            for call, outcome in self._scripts(name) if name not in but else ():
                # First with a provider of the caller's own version. A call that fails there says nothing: the code of a handler
                # may need more than its arguments.
                usual = self._dialogue(self._caller, role, name, call, call)
                if usual is None or await _attempt(usual, caller, role.name, own, role.peer):
                    continue
                dialogue = self._dialogue(self._provider, role, name, call, outcome)
                assert dialogue is not None, "the provider serves it"
                self.calls += 1
                self.spoken.add(name)
                if fault := await _attempt(dialogue, caller, role.name, provider, peer.name):
                    yield name, call, fault
                    break
                # A worker that a handler ended takes no further call.
                if not (caller.alive and own.alive and provider.alive):
                    return

    def _dialogue(
        self, package: HandlerPackage, role: Role, name: str, call: VectorCall, outcome: VectorCall | None
    ) -> _Dialogue | None:
        served = package.manifest.roles[role.peer].invokes.get(name)
        return None if served is None else _Dialogue(role.calls[name], served, call, outcome, package.manifest.refusals)

    def _dialogues(self) -> Iterator[tuple[Role, Role, str]]:
        """Yield each role of the caller with its peer, and each operation between them."""
        for role in self._caller.manifest.roles.values():
            peer = self._provider.manifest.roles.get(role.peer)
            # A session of a shared role has members that no vector names.
            if peer is None or role.is_shared or peer.is_shared:
                continue
            for name, operation in role.calls.items():
                if name in peer.invokes and peer.invokes[name].kind is operation.kind:
                    yield role, peer, name

    def _scripts(self, operation: str) -> list[tuple[VectorCall, VectorCall | None]]:
        """Return the arguments to write, each with an outcome of the provider's own vectors, if it has any."""
        written, outcomes = self._written.get(operation, []), self._outcomes.get(operation, [])
        most = max(0, min(MAX_CALLS, MAX_ALL_CALLS - self.calls))
        return [(call, outcomes[number % len(outcomes)] if outcomes else None) for number, call in enumerate(written[:most])]


async def _attempt(dialogue: _Dialogue, caller: LoadedHandler, role: str, provider: LoadedHandler, peer: str) -> str:
    """Return what went wrong, or an empty text."""
    sessions: list[LoadedSession] = []
    try:
        sessions.append(await caller.open(role, seed=NO_SEED))
        sessions.append(await provider.open(peer, seed=NO_SEED))
        return await dialogue.run(*sessions)
    except TreatyError as error:
        return f"the session ends with {error.code}: {error.message}"
    except ValueError as error:  # no host gives this event here
        return f"the session cannot go on: {error}"
    finally:
        for session in sessions:
            await session.close()


class _Dialogue:
    """One call between a session of a caller and one of a provider."""

    def __init__(
        self,
        called: Operation,
        served: Operation,
        call: VectorCall,
        outcome: VectorCall | None,
        refusals: Mapping[int, int],
    ) -> None:
        """`called`, `served`: the operation as the caller and the provider know it. `refusals`: of the provider's manifest."""
        self._refusals = refusals
        self._called, self._served, self._call, self._outcome = called, served, call, outcome
        self._to_caller: deque[Event] = deque()
        self._to_provider: deque[Event] = deque()
        self._items: list[Any] = []
        self._rest: deque[Any] = deque(outcome.items if outcome else ())
        self._returned: Return | None = None
        self._invoked = False

    async def run(self, caller: LoadedSession, provider: LoadedSession) -> str:
        """Exchange events until none is left. Return the fault. Raises `TreatyError`, `ValueError`."""
        self._to_caller += [Opened(), Call(call="1", operation=self._called.name, arguments=self._call.arguments)]
        if self._called.kind is OperationKind.STREAM:
            self._to_caller.append(Requested(call="1", count=_ITEMS))
        self._to_provider.append(Opened())
        for _ in range(MAX_EVENTS):
            # The provider first: it is open before the first message comes.
            if self._to_provider and not provider.ended:
                fault = self._provided(await provider.handle(self._to_provider.popleft()))
            elif self._to_caller and not caller.ended:
                fault = self._read(await caller.handle(self._to_caller.popleft()))
            else:
                break
            if fault:
                return fault
        return self._verdict()

    def _read(self, effects: Sequence[Effect]) -> str:
        for effect in effects:
            match effect:
                case Send(data=data, stream=stream):
                    self._to_provider.append(Received(peer=LOCAL, data=data, stream=stream))
                case Emit(call="1", value=value):
                    self._items.append(value)
                case Return(call="1"):
                    self._returned = effect
        return ""

    def _provided(self, effects: Sequence[Effect]) -> str:
        for effect in effects:
            match effect:
                case Send(data=data, stream=stream):
                    self._to_caller.append(Received(peer=PEER, data=data, stream=stream))
                case Invoke(call=call, operation=operation, arguments=arguments):
                    if operation != self._called.name:
                        return f"the provider takes it for {operation}"
                    if lost := _lost(self._call.arguments, arguments, self._served.arguments):
                        return f"the provider does not read {lost}"
                    self._invoked = True
                    if self._outcome is not None and self._served.kind is not OperationKind.STREAM:
                        self._answer(call, self._outcome)
                case Request(call=call, count=count) if self._outcome is not None:
                    for _ in range(min(count, len(self._rest))):
                        self._to_provider.append(Item(call=call, value=self._rest.popleft()))
                    if not self._rest:
                        self._answer(call, self._outcome)
        return ""

    def _answer(self, call: str, outcome: VectorCall) -> None:
        self._to_provider.append(Result(call=call, value=outcome.value, error=outcome.error))

    def _verdict(self) -> str:
        if not self._invoked:
            # A provider that cannot read a message answers with an error of its own.
            error = self._returned.error if self._returned else None
            return f"the provider answers with {error.code}: {error.message}" if error else "the provider ignores it"
        outcome = self._outcome
        if outcome is None or self._called.kind is OperationKind.EVENT:
            return ""
        if self._returned is None:
            return "no answer reaches the caller"
        error = self._returned.error
        if outcome.error is not None:
            # A code that the caller's manifest does not list reaches its application as 502, which each application knows.
            sent_code = self._refusals.get(outcome.error.code, outcome.error.code)
            wanted = sent_code if self._called.may_fail_with(sent_code) else 502
            code = error.code if error else "a result"
            return "" if code == wanted else f"the error {outcome.error.code} of the provider arrives as {code}"
        if error is not None:
            return f"the answer of the provider arrives as {error.code}: {error.message}"
        schema = self._called.result or {}
        sent, read = (
            (outcome.items, self._items)
            if self._called.kind is OperationKind.STREAM
            else ([outcome.value], [self._returned.value])
        )
        if len(sent) != len(read):
            return f"{len(read)} of {len(sent)} items arrive"
        lost = next((lost for pair in zip(sent, read, strict=True) if (lost := _lost(*pair, schema))), "")
        return f"the caller does not read {lost} of the answer" if lost else ""


def _calls_by_operation(package: HandlerPackage) -> dict[str, list[VectorCall]]:
    calls: dict[str, list[VectorCall]] = {}
    for vector in published_vectors(package):
        for call in calls_of(vector):
            calls.setdefault(call.operation, []).append(call)
    return calls


def _lost(written: Any, read: Any, schema: Mapping[str, Any]) -> str:
    """Return the name of a part that the reader declares and did not get as it was written, or an empty text."""
    if not isinstance(written, dict) or not isinstance(read, dict):
        return "" if _is_part(read, written) else "the value"
    declared = schema.get("properties", {})
    wrong = (
        name
        for name in written
        if (name in read and not _is_part(read[name], written[name])) or (name not in read and name in declared)
    )
    return next(iter([*wrong, *(read.keys() - written.keys())]), "")


def _is_part(part: Any, whole: Any) -> bool:
    """Tell whether a value is another one, perhaps without some members."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and _is_part(value, whole[name]) for name, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(_is_part, part, whole))
    return bool(part == whole) and isinstance(part, bool) == isinstance(whole, bool)
