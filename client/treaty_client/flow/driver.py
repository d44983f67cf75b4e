"""The driver of one connection: its transport, the processor, the engine and the handlers of its sessions, joined.

`run` is one task that does one step at a time, as the driver of the Hello profile's sessions does, and by the same rules:
messages are read only when the step before is done and while there is room to answer, every wait is bounded. What takes long
(evaluating, fetching, starting a handler) is done beside it, all protocols at once, so that sessions go on while others are
negotiated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unauthorized, Unavailable

from ..abandonable import abandonable
from ..session.hosting import Step
from ..session.ports import SpokenProtocol
from ..transport.connection import Connection, ConnectionLost
from ..transport.outbox import Outbox
from . import parameters as rules
from .actions import (
    Action,
    Deliver,
    Ended,
    Evaluate,
    Host,
    Load,
    PeerChanged,
    Ready,
    RenegotiationFailed,
    Send,
    SessionEnded,
)
from .adaptation import Adaptation
from .engine import State
from .initiator import Initiator
from .messages import MAX_APPLICATION, MAX_MESSAGE
from .ports import HostRequest, Surroundings
from .processor import MessageProcessor, Now
from .responder import Responder
from .session import Attached, FlowSession, Line
from .strategy import Evaluation, evaluate

_log = logging.getLogger(__name__)


class FlowDriver:
    """Made by a manager; `run` it in a task of its own. `agreed` is done when what was to be negotiated at first is over."""

    def __init__(
        self, connection: Connection, engine: Initiator | Responder, processor: MessageProcessor, surroundings: Surroundings
    ) -> None:
        """Sends nothing."""
        self.engine, self.sessions = engine, dict[str, FlowSession]()
        self.agreed: asyncio.Future[None] = abandonable()
        self._connection, self._processor, self._surroundings = connection, processor, surroundings
        self._connected = True
        self._closed = asyncio.Event()
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._loaded: dict[str, SpokenProtocol] = {}
        self._prepared: dict[str, Attached] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox = Outbox(connection, surroundings.send, failed=self._send_failed, drained=lambda: self.post(self._nothing))

    async def run(self, first: str | None = None) -> None:
        """Drive the connection to its end. `first`: a message that was received already. Raises nothing but cancellation."""
        wire = [asyncio.create_task(self._read(first)), asyncio.create_task(self._outbox.run())]
        for task in wire:
            task.add_done_callback(self._wire_broke)
        try:
            await self._guarded(lambda: self._perform(self.engine.start(self._now())))
            while not self.engine.is_final:
                await self._guarded(await self._next())
        finally:
            await self._wind_up(wire)

    # What sessions ask for

    def post(self, step: Step) -> None:
        self._steps.put_nowait(step)

    async def send(self, session_id: str, data: bytes) -> None:
        await self._perform(self.engine.send(session_id, data, self._now()))

    async def end(self, session_id: str, error: TreatyError | None) -> None:
        session = self.sessions.pop(session_id, None)
        if error is not None:
            await self._perform(self.engine.fail(error))
        else:
            await self._perform(self.engine.end_session(session_id))
        if session is not None:
            await session.finish(error)

    def change(self, session: FlowSession, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        self.post(partial(self._change, session, parameters, protocol))

    def adapt(self, session: FlowSession) -> None:
        """Watched by both sides: the initiator changes the session, the responder tells of its situation."""
        offer = self.engine.capabilities.registry.get(session.agreed.protocol)
        if offer is None or session.changing is not None or session.is_over:
            return
        ranking = [found.id for found in self.engine.ranking] if isinstance(self.engine, Initiator) else []
        change = session.adaptation.next_change(self._now().seconds, offer, session.parameters, ranking)
        if change is None:
            return
        self._surroundings.observe(f"adapting: {change.finding}")
        if isinstance(self.engine, Initiator):
            self._change_quietly(session, change.parameters, change.protocol)
        else:
            self.post(self.tell)

    async def room(self) -> None:
        await self._outbox.room()

    async def wound_up(self) -> None:
        if self.engine.is_final:
            await self._closed.wait()

    def leave(self) -> None:
        """Ask for the end of it all."""
        self.post(lambda: self._perform(self.engine.close()))

    # Steps

    async def _next(self) -> Step:
        """The next step; the engine's deadline is one, and goes before all others."""
        if self._now().seconds >= self.engine.deadline:
            return self._tick
        try:
            async with asyncio.timeout(self.engine.deadline - self._now().seconds):
                return await self._steps.get()
        except TimeoutError:
            return self._tick

    async def _tick(self) -> None:
        await asyncio.sleep(0)  # a clock that lags behind the deadline must not starve the rest
        await self._perform(self.engine.tick(self._now()))

    async def _nothing(self) -> None:
        """A step after which it is decided anew whether to read."""

    async def _guarded(self, step: Step) -> None:
        """Run a step; whatever it raises ends the connection."""
        try:
            await step()
        except TreatyError as error:
            self.engine.fail(error)
        except Exception:
            _log.exception("A negotiation failed")
            self.engine.fail(Unavailable("flow.internal", "This side failed; its log says why."))
        self._tell_outcome()
        if self._outbox.may_read:
            self._may_read.set()
        else:
            self._may_read.clear()

    async def _received(self, message: str | bytes, done: asyncio.Event) -> None:
        try:
            if isinstance(message, bytes):
                raise Malformed("flow.binary", "Messages of the negotiation flow are text.")
            limit = MAX_APPLICATION if self.engine.state is State.RUNNING else MAX_MESSAGE
            now = self._now()
            async with asyncio.timeout(self._surroundings.settings.timeouts.work):
                opened = await self._processor.open(message, now, limit=limit)
        except TimeoutError:
            error = Unauthorized("flow.keys", "The keys of the other side could not be had in time.")
            await self._perform(self.engine.unverified(error, self._now()))
        except (Malformed, TooLarge, Refused, Unauthorized, Unavailable) as error:
            told = isinstance(error, Unauthorized) or error.code == "flow.version"
            await self._perform(self.engine.unverified(error, self._now()) if told else self.engine.fail(error))
        else:
            await self._perform(self.engine.receive(opened, self._now()))
        finally:
            done.set()

    async def _change(self, session: FlowSession, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        try:
            if not isinstance(self.engine, Initiator):
                raise Refused("flow.role", "Only the side that began a negotiation changes its sessions.")
            actions = self.engine.renegotiate(session.id, self._now(), parameters=parameters, protocol=protocol)
        except TreatyError as error:
            session.settle(error)
        else:
            await self._perform(actions)

    def _change_quietly(self, session: FlowSession, parameters: Mapping[str, Any] | None, protocol: str = "") -> None:
        async def change() -> None:
            try:
                await session.renegotiate(parameters, protocol=protocol)
            except TreatyError as error:
                _log.info("The session with %s could not be changed: %s", session.peer, error)

        self._spawn(change())

    async def tell(self) -> None:
        """A step: tell the initiator of this side's situation, if that is the other side."""
        if isinstance(self.engine, Responder):
            await self._perform(self.engine.tell(self._now()))

    # Actions

    async def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self._outbox.put(self._processor.seal(message, self._now()))
                case Evaluate(ids):
                    self._spawn(self._evaluate(ids))
                case Load(protocol, digest):
                    self._spawn(self._load(protocol, digest))
                case Host():
                    self._spawn(self._host(action))
                case Ready():
                    await self._ready(action)
                case Deliver(session_id, data):
                    if session_id in self.sessions:
                        await self.sessions[session_id].received(data)
                case RenegotiationFailed(session_id, error):
                    if session_id in self.sessions:
                        self.sessions[session_id].settle(error)
                case PeerChanged():
                    self._peer_changed()
                case SessionEnded(session_id, error):
                    session = self.sessions.pop(session_id, None)
                    if session is not None:
                        await session.finish(error)
                case Ended():
                    pass  # `run` sees that the engine is final

    async def _evaluate(self, ids: tuple[str, ...]) -> None:
        """Judge protocols, all at once; one that means nothing here is no match."""
        found = await asyncio.gather(*map(self._evaluate_one, ids))
        self.post(lambda: self._perform(self._initiator.evaluated([one for one in found if one], self._now())))

    async def _evaluate_one(self, id: str) -> Evaluation | None:
        engine = self._initiator
        offer = engine.capabilities.registry.get(id)
        if offer is None:
            return None
        judged = evaluate(offer.supported(), engine.known.protocols[id], engine.goal, engine.capabilities.context, engine.known)
        if judged is None:
            return None
        try:
            async with asyncio.timeout(self._surroundings.settings.timeouts.work):
                located = await self._surroundings.names.locate(id)
        except (TreatyError, TimeoutError) as error:
            _log.info("%s is left out: %s", id, error)
            return None
        return Evaluation(**{**vars(judged), "uri": located.uri, "digest": located.digest})

    async def _load(self, id: str, digest: str) -> None:
        names = self._surroundings.names

        async def fetch() -> SpokenProtocol:
            return await names.fetch(id, await names.locate(id, digest))

        def failed(error: TreatyError) -> list[Action]:
            return self.engine.load_failed(id, error, self._now())

        protocol = await self._work(fetch(), failed)
        if protocol is not None:
            self._loaded[id] = protocol
            self.post(lambda: self._perform(self.engine.loaded(id, protocol.uri, protocol.hash, self._now())))

    async def _host(self, wanted: Host) -> None:
        id = wanted.session_id
        session = self.sessions.get(id) or FlowSession(
            self, id, self.engine.peer, Adaptation(self._surroundings.settings.thresholds)
        )
        protocol, line = self._loaded[wanted.agreed.protocol], Line(self, session)

        def failed(error: TreatyError) -> list[Action]:
            return self.engine.host_failed(id, error)

        host = await self._work(self._surroundings.hosts.host(line, protocol, self._request(wanted.agreed.parameters)), failed)
        if host is not None:
            if self.engine.is_final:
                await host.close()
                return
            self.sessions.setdefault(id, session)
            self._prepared[id] = Attached(host, protocol, line)
            self.post(lambda: self._perform(self.engine.hosted(id, self._now())))

    async def _ready(self, ready: Ready) -> None:
        session, prepared = self.sessions[ready.session_id], self._prepared.pop(ready.session_id, None)
        self._surroundings.observe("changed" if session.attached else "ready")
        if prepared is None:
            session.update(ready.agreed, ready.expires_at)
            return
        former = session.attached.protocol if session.attached else None
        carry = partial(self._carry, former, prepared.protocol, ready.agreed.parameters) if former else None
        await session.attach(prepared, ready.agreed, ready.expires_at, carry)

    async def _carry(self, former: SpokenProtocol, protocol: SpokenProtocol, parameters: Mapping[str, Any]) -> None:
        await self._surroundings.hosts.carry(former, protocol, self._request(parameters))

    def _peer_changed(self) -> None:
        """The responder is in another situation: ask again for what this side prefers, and see what it takes now."""
        for session in self.sessions.values():
            offer = self.engine.capabilities.registry.get(session.agreed.protocol)
            if isinstance(self.engine, Initiator) and offer is not None and session.changing is None and offer.parameters:
                self._change_quietly(session, rules.preferred(offer.parameters))

    async def _work(self, work: Coroutine[Any, Any, Any], failed: Callable[[TreatyError], list[Action]]) -> Any:
        """Do it in bounded time; what goes wrong is told to the engine, and gives None."""
        try:
            async with asyncio.timeout(self._surroundings.settings.timeouts.work):
                return await work
        except TreatyError as caught:
            error = caught
        except TimeoutError:
            error = Unavailable("flow.work", "This side's code was not ready in time.")
        except Exception:
            _log.exception("Getting a protocol ready failed")
            error = Unavailable("flow.internal", "This side failed; its log says why.")
        self.post(lambda: self._perform(failed(error)))
        return None

    # The wire

    async def _read(self, first: str | None) -> None:
        """Hand over one message at a time, and read the next when that is done with."""
        try:
            while True:
                await self._may_read.wait()
                message, first = (await self._connection.receive() if first is None else first), None
                done = asyncio.Event()
                self.post(partial(self._received, message, done))
                await done.wait()
        except TreatyError as error:
            self._connected = False
            self.post(partial(self._lost, error.reason if isinstance(error, ConnectionLost) else ""))

    async def _lost(self, reason: str) -> None:
        self.engine.lost(reason)

    async def _fail(self, error: TreatyError) -> None:
        self.engine.fail(error)

    def _send_failed(self, error: TreatyError) -> None:
        self._connected = False
        if not isinstance(error, ConnectionLost):  # else `_read` says so, after all that arrived before
            self.post(partial(self._fail, error))

    def _wire_broke(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("A connection failed", exc_info=task.exception())
            self._connected = False
            self.post(partial(self._fail, Unavailable("flow.internal", "This side failed; its log says why.")))

    async def _wind_up(self, wire: list[asyncio.Task[None]]) -> None:
        self.engine.close()
        self._tell_outcome()
        working = list(self._tasks)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        sessions, self.sessions = self.sessions, {}
        error = self.engine.error
        await asyncio.gather(*(session.finish(error, lost=not self._connected) for session in sessions.values()))
        await asyncio.gather(*(prepared.host.close() for prepared in self._prepared.values()))
        if self._connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._surroundings.flush):
                    await self._outbox.flushed()
        self._outbox.close()
        for task in wire:
            task.cancel()
        await asyncio.gather(*wire, return_exceptions=True)
        await self._connection.close(error.code if error is not None and self._connected else "")
        self._surroundings.observe("end")
        self._closed.set()

    def _tell_outcome(self) -> None:
        if self.agreed.done():
            return
        if self.engine.state is State.RUNNING and not self.engine.tracks:
            self.agreed.set_result(None)
        elif self.engine.is_final:
            self.agreed.set_exception(self.engine.error or Unavailable("session.closed", "The session is over."))

    def _request(self, parameters: Mapping[str, Any]) -> HostRequest:
        return HostRequest(self.engine.peer, isinstance(self.engine, Initiator), parameters)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _initiator(self) -> Initiator:
        assert isinstance(self.engine, Initiator)
        return self.engine

    def _now(self) -> Now:
        return self._surroundings.clock()
