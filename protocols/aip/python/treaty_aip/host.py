"""Run one session of the AIP handler over gRPC: with the clock, the sockets and the application that the handler lacks."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import grpc

from treaty_agent import OperationError
from treaty_handler import (
    Audit,
    Call,
    Effect,
    Event,
    Failure,
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
    encode_json,
)
from treaty_io.admission.connections import ConnectionGuard, ConnectionLimits
from treaty_io.line_limit import limit_lines, limited_logger
from treaty_io.task_set import TaskSet

from .addresses import NodeAddresses, plain_address
from .calls import KEEPALIVE, LOST, Bounds, IncomingCalls, NodeConnections, OutgoingCalls, served_methods
from .flow import Flow, Waiting
from .handler import handler
from .handler.frames import REQUESTS, Frame, pack, unpack
from .handlers import public_text
from .security import CallerProofs, Security

MAX_SOCKETS = 4_096
"""Sockets of one server. One address has at most half."""
_SILENT, _STALLED, _IDLE = 10, 60, 660
"""Seconds: for the first byte, for a caller that reads nothing, and a minute more than gRPC keeps a connection without calls."""
_log = limited_logger(__name__)
_OTHER_SIDE = "grpc"
"""The peer of a node's own calls. The address in a frame says where a call goes."""

Function = Callable[[Any], Awaitable[Any]]
"""A function of the application. It gets the arguments of an operation."""


class SessionHost:
    """One session with its server. For one event loop, between `start` and `stop`.

    Events are delivered one after the other; one that an effect causes comes after the effects of the earlier one.
    """

    def __init__(
        self,
        role: str,
        functions: Mapping[str, Function],
        parameters: Mapping[str, Value],
        security: Security,
        bounds: Bounds,
        addresses: NodeAddresses | None = None,
    ) -> None:
        """Open the session. `functions`: the operations that the handler invokes. `addresses`: of a gateway's nodes."""
        seed = {"local": _OTHER_SIDE, "peer": _OTHER_SIDE, "seed": secrets.token_hex(16)}
        self._session = handler.open(role, {**seed, **security.parameters(), **bounds.parameters(), **parameters})
        self._functions, self._security, self._bounds = functions, security, bounds
        self._events: deque[Event] = deque()
        self._touched: list[Flow] = []
        self._delivering = False
        self._waiting: dict[str, asyncio.Future[Value]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._working = TaskSet[None]()
        self._numbers = itertools.count(1)
        waiting = Waiting()
        self._incoming = IncomingCalls(self._frame, bounds, addresses, waiting)
        self.outgoing = OutgoingCalls(self._frame, security, bounds, addresses, waiting)
        if addresses is not None:
            self._incoming.nodes = NodeConnections(self.outgoing.channels, addresses, self._frame)
        self._server: grpc.aio.Server | None = None
        self._guard = ExitStack()

    async def start(self, address: str, *services: str) -> str:
        """Serve; the address, with the port that the system chose for port 0. Raises `OperationError` (503)."""
        # Without the option a second server of the same user would share the port, and take a part of the calls.
        options = [*self._bounds.server_options(), ("grpc.so_reuseport", 0), *KEEPALIVE]
        # The bound counts calls whose proofs are still being checked, too. Half of it is for calls that are answered at once.
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=2 * self._bounds.calls)
        server.add_generic_rpc_handlers(self._incoming.handlers(served_methods(dict.fromkeys(services, True))))
        try:
            port = self._security.bind(server, address)
        except RuntimeError as error:
            raise OperationError(503, f"{address} cannot be listened on: {error}") from error
        bound = f"{plain_address(address).rpartition(':')[0]}:{port}"
        self._incoming.proofs = CallerProofs(self._security, bound)
        self._deliver(Opened(at=_now()))
        limit_lines("asyncio", "grpc._cython.cygrpc", "grpc.aio._call")
        # gRPC has no bound for an address, and never ends a connection that sends nothing.
        limits = ConnectionLimits.halved(MAX_SOCKETS, silent=_SILENT, stalled=_STALLED, idle=_IDLE)
        self._guard.enter_context(ConnectionGuard(port, limits))
        await server.start()
        self._server = server
        return bound

    async def stop(self) -> None:
        """End the server, the calls and the timers. Open calls of the application fail with 503. May be called again."""
        server, self._server = self._server, None
        for timer in self._timers.values():
            timer.cancel()
        if self._incoming.nodes is not None:
            await self._incoming.nodes.close()
        await self.outgoing.close()
        if server is not None:
            await server.stop(grace=0.5)
        self._guard.close()
        await self._working.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(OperationError(503, "This node was stopped."))
        if self._incoming.proofs is not None:
            self._incoming.proofs.close()
            self._incoming.proofs = None

    @property
    def running(self) -> bool:
        """Return whether it serves."""
        return self._server is not None

    async def call(self, operation: str, **arguments: Value) -> Value:
        """Call an operation of the session's role. Raises `OperationError` with the failure's status."""
        if self._server is None:
            raise OperationError(412, "This node is not started.")
        try:
            encode_json(arguments)
        except ValueError as error:
            raise OperationError(400, "An argument is no text that UTF-8 can write.") from error
        call = f"app-{next(self._numbers)}"
        future = self._waiting[call] = asyncio.get_running_loop().create_future()
        try:
            flows = self._deliver(Call(call=call, operation=operation, arguments=arguments, at=_now()))
            for flow in flows:
                await flow.room()
            return await future
        finally:
            self._waiting.pop(call, None)

    def query(self, operation: str) -> Value:
        """Call an operation without arguments that the session answers at once. Raises `OperationError`."""
        call = f"app-{next(self._numbers)}"
        future = self._waiting[call] = asyncio.get_running_loop().create_future()
        self._deliver(Call(call=call, operation=operation, arguments={}, at=_now()))
        return future.result()

    def _frame(self, peer: str, frame: Frame) -> list[Flow]:
        if frame.kind == LOST:
            return self._deliver(PeerLost(peer=frame.address, at=_now()))
        return self._deliver(Received(peer=peer, data=pack(frame), at=_now()))

    def _deliver(self, event: Event) -> list[Flow]:
        """Give the session an event, and perform its effects. Return the flows that were written to."""
        self._events.append(event)
        if self._delivering:
            return []
        self._delivering = True
        try:
            while self._events:
                for effect in self._session.handle(self._events.popleft()):
                    self._perform(effect)
        finally:
            self._delivering = False
        touched, self._touched = self._touched, []
        return touched

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(peer=peer, data=data):
                frame = unpack(data)
                flow = self.outgoing.send(peer, frame) if frame.kind in REQUESTS else self._incoming.send(frame)
                self._touched += [flow] if flow is not None else []
            case Invoke(call=call, operation=operation, arguments=arguments):
                self._working.start(self._invoke(call, operation, arguments))
            case Return(call=call, value=value, error=error):
                self._return(call, value, error)
            case SetTimer(name=name, seconds=seconds):
                if (old := self._timers.pop(name, None)) is not None:
                    old.cancel()
                if seconds is not None:
                    self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._expire, name)
            case Audit(text=text):
                _log.info("%r", text)

    def _expire(self, name: str) -> None:
        self._timers.pop(name, None)
        self._deliver(Timer(name=name, at=_now()))

    def _return(self, call: str, value: Value, error: Failure | None) -> None:
        future = self._waiting.pop(call, None)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(OperationError(error.code, error.message))

    async def _invoke(self, call: str, operation: str, arguments: Value) -> None:
        result = Result(call=call, at=_now())
        try:
            value = await self._functions[operation](arguments)
            # Checked here: the handler takes values alone, and a text of the application may have a lone surrogate.
            encode_json(value)
            result = Result(call=call, value=value, at=_now())
        except OperationError as error:
            result = Result(call=call, error=Failure(code=error.status, message=public_text(error)), at=_now())
        except Exception as error:
            # An application's fault fails its one call. The text may hold internals, so the caller learns the type alone.
            _log.exception("%s failed", operation)
            result = Result(call=call, error=Failure(code=500, message=public_text(error)), at=_now())
        self._deliver(result)


def _now() -> int:
    return int(time.time() * 1000)
