"""A peer with answers that a test sets, for the agent under test to talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from ..agent import Agent
from ..sessions.call_context import CallContext, current_call
from ..sessions.operation_errors import OperationError


class ReceivedCall(NamedTuple):
    """A call that the double received."""

    operation: str
    arguments: Mapping[str, Any]


class PeerDouble:
    """Provide a protocol with fixed answers, and note all calls.

        hotel = PeerDouble(simulation.agent("hotel.example"), simulation.uri("booking"), {"book": {"id": "b1"}})
        async with simulation.serving(hotel.agent): ...
        assert hotel.calls == [("book", {"room": "12"})]

    `answers`: by operation; change them at any time. An exception is raised, for example `OperationError(404, "No such room.")`;
    a tuple is the items of a stream, and any other value is the result. The answer given here decides whether the operation is a
    stream. `calls`: the received calls, in order. `contexts`: theirs. `delay`: seconds before each answer.
    """

    def __init__(self, agent: Agent, uri: str, answers: Mapping[str, Any], *, role: str = "") -> None:
        """Register a function for each operation in `answers`. Raises the errors of `Agent.provides`."""
        self.agent, self.answers, self.calls, self.delay = agent, dict(answers), list[ReceivedCall](), 0.0
        self.contexts: list[CallContext] = []
        for operation in answers:
            agent.provides(uri, role=role)(self._function(operation))

    def _function(self, operation: str) -> Any:
        async def answer(**arguments: Any) -> Any:
            return await self._answer(operation, arguments)

        async def items(**arguments: Any) -> AsyncIterator[Any]:
            for item in await self._answer(operation, arguments):
                yield item

        function = items if isinstance(self.answers[operation], tuple) else answer
        function.__name__ = operation
        return function

    async def _answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        self.calls.append(ReceivedCall(operation, arguments))
        self.contexts.append(current_call() or CallContext())
        await asyncio.sleep(self.delay)
        result = self.answers[operation]
        if isinstance(result, OperationError):
            # A new one each time: a raised exception keeps its traceback.
            raise OperationError(result.status, result.message)
        if isinstance(result, BaseException):
            raise result
        return result
