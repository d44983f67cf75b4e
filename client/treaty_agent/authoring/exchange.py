"""Make vectors: let two sessions of a protocol without code speak with each other, and note what each of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import OperationKind
from treaty_handler import Call, Close, Effect, Event, Failure, Invoke, Item, Opened, Received, Requested, Result, Send, Value
from treaty_sandbox.vectors import NO_SEED, PEER, format_vector

if TYPE_CHECKING:
    from treaty_consensus.handler import Operation
    from treaty_sandbox.interface import LoadedHandler, LoadedSession


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call with its outcome. `answer`: a value, the items of a stream, or a failure."""

    arguments: dict[str, Value]
    answer: Value | Sequence[Value] | Failure


def with_errors(calls: Sequence[AnsweredCall], operation: Operation) -> list[AnsweredCall]:
    """Return the calls, and one for each error of the operation that none of them has."""
    reached = {call.answer.code for call in calls if isinstance(call.answer, Failure)}
    return [*calls] + [
        AnsweredCall(calls[0].arguments, Failure(code=code, message=meaning))
        for code, meaning in operation.errors.items()
        if code not in reached
    ]


@dataclass(slots=True)
class _Side:
    session: LoadedSession
    steps: list[tuple[Event, Sequence[Effect]]] = field(default_factory=list)

    async def give(self, event: Event) -> Sequence[Effect]:
        effects = await self.session.handle(event)
        self.steps.append((event, effects))
        return effects


class Exchange:
    """One session between a caller and a provider."""

    def __init__(self, caller: _Side, provider: _Side) -> None:
        """Use `open` instead."""
        self._caller, self._provider, self._calls = caller, provider, 0

    @classmethod
    async def open(cls, worker: LoadedHandler, caller: str, provider: str) -> Exchange:
        """Open a session in each of two roles."""
        sides = [_Side(await worker.open(role, seed=NO_SEED)) for role in (caller, provider)]
        for side in sides:
            await side.session.handle(Opened())
        return cls(*sides)

    async def call(self, operation: Operation, answered: AnsweredCall) -> None:
        """Let the call go through both sessions. Raises `ValueError` if its arguments or its answer do not fit the schemas."""
        self._calls += 1
        id, is_stream = str(self._calls), operation.kind is OperationKind.STREAM
        is_failure = isinstance(answered.answer, Failure)
        items: Sequence[Value] = answered.answer if is_stream and isinstance(answered.answer, list) else ()
        try:
            sent = [*await self._caller.give(Call(call=id, operation=operation.name, arguments=answered.arguments))]
            if is_stream:
                sent += await self._caller.give(Requested(call=id, count=len(items) + 1))
            served = await self._deliver(sent, self._provider)
            [invoked] = [effect.call for effect in served if isinstance(effect, Invoke)]
            for item in items:
                await self._deliver(await self._provider.give(Item(call=invoked, value=item)), self._caller)
            value = None if is_stream or is_failure else answered.answer
            failure = answered.answer if isinstance(answered.answer, Failure) else None
            result = Result(call=invoked, value=value, error=failure)
            await self._deliver(await self._provider.give(result), self._caller)
        except TreatyError as error:
            raise ValueError(error.message.rstrip(".")) from error

    async def close(self) -> dict[str, bytes]:
        """End both sessions, and return their vectors by role."""
        vectors = {}
        for role, side in (("requester", self._caller), ("provider", self._provider)):
            await side.give(Close())
            vectors[role] = format_vector(f"The examples as the {role} sees them", role, side.steps)
        return vectors

    @staticmethod
    async def _deliver(effects: Sequence[Effect], side: _Side) -> list[Effect]:
        return [
            answer
            for effect in effects
            if isinstance(effect, Send)
            for answer in await side.give(Received(peer=PEER, data=effect.data))
        ]
