"""The gRPC side of one session: frames of the handler become calls, and calls become frames. `Channels` are the connections of a
gateway or node to others.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from treaty_agent import OperationError
from treaty_consensus.errors import TreatyError
from treaty_handler import Value
from treaty_io.admission.message_turns import MessageTurns
from treaty_io.admission.rounds import Rounds
from treaty_io.line_limit import limited_logger
from treaty_io.network.turns import asker_at
from treaty_io.places import Places, asker

from .addresses import NodeAddresses, caller_ip, parse_address, resolved_at_call
from .flow import FULL, Ended, Flow, Waiting
from .handler.codec import decode
from .handler.fields import CONVERSATIONS, METHODS, STREAMS
from .handler.frames import Frame
from .handler.registry import info_of
from .security import ANONYMOUS, CallerProofs, Security

MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of one message: gRPC's own default."""
_DESCRIBING = ("RegisterAgent", "RegisterTool", "UpdateNodeInfo")
"""The requests in which a node names its address."""
FIRST_MESSAGE_SECONDS = 10.0
"""For the first message of a stream. Until it comes, no timer of the session ends the call."""
KEEPALIVE = [("grpc.keepalive_time_ms", 60_000), ("grpc.keepalive_timeout_ms", 20_000), ("grpc.max_connection_idle_ms", 600_000)]
"""A connection whose other end is gone holds its calls until an answer to a ping is missing."""
_BEYOND = 1_024
"""Streams of one connection beyond those that a server has places for: their callers are told, and do not wait."""
_UNWRITTEN = "Internal error from Core"
"""gRPC's details where a stream ended while this side wrote to it. It then hides the status of the other side."""
_STATE_SHARE = 3 / 4
"""The share of a message for all nodes' descriptions, which one answer has. As Protocol Buffers they are shorter than as JSON."""
_NAMES = 1024
"""Bytes of the names of one session, on the average. A session in memory has no other bound than its names."""
PROBE_SECONDS = 2.0
"""For the connection that shows whether a node is gone. Without an answer its heartbeats decide."""
SETTLED_SECONDS = 0.2
"""Between two such connections."""
LOST = "LOST"
"""The kind of a frame that tells the session which address is gone. It never travels."""
_HELD = STREAMS | {"RouteToolCalling", "CallTool"}
"""The methods whose calls last as long as an application wants. The others are answered at once."""
_log = limited_logger(__name__)
_STATUS = {code.name: code for code in grpc.StatusCode}

Deliver = Callable[[str, Frame], list[Flow]]
"""Gives the session a frame of a peer; returns the flows that it wrote to."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of a gateway or node.

    `message`: bytes. `calls`: open sessions and calls of tools; one network has at most as many as are free. As many again are
    for registrations, heartbeats and other calls that are answered at once. `inbox`: messages that wait for the application.
    `nodes`: registered at a gateway.
    """

    message: int = MAX_MESSAGE
    calls: int = 512
    inbox: int = 256
    nodes: int = 256

    def parameters(self) -> dict[str, Value]:
        """Return the parameters of a session that has these bounds.

        All sessions may be open at once: the places of the calls are what is divided among the networks.
        """
        state = int(self.message * _STATE_SHARE)
        return {"max_sessions": self.calls, "max_names": self.calls * _NAMES, "max_nodes": self.nodes, "max_state": state}

    def options(self) -> list[tuple[str, int]]:
        """Return the options of channels and servers."""
        return [("grpc.max_receive_message_length", self.message), ("grpc.max_send_message_length", self.message)]

    def server_options(self) -> list[tuple[str, int]]:
        """Return the options of servers.

        Of more than 1,000 calls that wait for the loop, gRPC drops some at random, without a status that tells why. So more of
        them may wait than one connection may open, and a caller beyond the bound gets RESOURCE_EXHAUSTED.
        """
        streams = 2 * self.calls + _BEYOND
        waiting = [
            ("grpc.server.max_pending_requests", 2 * streams),
            ("grpc.server.max_pending_requests_hard_limit", 4 * streams),
        ]
        return [*self.options(), ("grpc.max_concurrent_streams", streams), *waiting]


def path_of(method: str) -> str:
    """Return the path of a method."""
    return f"/grpc_service.{METHODS[method][0]}/{method}"


async def _room(flows: list[Flow]) -> None:
    for flow in flows:
        await flow.room()


class IncomingCalls:
    """The calls of others at one server. `addresses`: of the nodes, where it is a gateway's."""

    def __init__(self, deliver: Deliver, bounds: Bounds, addresses: NodeAddresses | None, waiting: Waiting) -> None:
        self._deliver, self._addresses, self._waiting = deliver, addresses, waiting
        self._places = Places(bounds.calls, keeps_some=True)
        # A message is read in one iteration of the loop, and its calls to others begin in the next ones.
        self._rounds = Rounds(iterations=3)
        self._flows: dict[str, Flow] = {}
        self._checked: dict[str, tuple[str, str, str]] = {}
        self._numbers = itertools.count(1)
        self.proofs: CallerProofs | None = None
        self.nodes: NodeConnections | None = None
        """Where it is a gateway's."""

    def handlers(self, methods: list[str]) -> list[Any]:
        """Return gRPC's handlers for these methods. Messages stay bytes: the session's codec reads them."""
        services: dict[str, dict[str, Any]] = {}
        for method in methods:
            make = grpc.unary_unary_rpc_method_handler
            if method in STREAMS:
                make = grpc.stream_stream_rpc_method_handler if method in CONVERSATIONS else grpc.unary_stream_rpc_method_handler
            serve = self._streaming(method) if method in STREAMS else self._single(method)
            services.setdefault(METHODS[method][0], {})[method] = make(serve)
        return [
            grpc.method_handlers_generic_handler(f"grpc_service.{name}", rpc_handlers) for name, rpc_handlers in services.items()
        ]

    def send(self, frame: Frame) -> Flow | None:
        """Send a response, or the end of a call."""
        flow = self._flows.get(frame.call)
        if flow is not None:
            _put(flow, frame, self._waiting)
        checked = self._checked.pop(frame.call, None)
        # Kept before any other event: a call to the new node may be the next one. A refused registration keeps nothing.
        if checked is not None and frame.kind == "RESPONSE" and decode(METHODS[frame.method][2], frame.message)["success"]:
            assert self._addresses is not None
            self._addresses.keep(*checked)
        return flow

    def _single(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def serve(request: bytes, context: Any) -> bytes:
            responses: list[bytes] = []

            async def keep(data: bytes) -> None:
                responses[:] = [data]

            await self._serve(method, context, request, keep)
            return responses[0]

        return serve

    def _streaming(self, method: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def serve(request: Any, context: Any) -> None:
            await self._serve(method, context, request if isinstance(request, bytes) else None, context.write)

        return serve

    async def _serve(self, method: str, context: Any, request: bytes | None, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Serve one call. `request`: the only one, or None for a stream of requests."""
        ip = caller_ip(context.peer())
        network = asker_at(None if ip is None else str(ip))
        asker.set(network)
        turns = MessageTurns(self._rounds, network)
        if method not in _HELD:
            await self._serve_call(method, context, request, write, turns)
            return
        try:
            place = await self._places.take(0)
        except TimeoutError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many calls are open.")
        try:
            await self._serve_call(method, context, request, write, turns)
        finally:
            self._places.give_back(place)

    async def _serve_call(
        self,
        method: str,
        context: Any,
        request: bytes | None,
        write: Callable[[bytes], Awaitable[None]],
        turns: MessageTurns,
    ) -> None:
        # Before the proof, whose signature costs more than the call costs its sender.
        await turns.take(len(request or b""))
        peer = await self._peer(method, context)
        call, flow = f"in-{next(self._numbers)}", Flow()
        self._flows[call] = flow
        self._waiting.add(flow)
        reading = asyncio.create_task(self._read(peer, method, call, request, context, turns))
        reading.add_done_callback(lambda done: self._read_failed(done, flow, method, call))
        try:
            while isinstance(item := await flow.get(), bytes):
                await write(item)
            if item.code != "OK":
                _log.info("A call of %s ended with %s: %r", method, item.code, item.text)
                await context.abort(_STATUS.get(item.code, grpc.StatusCode.UNKNOWN), item.text)
        finally:
            reading.cancel()
            del self._flows[call]
            self._waiting.discard(flow)
            self._checked.pop(call, None)
            # An end that the session did not ask for: the caller cancelled, or its connection is lost.
            if not flow.over:
                self._deliver(peer, Frame("CANCEL", method, call))
            flow.close()

    async def _read(self, peer: str, method: str, call: str, request: bytes | None, context: Any, turns: MessageTurns) -> None:
        if request is not None:
            try:
                address = await self._check_address(peer, method, call, request, context.peer())
            except OperationError as error:
                code = {400: "INVALID_ARGUMENT", 409: "ALREADY_EXISTS"}.get(error.status, "PERMISSION_DENIED")
                self.send(Frame("STATUS", method, call, code=code, text=error.message))
                return
            self._deliver(peer, Frame("REQUEST", method, call, request))
            if address and self.nodes is not None:
                self.nodes.hold(address)
            return
        try:
            async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                data = await context.read()
        except TimeoutError:
            self.send(Frame("STATUS", method, call, code="DEADLINE_EXCEEDED", text="The first message did not come in time."))
            return
        while data is not grpc.aio.EOF:
            await turns.take(len(data))
            await _room(self._deliver(peer, Frame("REQUEST", method, call, data)))
            data = await context.read()
        self._deliver(peer, Frame("END", method, call))

    def _read_failed(self, reading: asyncio.Task[None], flow: Flow, method: str, call: str) -> None:
        """End a call whose requests cannot be read. Without this its caller waits until its own deadline."""
        # Of a call that is over no request can be read.
        if not reading.cancelled() and (error := reading.exception()) is not None and not flow.over:
            _log.error("The requests of a call of %s cannot be read", method, exc_info=error)
            self.send(Frame("STATUS", method, call, code="INTERNAL", text="The requests of this call cannot be read."))

    async def _check_address(self, peer: str, method: str, call: str, request: bytes, connection: str) -> str:
        """Return the address that a node names for itself, checked, or "". Raises `OperationError` (400, 403, 409)."""
        if self._addresses is None or method not in _DESCRIBING:
            return ""
        try:
            message = decode(METHODS[method][1], request)
        except ValueError:
            return ""  # the session refuses it
        described = info_of(message.get("peer", {})) if method == "UpdateNodeInfo" else message
        if "address" not in described:
            return ""
        address, ip = str(described["address"]), caller_ip(connection)
        target = await self._addresses.check(address, ip)
        registrant = str(ip) if peer == ANONYMOUS else peer
        self._checked[call] = (address, target, registrant)
        # A node that was killed and registers again, before its silence is noticed: the former one of this caller and address.
        if self.nodes is not None and method != "UpdateNodeInfo" and self._addresses.is_of(address, registrant):
            await self.nodes.replace(address)
        return address

    async def _peer(self, method: str, context: Any) -> str:
        """Return the caller as the session names it: its proved DID, or `ANONYMOUS`. It knows no claims."""
        assert self.proofs is not None
        try:
            proof = await self.proofs.peer(path_of(method), tuple(context.invocation_metadata() or ()))
            return proof.did if proof is not None else ANONYMOUS
        except TreatyError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{error.code}: {error.message}"[:500])
            raise


class OutgoingCalls:
    """The calls that a session makes. A gateway makes them to `addresses` alone; the application of a node chooses its own."""

    def __init__(
        self, deliver: Deliver, security: Security, bounds: Bounds, addresses: NodeAddresses | None, waiting: Waiting
    ) -> None:
        self._deliver, self._security, self._waiting = deliver, security, waiting
        self._flows: dict[str, Flow] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.channels = Channels(security, bounds.options(), resolved_at_call if addresses is None else addresses.target)
        self.paths: dict[str, str] = {}
        """The paths of methods that the application's stubs name in another way."""

    def send(self, peer: str, frame: Frame) -> Flow | None:
        """Send a request; the first one of a call begins it at the frame's address."""
        flow = self._flows.get(frame.call)
        if flow is None:
            if frame.kind != "REQUEST" or not frame.address:
                return None
            flow = self._flows[frame.call] = Flow()
            self._waiting.add(flow)
            self._tasks[frame.call] = asyncio.create_task(self._run(peer, frame, flow))
        if frame.kind == "CANCEL":
            self._tasks[frame.call].cancel()
            flow.close()
            return None
        _put(flow, frame, self._waiting)
        return flow

    async def close(self) -> None:
        """End all calls and channels."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.channels.close()

    async def _run(self, peer: str, first: Frame, flow: Flow) -> None:
        call, method = first.call, first.method
        ending, is_lost = Frame("STATUS", method, call), False
        try:
            async with self.channels.use(first.address) as channel:
                await self._call(peer, first, flow, channel)
        except grpc.aio.AioRpcError as error:
            text = (error.details() or "")[:500]
            ending = ending._replace(code=error.code().name, text=text)
            if text == _UNWRITTEN:
                # INTERNAL would be a fault of the other side, where an overload is as likely.
                ending = ending._replace(code="UNAVAILABLE", text="The stream was ended while this side wrote to it. Try again.")
            # gRPC has one code for a lost connection and for an application that says so.
            is_lost = ending.code == "UNAVAILABLE" and await self.channels.is_lost(first.address)
        except (OSError, ValueError, TreatyError, grpc.aio.UsageError) as error:
            ending = ending._replace(code="UNAVAILABLE", text=str(error)[:500])
        finally:
            del self._flows[call], self._tasks[call]
            self._waiting.discard(flow)
            flow.close()
        self._deliver(peer, ending)
        if is_lost:
            self._deliver(peer, Frame(LOST, method, call, address=first.address))

    async def _call(self, peer: str, first: Frame, flow: Flow, channel: grpc.aio.Channel) -> None:
        call, method = first.call, first.method
        path = self.paths.get(method) or path_of(method)
        proof = self._security.proof(first.address, path)
        if method not in STREAMS:
            data = await flow.get()
            response = await channel.unary_unary(path)(data, metadata=proof)
            self._deliver(peer, Frame("RESPONSE", method, call, response))
            return
        if method in CONVERSATIONS:
            stream = channel.stream_stream(path)(metadata=proof)
        else:
            stream = channel.unary_stream(path)(await flow.get(), metadata=proof)
        writing = asyncio.create_task(_write(stream, flow)) if method in CONVERSATIONS else None
        try:
            while (data := await stream.read()) is not grpc.aio.EOF:
                await _room(self._deliver(peer, Frame("RESPONSE", method, call, data)))
            code = await stream.code()
            if code is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=await stream.details())
        finally:
            stream.cancel()
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)


async def _write(stream: Any, flow: Flow) -> None:
    while isinstance(item := await flow.get(), bytes):
        await stream.write(item)
    await stream.done_writing()


def _put(flow: Flow, frame: Frame, waiting: Waiting) -> None:
    item: bytes | Ended = Ended(frame.code if frame.kind == "STATUS" else "", frame.text)
    if frame.kind in ("REQUEST", "RESPONSE"):
        item = frame.message
    if not flow.put(item):
        flow.replace(FULL)
    waiting.enforce()


def served_methods(services: Mapping[str, bool]) -> list[str]:
    """Return the methods of these services."""
    return [method for method, (service, _, _) in METHODS.items() if services.get(service)]


MAX_IDLE = 64
"""Connections that stay open without a call. A peer may name ever new addresses, and a connection costs a socket."""


MAX_PAUSE = 10_000
"""Milliseconds between two attempts to connect: a heartbeat's interval. gRPC's own bound of two minutes keeps a node away from a
gateway that is back."""


class Channels:
    """A channel for each address and its target. For one event loop."""

    def __init__(self, security: Security, options: Sequence[tuple[str, int]], target: Callable[[str], str]) -> None:
        """Connect to nothing. `target`: returns the target to dial for an address, or raises `OperationError`."""
        self._security, self._target = security, target
        self._options = [*options, ("grpc.max_reconnect_backoff_ms", MAX_PAUSE)]
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}
        self._calls: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a channel for one call. Raises the errors of `target`."""
        place = (address, self._target(address))
        # The one that was used last stands at the end.
        channel = self._channels.pop(place, None) or self._security.channel(*place, self._options)
        self._channels[place] = channel
        self._calls[place] += 1
        try:
            yield channel
        finally:
            self._calls[place] -= 1
            await self._close_idle()

    async def is_lost(self, address: str) -> bool:
        """Return whether the connection to an address has ended, and a new one is refused.

        It is asked beside gRPC, which after a failure waits, up to `MAX_PAUSE`, before it asks again.
        """
        entry = next(((place[1], channel) for place, channel in self._channels.items() if place[0] == address), None)
        if entry is None or entry[1].get_state() is grpc.ChannelConnectivity.READY:
            return False
        await self.hang_up_failed(address)
        kind, _, end = entry[0].partition(":")
        if kind not in ("ipv4", "ipv6"):
            return False
        host, port = parse_address(end)
        # Twice: a process that ends closes its connections and its port one after the other.
        for pause in (0.0, SETTLED_SECONDS):
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    _, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                # Of the other errors each may be this side's own, such as too many open files.
                return isinstance(error, ConnectionRefusedError)
            writer.close()
        return False

    async def hang_up_failed(self, address: str) -> None:
        """Close a connection that failed. It has no calls, and would keep those of a node that is back waiting."""
        channels = [channel for place, channel in self._channels.items() if place[0] == address]
        if any(channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE for channel in channels):
            await self.hang_up(address)

    async def hang_up(self, address: str) -> None:
        """Close the connections to an address."""
        for place in [each for each in self._channels if each[0] == address]:
            await self._channels.pop(place).close()

    async def close(self) -> None:
        """Close all connections."""
        for address in {each for each, _ in self._channels}:
            await self.hang_up(address)

    async def _close_idle(self) -> None:
        self._calls = +self._calls
        idle = [place for place in self._channels if place not in self._calls]
        closing = [self._channels.pop(place) for place in idle[: max(len(idle) - MAX_IDLE, 0)]]
        for channel in closing:
            await channel.close()


class NodeConnections:
    """A connection of a gateway to each of its nodes, from the registration on. For one event loop.

    One that ends, while no new one is taken, tells that the node is gone. No answer of a node does: a stranger chooses the
    question.
    """

    def __init__(self, channels: Channels, addresses: NodeAddresses, deliver: Deliver) -> None:
        """Connect to nothing."""
        self._channels, self._addresses, self._deliver = channels, addresses, deliver
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._live: set[str] = set()

    def hold(self, address: str) -> None:
        """Connect to the node that registered with an address, unless it is connected. Drop those of former nodes."""
        named = self._addresses.named()
        for obsolete in [each for each in self._tasks if each not in named or (each == address and each not in self._live)]:
            self._tasks.pop(obsolete).cancel()
            self._live.discard(obsolete)
        if address in named and address not in self._live:
            self._live.add(address)
            self._tasks[address] = asyncio.create_task(self._hold(address))

    async def replace(self, address: str) -> None:
        """Forget the node of an address if the connection from its registration has ended. Another one lives: it stays."""
        if address not in self._live:
            await self._channels.hang_up_failed(address)
            self._deliver(ANONYMOUS, Frame(LOST, "RegisterAgent", "", address=address))

    async def close(self) -> None:
        """End all connections."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self, address: str) -> None:
        """Connect once, and wait for the end of that connection. A node that never took one is not lost."""
        is_lost = False
        try:
            async with self._channels.use(address) as channel:
                state = channel.get_state(try_to_connect=True)
                while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                    await channel.wait_for_state_change(state)
                    state = channel.get_state()
                if was_connected := state is grpc.ChannelConnectivity.READY:
                    await channel.wait_for_state_change(state)
                # From here on another registration may replace the node.
                self._live.discard(address)
                is_lost = was_connected and await self._channels.is_lost(address)
        except (TreatyError, grpc.aio.UsageError):
            self._live.discard(address)  # the address is forgotten, or was hung up
        if is_lost:
            self._deliver(ANONYMOUS, Frame(LOST, "RegisterAgent", "", address=address))
