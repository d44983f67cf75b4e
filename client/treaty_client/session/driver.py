"""The driver of one session: the state machine, and the parts that do what it asks for.

`SessionDriver.run` is one task that does one step at a time: a message, a call, a timer, an answer, a verdict. Whatever takes
longer than a handler's event (code, negotiators, functions, tests) runs in tasks that end with the session. Every wait is
bounded: by the machine's deadlines, and `SessionTimeouts` for the rest.

    wire          the connection                    calls         what the application calls, until it is answered
    code          the protocol and its handler      requests      questions and complaints to the peer
    negotiation   the negotiator                    conversation  natural language
    testing       the agreed test cases             reports       co-signatures
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.printable import printable
from treaty_handler import Return

from ..abandonable import abandonable
from ..meta.actions import (
    Action,
    Answered,
    Consider,
    ConsiderError,
    ConsiderTests,
    Deliver,
    DeliverText,
    DeliverVerification,
    Draft,
    DraftTests,
    Ended,
    ErrorRejected,
    Load,
    Meta,
    Question,
    Running,
    SendBinary,
    SendText,
    Test,
)
from ..meta.hello import FIX_ERROR_NEGOTIATION, TEST_CASES_NEGOTIATION
from ..meta.machine import Machine, State
from ..meta.messages import ReportCosignature, ReportProposed
from ..reports.exchange import CosignatureExchange
from ..transport.connection import Connection
from .calls import Calls
from .code import SessionCode
from .conversation import Conversation
from .hosting import Step
from .negotiating import Negotiation
from .ports import Side, SpokenProtocol
from .requests import Requests
from .testing import Testing
from .timing import SessionEvent
from .wire import Wire

_INTERNAL = "This side failed; its log says why."
_log = logging.getLogger(__name__)


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
        self.machine, self.side = machine, side
        self.timeline: list[SessionEvent] = []
        self.messages_received = 0
        self.running: asyncio.Future[None] = abandonable()
        self._first, self._early = first, early
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wire = Wire(connection, side.timeouts, post=self.post, received=self._received, lost=self._lost, failed=self._fail)
        self.code, self.calls, self.requests = SessionCode(self), Calls(self), Requests(self)
        self.negotiation = Negotiation(self, side.negotiator, approvals=side.approvals, opening=side.opening)
        self.conversation = Conversation(side.answerer, say=self.say, drained=self._wire.wake)
        self._testing = Testing(self)
        self._reports = CosignatureExchange(
            lambda message: self.post(partial(self._send_meta, message)), partial(side.cosign, self), side.timeouts.report
        )
        self._owes_memory = False
        self._started = self.now()

    @property
    def was_running(self) -> bool:
        """Whether both sides were ready at some time."""
        return self.running.done() and self.running.exception() is None

    @property
    def peer_is_proved(self) -> bool:
        """Whether the transport proved the DID that the peer claims."""
        return self.machine.peer is not None and self._wire.peer == self.machine.peer.source_did

    @property
    def error(self) -> TreatyError:
        """What ended the session; this side's own trouble rather than what the peer was told of it."""
        ended = self.machine.error or Unavailable("session.closed", "The session is over.", fix="Connect again.")
        return self.negotiation.failure if self.negotiation.failure and self.machine.error else ended

    async def run(self) -> None:
        """Drive the session to its end. Raises nothing but cancellation, which ends the session too."""
        self._wire.start()
        try:
            await self._guarded(self._begin)
            while not self.machine.is_final:
                await self._guarded(await self._next())
        finally:
            await self._wind_up()

    # What the application asks for

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """See `session.Session.call`."""
        self.check_open()
        return await self.calls.make(operation, arguments)

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        """Ask the peer to co-sign a report, and wait for its answer. One at a time. Raises `TreatyError`."""
        self.check_open()
        return await self._reports.propose(proposal)

    async def say(self, text: str) -> None:
        """See `session.Session.say`."""
        await self.room()
        await self.do(self.machine.say(text, self.now()))

    def leave(self) -> None:
        """Ask for the session's end: the handler says goodbye, then the connection is closed, and `run` returns."""
        self.post(self._leave)

    # What the session's parts ask for

    def check_open(self) -> None:
        """Raises what ended the session, if it is over."""
        if self.machine.is_final:
            raise self.error

    def now(self) -> float:
        """The machine's clock."""
        return asyncio.get_running_loop().time()

    async def room(self) -> None:
        """Wait until the application may say more."""
        await self._wire.room()

    def post(self, step: Step) -> None:
        """Run a step in the driver's task, after those posted before."""
        self._steps.put_nowait(step)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the steps, until the session's end at most."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tell(self, name: str) -> None:
        """Note an event in the timeline, and tell the observer."""
        event = SessionEvent(name, self.now() - self._started)
        self.timeline.append(event)
        self.side.observe(self, event)

    async def do(self, actions: list[Action]) -> None:
        """Perform, from any task, what the machine returned to the application: nothing but sending, or the end. Raises the
        latter."""
        await self.perform(actions)
        self._wire.wake()
        self.check_open()

    async def blame(self, description: str) -> None:
        """The peer's code fails the tests; where it cannot be asked to mend it, the session is over."""
        if self.machine.both_list(FIX_ERROR_NEGOTIATION):
            await self.requests.report(description)
        else:
            await self._fail(Refused("negotiation.tests-failed", f"The other side's code fails: {printable(description, 500)}"))

    # What the handler's host asks for

    async def send(self, payload: bytes, *, early: bool) -> None:
        await self.perform(self.machine.send(payload, self.now(), early=early))

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        self.calls.answered(call, outcome)

    async def end(self, error: TreatyError | None) -> None:
        await self.perform(self.machine.close() if error is None else self.machine.fail(error))

    # Steps

    async def _begin(self) -> None:
        await self.perform(self._first)
        if self._early is not None:
            await self.code.begin_early(*self._early)

    async def _next(self) -> Step:
        """The next step; the machine's deadline is one, and goes before all others."""
        if self.now() >= self.machine.deadline:
            return self._tick
        try:
            async with asyncio.timeout_at(self.machine.deadline):
                return await self._steps.get()
        except TimeoutError:
            return self._tick

    async def _tick(self) -> None:
        await self.perform(self.machine.tick(self.now()))

    async def _guarded(self, step: Step) -> None:
        """Run a step; whatever it raises ends the session."""
        try:
            await step()
        except TreatyError as error:
            await self._fail(error)
        except TimeoutError:
            await self._fail(Unavailable("session.code-timeout", "The handler was not ready in time."))
        except Exception:
            _log.exception("A session failed")
            await self._fail(Unavailable("session.internal", _INTERNAL))
        self._wire.allow(self.machine.accepts_input and self._wire.has_room and self.conversation.has_room)

    async def _fail(self, error: TreatyError) -> None:
        for action in self.machine.fail(error):
            if isinstance(action, SendText | SendBinary):
                with suppress(TreatyError):
                    self._wire.put(action.text if isinstance(action, SendText) else action.data)

    async def _received(self, message: str | bytes) -> None:
        met = self.machine.peer is not None
        actions = self.machine.receive(message, self.now())
        if not met and self.machine.peer is not None:
            self._check_proof(self.machine.peer.source_did)
            self.tell("hello")
            self.spawn(self.conversation.answer(self.machine.peer.source_did))
        await self.perform(actions)
        if self.requests.is_complaining and self.machine.state is State.AGREED:
            await self.code.retire()  # the peer mends its code, and what was said so far is void

    def _check_proof(self, claimed: str) -> None:
        if self._wire.peer not in ("", claimed):
            raise Refused("session.peer-did", f"The Hello is from {claimed}, and the connection from {self._wire.peer}.")

    async def _lost(self, reason: str) -> None:
        if self.machine.is_final:
            return
        spoke = self.machine.state is State.RUNNING
        self.machine.lost(reason)
        if spoke and self.code.handler is not None and self.code.handler.is_open:
            with suppress(TreatyError):
                await self.code.handler.peer_lost()

    async def _leave(self) -> None:
        handler = self.code.handler
        if handler is not None and handler.is_open and self.machine.state is State.RUNNING:
            await handler.say_goodbye()
        await self.perform(self.machine.close())

    async def _send_meta(self, message: ReportCosignature) -> None:
        await self.perform(self.machine.send_meta(message, self.now()))

    # Actions

    async def perform(self, actions: list[Action]) -> None:
        """Do what the machine asks for, in this order."""
        for action in actions:
            match action:
                case SendText(text=message) | SendBinary(data=message):
                    self._wire.put(message)
                case Draft() | Consider() | DraftTests() | ConsiderTests() | ConsiderError() | Question():
                    self.negotiation.take(action)
                case Load(agreement, error):
                    await self._testing.end()
                    await self.code.load(agreement, error)
                case Test(test_cases):
                    await self._resume_code()
                    await self._testing.begin(test_cases)
                case ErrorRejected(reason):
                    await self._denied(reason)
                case Running():
                    await self._run()
                case Deliver(payload):
                    await self._deliver(payload)
                case DeliverVerification(payload):
                    await self._testing.received(payload)
                case DeliverText(text):
                    self.conversation.take(text)
                case Answered(message_id, text):
                    self.requests.answered(message_id, text)
                case Meta(message):
                    self._reports.take(message)
                case Ended():
                    pass  # `run` sees that the machine is final

    async def _run(self) -> None:
        """Application messages may flow: for the first time, or again after tests or a repair."""
        await self._resume_code()
        self.side.negotiated()
        if not self.running.done():
            self.tell("running")
        if self._may_come_to_nothing():
            self._owes_memory = True
        else:
            await self.side.agreed(self)
        if not self.running.done():
            self.running.set_result(None)
        await self.calls.issue()

    def _may_come_to_nothing(self) -> bool:
        """Whether tests may yet show that what was negotiated is no good: a destination runs before it knows of the source's."""
        return self.code.is_new and not self.machine.is_source and self.machine.both_list(TEST_CASES_NEGOTIATION)

    async def _remember(self) -> None:
        if self._owes_memory:
            self._owes_memory = False
            await self.side.agreed(self)

    async def _resume_code(self) -> None:
        """After the peer's repair: a new conversation on this side too."""
        if self.requests.is_complaining:
            self.tell("repaired")
            self.requests.repaired()
            if self.code.handler is None:
                await self.code.restart()

    async def _denied(self, reason: str) -> None:
        error = self.requests.denied(reason)
        if self.machine.state is not State.RUNNING:  # tests that fail, by nobody's fault
            await self._fail(error)

    async def _deliver(self, payload: bytes) -> None:
        await self._testing.end()
        await self._remember()
        if self.code.handler is not None and not self.machine.is_final:
            self.messages_received += 1
            await self.code.handler.received(payload)

    # The end

    async def _wind_up(self) -> None:
        self.machine.close()
        self.side.negotiated()
        if self.machine.error is None:
            await self._remember()
        self._reports.end(self.error)
        self.requests.end(self.error)
        self.calls.end(self.error)
        self.conversation.end()
        if not self.running.done():
            self.running.set_exception(self.error)
        for task in self._tasks:
            task.cancel()
        self.tell("end")
        await asyncio.gather(
            self._wire.hang_up(self.machine.error), self.code.retire(), self._testing.end(), self.negotiation.close()
        )
