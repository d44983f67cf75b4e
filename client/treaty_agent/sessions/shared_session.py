"""Define the session of a shared role, as the agent's own application uses it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from treaty_consensus.errors import NotFound, Refused
from treaty_io.codes import AgentCode, SessionCode

from .activity import CallCounts
from .calls import NO_ARGUMENTS, Arguments
from .context import AgentContext
from .handler_hosts import RESPONDER
from .session import ItemStream
from .shared_handler import SharedHandler, SharedMember


class SharedSession:
    """The one session of a shared role, with all agents that chose it. Made by `Agent.shared`.

    When the handler has ended the session, the next use begins another one.
    """

    def __init__(self, find: Callable[[], SharedHandler], counts: CallCounts) -> None:
        """`find`: return the session of now; it begins if there is none. `counts`: of the calls."""
        self._find, self._counts = find, counts

    @property
    def protocol(self) -> str:
        """The URI of the protocol."""
        return self._find().settings.protocol

    @property
    def role(self) -> str:
        """This side's role, such as `room`."""
        return self._find().role.name

    @property
    def members(self) -> list[SharedMember]:
        """The members now, in the order in which they joined."""
        return self._find().members

    async def call(
        self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any
    ) -> Any:
        """Call an operation of this role. The handler decides to which members it speaks. Return its value.

        Takes its arguments and raises as `Session.call`.
        """
        with self._counts.counted():
            calls, limited = self._find().calls, within is not None
            return await calls.make(operation, dict(arguments, **named), within=within, limited=limited)

    def stream(
        self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any
    ) -> ItemStream[Any]:
        """Call an operation of this role that is a stream, and return its items; see `Session.stream`."""
        return ItemStream(self._items(operation, dict(arguments, **named), within))

    async def _items(self, operation: str, arguments: dict[str, Any], within: float | None) -> AsyncGenerator[Any, None]:
        with self._counts.counted():
            calls, limited = self._find().calls, within is not None
            async with aclosing(calls.stream(operation, arguments, within=within, limited=limited)) as items:
                async for item in items:
                    yield item


def shared_session(context: AgentContext, uri: str) -> SharedSession:
    """Return the session of a shared role that an agent provides. Raises the errors of `Agent.shared`."""

    def find() -> SharedHandler:
        service = context.served.services.get(uri)
        if service is None:
            raise NotFound(AgentCode.NOT_PROVIDED, f"This agent does not provide {uri}.")
        if service.protocol is None:
            raise context.served.unserved.get(uri) or Refused(SessionCode.PROTOCOL, f"{uri} is not served here at present.")
        role, _ = context.served.choose(service.protocol, RESPONDER)
        if not role.is_shared:
            raise Refused(
                SessionCode.ROLE, f"As {role.name} of {uri} this agent has a session for each connection, not a shared one."
            )
        return context.hosts.shared(service.protocol, role)

    find()
    return SharedSession(find, context.activity.calls)
