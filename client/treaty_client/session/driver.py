"""The driver of one session: a connection, a state machine and a handler, joined.

`SessionDriver.run` is one task that does one step at a time: a message, a call, a timer, an answer. Messages are read only when
the step before is done, so a peer that sends faster than this side works is slowed down by its own connection. Every wait is
bounded: the machine's deadlines, and `SessionTimeouts` for the rest.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_handler import Return

from ..meta.actions import Action, Agreement, Deliver, Ended, Load, Meta, Running, SendBinary, SendText
from ..meta.machine import Machine, State
from ..meta.messages import ReportCosignature, ReportProposed
from ..reports.exchange import CosignatureExchange
from ..transport.connection import Connection, ConnectionLost
from ..transport.outbox import Outbox
from .hosting import HandlerHost, Step
from .operations import OperationError
from .ports import Side, SpokenProtocol
from .timing import SessionEvent

_log = logging.getLogger(__name__)


@dataclass
class _Call:
    operation: str
    arguments: dict[str, Any]
    answer: asyncio.Future[Any]
    given_to: HandlerHost | None = None


class SessionDriver:
    """Made by an agent; `run` it in a task of its own. `early`: the protocol and the peer's DID of a remembered agreement, when
    its hash is offered. All public attributes are for reading."""

    def __init__(
        self,
        connection: Connection,
        machine: Machine,
        first: list[Action],
        side: Side,
        *,
        early: tuple[SpokenProtocol, str] | None = None,
    ) -> None:
        self.machine = machine
        self.protocol: SpokenProtocol | None = None
        self.timeline: list[SessionEvent] = []
        self.messages_received = 0
        self.replies = 0
        self.running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection, self._first, self._side, self._early = connection, first, side, early
        self._connected = True
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._handler: HandlerHost | None = None
        self._calls: dict[str, _Call] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox = Outbox(connection, side.timeouts.send, failed=self._send_failed, drained=lambda: self.post(self._nothing))
        self._reports = CosignatureExchange(
            lambda message: self.post(partial(self._send_meta, message)), partial(side.cosign, self), side.timeouts.report
        )
        self._started = self._now()

    @property
    def was_running(self) -> bool:
        """Whether both sides were ready at some time."""
        return self.running.done() and self.running.exception() is None

    async def run(self) -> None:
        """Drive the session to its end. Raises nothing but cancellation, which ends the session too."""
        wire = [asyncio.create_task(self._read()), asyncio.create_task(self._outbox.run())]
        for task in wire:
            task.add_done_callback(self._wire_broke)
        try:
            await self._guarded(self._begin)
            while not self.machine.is_final:
                await self._guarded(await self._next())
        finally:
            await self._wind_up(wire)

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Call an operation and wait for its answer; see `session.Session.call`."""
        if self.machine.is_final:
            raise self._over()
        number = str(next(self._numbers))
        call = _Call(operation, arguments, asyncio.get_running_loop().create_future())
        self._calls[number] = call
        try:
            async with asyncio.timeout(self._answer_time(operation)):
                await self._outbox.room()
                self.post(partial(self._issue, number))
                return await call.answer
        except TimeoutError as error:
            raise OperationError(504, f"The handler gave no answer to {operation}.") from error
        finally:
            self._calls.pop(number, None)

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        """Ask the peer to co-sign a report, and wait for its answer. One at a time. Raises `TreatyError`."""
        if self.machine.is_final:
            raise self._over()
        return await self._reports.propose(proposal)

    def leave(self) -> None:
        """Ask for the session's end: the handler says goodbye, then the connection is closed, and `run` returns."""
        self.post(self._leave)

    # What the handler's host asks for

    def post(self, step: Step) -> None:
        self._steps.put_nowait(step)

    async def send(self, payload: bytes, *, early: bool) -> None:
        await self._perform(self.machine.send(payload, self._now(), early=early))

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        waiting = self._calls.get(call)
        if waiting is None or waiting.answer.done():
            return  # the caller has given up
        if isinstance(outcome, TreatyError):
            waiting.answer.set_exception(outcome)
            return
        self.replies += 1
        if self.replies == 1:
            self.tell("first reply")
        if outcome.error is None:
            waiting.answer.set_result(outcome.value)
        else:
            waiting.answer.set_exception(OperationError(outcome.error.code, outcome.error.message))

    async def end(self, error: TreatyError | None) -> None:
        await self._perform(self.machine.close() if error is None else self.machine.fail(error))

    # Steps

    async def _begin(self) -> None:
        await self._perform(self._first)
        if self._early is not None:
            self.protocol, peer = self._early
            async with asyncio.timeout(self._side.timeouts.code):
                self._handler = await self._side.host(self, self.protocol, peer)
            await self._open()

    async def _next(self) -> Step:
        """The next step; the machine's deadline is one, and goes before all others."""
        if self._now() >= self.machine.deadline:
            return self._tick
        try:
            async with asyncio.timeout_at(self.machine.deadline):
                return await self._steps.get()
        except TimeoutError:
            return self._tick

    async def _tick(self) -> None:
        await self._perform(self.machine.tick(self._now()))

    async def _nothing(self) -> None:
        """A step after which it is decided anew whether to read."""

    async def _guarded(self, step: Step) -> None:
        """Run a step; whatever it raises ends the session."""
        try:
            await step()
        except TreatyError as error:
            self.machine.fail(error)
        except TimeoutError:
            self.machine.fail(Unavailable("session.code-timeout", "The handler was not ready in time."))
        except Exception:
            _log.exception("A session failed")
            self.machine.fail(Unavailable("session.internal", "This side failed; its log says why."))
        if self.machine.accepts_input and self._outbox.may_read:
            self._may_read.set()
        else:
            self._may_read.clear()

    async def _read(self) -> None:
        """Hand over one message at a time, and read the next when that is done with."""
        try:
            while True:
                await self._may_read.wait()
                message = await self._connection.receive()
                done = asyncio.Event()
                self.post(partial(self._received, message, done))
                await done.wait()
        except TreatyError as error:
            self._disconnected(error)

    def _send_failed(self, error: TreatyError) -> None:
        self._connected = False
        if not isinstance(error, ConnectionLost):  # else `_read` says so, after all that arrived before
            self.post(partial(self._fail, error))

    def _wire_broke(self, task: asyncio.Task[None]) -> None:
        """Neither task of the wire fails in any way that it knows of; if one does, the session must not wait for it."""
        if not task.cancelled() and task.exception() is not None:
            _log.error("A connection failed", exc_info=task.exception())
            self._connected = False
            self.post(partial(self._fail, Unavailable("session.internal", "This side failed; its log says why.")))

    def _disconnected(self, error: TreatyError) -> None:
        self._connected = False
        self.post(partial(self._lost, error.reason if isinstance(error, ConnectionLost) else ""))

    async def _fail(self, error: TreatyError) -> None:
        self.machine.fail(error)

    async def _received(self, message: str | bytes, done: asyncio.Event) -> None:
        try:
            await self._perform(self.machine.receive(message, self._now()))
        finally:
            done.set()

    async def _lost(self, reason: str) -> None:
        if self.machine.is_final:
            return
        spoke = self.machine.state is State.RUNNING
        self.machine.lost(reason)
        if spoke and self._handler is not None and self._handler.is_open:
            with suppress(TreatyError):
                await self._handler.peer_lost()

    async def _leave(self) -> None:
        if self._handler is not None and self._handler.is_open and self.machine.state is State.RUNNING:
            await self._handler.say_goodbye()
        await self._perform(self.machine.close())

    async def _issue(self, number: str) -> None:
        """Give a call to the handler, each handler once; before there is one, it waits in `_calls`."""
        call = self._calls.get(number)
        if call is None or self._handler is None or not self._handler.is_open or call.given_to is self._handler:
            return
        call.given_to = self._handler
        operation = self._handler.role.calls.get(call.operation)
        early = self.machine.state is State.HELLO and operation is not None and operation.idempotent
        await self._handler.call(number, call.operation, call.arguments, early=early)

    async def _send_meta(self, message: ReportCosignature) -> None:
        await self._perform(self.machine.send_meta(message, self._now()))

    # Actions

    async def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendText(text=message) | SendBinary(data=message):
                    self._outbox.put(message)
                case Load(agreement):
                    await self._load(agreement)
                case Running():
                    self.tell("running")
                    self._side.agreed(self)
                    if not self.running.done():
                        self.running.set_result(None)
                case Deliver(payload):
                    await self._deliver(payload)
                case Meta(message):
                    self._reports.take(message)
                case Ended():
                    pass  # `run` sees that the machine is final

    async def _deliver(self, payload: bytes) -> None:
        if self._handler is not None and not self.machine.is_final:
            self.messages_received += 1
            await self._handler.received(payload)

    async def _load(self, agreement: Agreement) -> None:
        self.tell("hello")
        if agreement.confirmed and self._handler is not None and self.protocol is not None:
            await self._perform(self.machine.code_ready(self.protocol.hash, self._now()))
            return
        if self._handler is not None:  # it spoke too early; with new code everything is said again
            await self._handler.close()
            self._handler = None
        self._spawn(self._get_code(agreement))

    async def _get_code(self, agreement: Agreement) -> None:
        assert self.machine.peer is not None
        try:
            async with asyncio.timeout(self._side.timeouts.code):
                self.protocol = await self._side.resolve(agreement)
                if not agreement.confirmed:
                    self.tell("verified")
                self._handler = await self._side.host(self, self.protocol, self.machine.peer.source_did)
        except TreatyError as error:
            self.post(partial(self._code_failed, error))
        except TimeoutError:
            self.post(partial(self._code_failed, Unavailable("session.code-timeout", "This side's code was not ready in time.")))
        except Exception:
            _log.exception("Getting the code for %s ready failed", agreement.uri)
            self.post(partial(self._code_failed, Unavailable("session.internal", "This side failed; its log says why.")))
        else:
            self.post(self._open_and_announce)

    async def _code_failed(self, error: TreatyError) -> None:
        await self._perform(self.machine.code_failed(error))

    async def _open_and_announce(self) -> None:
        assert self.protocol is not None
        if self.machine.is_final:
            return
        try:
            await self._open()
        except TreatyError as error:
            await self._code_failed(error)
        else:
            await self._perform(self.machine.code_ready(self.protocol.hash, self._now()))

    async def _open(self) -> None:
        assert self._handler is not None
        await self._handler.open()
        self.tell("sandbox")
        for number in list(self._calls):
            await self._issue(number)

    # The end

    async def _wind_up(self, wire: list[asyncio.Task[None]]) -> None:
        self.machine.close()
        error = self._over()
        self._reports.end(error)
        for future in (self.running, *(call.answer for call in self._calls.values())):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody need be waiting
        for task in self._tasks:
            task.cancel()
        self.tell("end")
        closing = [self._hang_up(wire), *([self._handler.close()] if self._handler else [])]
        await asyncio.gather(*closing)

    async def _hang_up(self, wire: list[asyncio.Task[None]]) -> None:
        if self._connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._side.timeouts.flush):
                    await self._outbox.flushed()
        self._outbox.close()
        for task in wire:
            task.cancel()
        await self._connection.close(self.machine.error.code if self.machine.error and self._connected else "")

    def _over(self) -> TreatyError:
        return self.machine.error or Unavailable("session.closed", "The session is over.", fix="Connect again.")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answer_time(self, operation: str) -> float:
        """For how long a call may wait: the operation's own time, and what may come before and after it."""
        timeouts = self._side.timeouts
        known = self._handler.role.calls.get(operation) if self._handler else None
        before = 0.0 if self.machine.state is State.RUNNING else timeouts.hello + timeouts.code
        return before + (known.timeout if known else 60.0) + timeouts.answer

    def tell(self, name: str) -> None:
        """Note an event in the timeline, and tell the observer."""
        event = SessionEvent(name, self._now() - self._started)
        self.timeline.append(event)
        self._side.observe(self, event)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
