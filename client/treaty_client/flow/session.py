"""A session of this profile as its application has it: its handler, its calls, and how it adapts.

A handler's session of another protocol may take the place of the one before: then calls that wait and are idempotent are made
again, the others fail with `flow.changed`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_handler import Return

from ..abandonable import abandonable
from ..session.hosting import HandlerHost, Step
from ..session.operations import OperationError
from ..session.ports import SpokenProtocol
from .actions import Agreed
from .adaptation import Adaptation

if TYPE_CHECKING:
    from types import TracebackType

ANSWER_TIME = 5.0
"""Seconds beyond an operation's own time in which a handler says that it is over."""


class Link(Protocol):
    """What a session asks of its connection's driver."""

    def post(self, step: Step) -> None:
        """Run a step in the driver's task."""

    async def send(self, session_id: str, data: bytes) -> None:
        """Send a handler's bytes in a session."""

    async def end(self, session_id: str, error: TreatyError | None) -> None:
        """End one session, or with an error the connection."""

    def change(self, session: FlowSession, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        """Begin to change a session, which is told the outcome by `settle`."""

    def adapt(self, session: FlowSession) -> None:
        """A call was answered: see whether the session should change."""

    async def room(self) -> None:
        """Wait until a caller may add something to what is sent."""

    async def wound_up(self) -> None:
        """Wait until the connection is closed, if it is over."""


class Line:
    """One handler's way to the session it is for (`hosting.Driver`); cut when another handler takes its place."""

    def __init__(self, link: Link, session: FlowSession) -> None:
        """Connected from the beginning."""
        self._link, self._session = link, session
        self.connected = True

    def post(self, step: Step) -> None:
        self._link.post(partial(self._if_connected, step))

    async def send(self, payload: bytes, *, early: bool) -> None:
        if self.connected:
            await self._link.send(self._session.id, payload)

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        if self.connected:
            self._session.answered(call, outcome)

    async def end(self, error: TreatyError | None) -> None:
        if self.connected:
            await self._link.end(self._session.id, error)

    async def _if_connected(self, step: Step) -> None:
        if self.connected:
            await step()


@dataclass
class Attached:
    """A handler, the protocol it is for, and its line."""

    host: HandlerHost
    protocol: SpokenProtocol
    line: Line


@dataclass
class _Call:
    operation: str
    arguments: dict[str, Any]
    answer: asyncio.Future[Any]
    issued: asyncio.Future[None]
    given_to: HandlerHost | None = None


class FlowSession:
    """Made by `MetaProtocolManager`; close it, or use `async with`. For one event loop; several calls may be under way at
    once."""

    def __init__(self, link: Link, id: str, peer: str, adaptation: Adaptation) -> None:
        """`peer`: the DID that signs all that is received."""
        self.id, self.peer, self.adaptation = id, peer, adaptation
        self.agreed = Agreed("")
        self.expires_at = 0
        self.attached: Attached | None = None
        self.replies = 0
        self.messages_received = 0
        self.changing: asyncio.Future[None] | None = None
        self._link = link
        self._error: TreatyError | None = None
        self._over = asyncio.Event()
        self._turn = asyncio.Lock()
        self._calls: dict[str, _Call] = {}
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> FlowSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def protocol(self) -> str:
        """The URI of the protocol that is spoken."""
        return self.attached.protocol.uri if self.attached else ""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What was agreed on."""
        return self.agreed.parameters

    @property
    def is_over(self) -> bool:
        """Whether nothing can be said any more."""
        return self._error is not None

    async def call(self, operation: str, /, **arguments: Any) -> Any:
        """Call an operation of the other side; see `session.Session.call`. Its time and outcome are a sample for the
        adaptation."""
        if self._error is not None:
            raise self._error
        number = str(next(self._numbers))
        loop = asyncio.get_running_loop()
        call = _Call(operation, arguments, abandonable(), abandonable())
        self._calls[number] = call
        began = loop.time()
        try:
            async with asyncio.timeout(self._answer_time(operation)):
                async with self._turn:  # one at a time, so that callers together take no more room than there is
                    await self._link.room()
                    self._link.post(partial(self._issue, number))
                    await asyncio.wait((call.issued, call.answer), return_when=asyncio.FIRST_COMPLETED)
                value = await call.answer
        except TimeoutError as error:
            self._sample(began, succeeded=False)
            raise OperationError(504, f"The handler gave no answer to {operation}.") from error
        except OperationError as error:
            self._sample(began, succeeded=error.status < 500)
            raise
        finally:
            self._calls.pop(number, None)
        self._sample(began, succeeded=True)
        return value

    async def renegotiate(self, parameters: Mapping[str, Any] | None = None, *, protocol: str = "") -> None:
        """Change the session's parameters (with none given: make it last longer), or its protocol to another id of the registry;
        only the side that began can. Returns when the change holds; calls go on meanwhile. Raises `TreatyError`; then the session
        is as before, unless it is over."""
        if self._error is not None:
            raise self._error
        if self.changing is not None:
            raise Refused("flow.changing", "This session is being changed already.", fix="Wait for the outcome.")
        self.changing = abandonable()
        self._link.change(self, parameters, protocol)
        await self.changing

    async def close(self) -> None:
        """End the session, and with the last one the connection; returns when the handler is gone. May be called again."""
        if self._error is None:
            self._link.post(self._leave)
        await self._over.wait()
        await self._link.wound_up()

    # What the driver calls, in its own task

    async def attach(
        self, attached: Attached, agreed: Agreed, expires_at: int, carry: Callable[[], Awaitable[None]] | None
    ) -> None:
        """The session is ready: open the handler. `carry`: done between the end of the former one and that."""
        former, self.attached = self.attached, attached
        self.agreed, self.expires_at = agreed, expires_at
        if former is not None:
            former.line.connected = False
            await former.host.close()
            if carry is not None:
                await carry()
        await attached.host.open()
        for number, call in list(self._calls.items()):
            operation = attached.host.role.calls.get(call.operation)
            if call.given_to is None or (operation is not None and operation.idempotent):
                await self._issue(number)
            elif not call.answer.done():
                call.answer.set_exception(Unavailable("flow.changed", "The session's protocol changed before the answer came."))
        self.settle(None)

    def update(self, agreed: Agreed, expires_at: int) -> None:
        """The same protocol goes on by new parameters."""
        self.agreed, self.expires_at = agreed, expires_at
        self.settle(None)

    def settle(self, error: TreatyError | None) -> None:
        """A renegotiation is over."""
        waiting, self.changing = self.changing, None
        if waiting is not None and not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)

    async def received(self, data: bytes) -> None:
        """Bytes of the peer."""
        if self.attached is not None:
            self.messages_received += 1
            await self.attached.host.received(data)

    def answered(self, number: str, outcome: Return | TreatyError) -> None:
        """The handler answers a call."""
        waiting = self._calls.get(number)
        if waiting is None or waiting.answer.done():
            return  # the caller has given up
        if isinstance(outcome, TreatyError):
            waiting.answer.set_exception(outcome)
            return
        self.replies += 1
        if outcome.error is None:
            waiting.answer.set_result(outcome.value)
        else:
            waiting.answer.set_exception(OperationError(outcome.error.code, outcome.error.message))

    async def finish(self, error: TreatyError | None, *, lost: bool = False) -> None:
        """It is over. `lost`: the connection went first, which the handler is told."""
        if self._error is not None:
            return
        self._error = error or Unavailable("session.closed", "The session is over.", fix="Connect again.")
        self.settle(self._error)
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(self._error)
        if self.attached is not None:
            if lost and self.attached.host.is_open:
                with suppress(TreatyError):
                    await self.attached.host.peer_lost()
            self.attached.line.connected = False
            await self.attached.host.close()
        self._over.set()

    async def _leave(self) -> None:
        if self._error is None and self.attached is not None and self.attached.host.is_open:
            await self.attached.host.say_goodbye()
        await self._link.end(self.id, None)

    async def _issue(self, number: str) -> None:
        """Give a call to the handler, each handler once."""
        call, attached = self._calls.get(number), self.attached
        if call is None or attached is None or not attached.host.is_open or call.given_to is attached.host:
            return
        call.given_to = attached.host
        try:
            await attached.host.call(number, call.operation, call.arguments, early=False)
        finally:
            if not call.issued.done():
                call.issued.set_result(None)

    def _sample(self, began: float, *, succeeded: bool) -> None:
        self.adaptation.record(asyncio.get_running_loop().time() - began, succeeded)
        self._link.adapt(self)

    def _answer_time(self, operation: str) -> float:
        """For how long a call may wait: the agreed `responseTimeout` (milliseconds), else the operation's own time."""
        agreed = self.agreed.parameters.get("responseTimeout")
        if isinstance(agreed, int | float) and not isinstance(agreed, bool) and agreed > 0:
            return min(agreed / 1000, 3600.0)
        known = self.attached.host.role.calls.get(operation) if self.attached else None
        return (known.timeout if known else 60.0) + ANSWER_TIME
