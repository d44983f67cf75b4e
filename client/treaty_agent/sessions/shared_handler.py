"""Run one handler session for all connections of a shared role.

    connection A ── MemberHandler ─┐
    connection B ── MemberHandler ─┼── SharedHandler ── HandlerHost
    local application (CallTable) ─┘

A connection has a `MemberHandler` in the place of its own handler. It joins when its session begins, and leaves when its session
ends in any way. `SharedHandler` gives the events of all members to the handler, one at a time, in a task of its own. The networks
of the members take turns, so many members of one network delay the others by one event each. Messages to
a member go to the outbox of its connection. A member whose outbox is full, or whose connection refuses a message, is dropped, and
the others go on. An error of the handler ends the sessions of all members.

The session is kept on disk (`room_file`), and the next process of this home goes on with it: without members, which come back. So
the end of the agent lets it rest, and the handler gets no `Close`. The file goes when the session ends. It stays at a fault of
this machine, such as a full disk: then the next session goes on with it too.

A member is known by its DID. A later connection that proves the same DID replaces the earlier one, as in a chat server: after a
loss that this side did not notice, a member can come back. A connection that only claims the DID of a member is refused, so that
a stranger cannot take a place that is held.

A message of a member is read only when fewer than `Capacity.functions` of its functions run, and all functions together are fewer
than `MAX_SHARED`. So one member cannot use up the calls that a handler may have open, which would end the session of all. The
steps of its connection go on meanwhile. When more than `MAX_WAITING` bytes wait for all members, the slowest one is dropped.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from treaty_anp.call_metadata import CallMetadata
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.handler import Role
from treaty_handler import Return, Send, Value
from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable, session_over
from treaty_io.identity import ClaimedPeer, PeerIdentity, ProvedPeer
from treaty_io.line_limit import limited_logger
from treaty_io.places import Places, asker
from treaty_io.shared_timer import SharedTimer
from treaty_io.task_set import TaskSet

from .call_context import CallOrigin
from .calls import CallingSession, CallTable, Phase
from .handler_context import HandlerPort, SendNamed, SendTo
from .handler_host import HandlerHost
from .interfaces import CANCELLING_TIME, Capacity, SessionTimeouts, Step
from .invocations import MAX_SHARED
from .middleware import CallPipeline
from .room_file import RoomFile
from .wire import MAX_BACKLOG

MEMBER_FAULTS: Final = frozenset((SessionCode.MESSAGE, SessionCode.PEER, SessionCode.BUSY))
"""The codes of an event that the handler did not get. They end the member's session, and no other."""
MAX_WAITING: Final = 8 * MAX_BACKLOG
"""Bytes that wait for all members together. Without it each of many members that read nothing could hold `MAX_BACKLOG`."""
_PASSING = frozenset((SystemCode.FILE, SessionCode.BUSY, SessionCode.INTERNAL))
"""The codes of errors that are not the handler's: the session is kept as before the event."""
_INTERNAL = "This side failed; its log says why."
_log = limited_logger(__name__)


class SharedSettings(NamedTuple):
    """The surroundings of a shared session. `protocol`: its URI. `digest`: of the handler. `room`: its file. `start`: load the
    handler; may raise."""

    protocol: str
    role: Role
    digest: str
    room: RoomFile
    capacity: Capacity
    pipeline: CallPipeline
    start: Callable[[HandlerPort, SendTo], Awaitable[HandlerHost]]


class SharedHandler(CallingSession):
    """A shared session. Implements `HandlerPort`. For one event loop. It begins at once; always call `close`."""

    def __init__(self, settings: SharedSettings, ended: Callable[[SharedHandler], None]) -> None:
        """Start the handler in the background. `ended`: called once, when no further member can join."""
        self.settings, self.role = settings, settings.role
        self.is_over = False
        self._ended = ended
        self._members: dict[str, MemberHandler] = {}
        # The members of which the handler knows. One that has left stays here until the handler was told.
        self._told: dict[str, MemberHandler] = {}
        self._places = Places(settings.capacity.members, keeps_some=True)
        self._steps = MemberSteps()
        self._tasks = TaskSet[None]()
        self._host: HandlerHost | None = None
        self._cause: MemberHandler | None = None
        self._error: TreatyError | None = None
        self._is_outdated = self._rests = False
        self._has_begun = asyncio.Event()
        self.pipeline, self.timer = settings.pipeline, SharedTimer()
        self.calls = CallTable(self, prefix=f"{secrets.token_hex(4)}-")
        # A context of its own: the session outlives the connection that began it, and works for all networks.
        self._task = asyncio.create_task(self._run(), context=Context())

    @property
    def members(self) -> list[SharedMember]:
        """The members now, in the order in which they joined."""
        return [member.described for member in self._members.values()]

    # Called by members

    async def join(self, member: MemberHandler) -> None:
        """Add a member, and return when the handler knows it. Raises `TreatyError`; then it is no member."""
        if self.is_over:
            raise self._error or session_over()
        peer = member.described.peer
        if isinstance(peer, ProvedPeer):
            self._make_way(peer)
        elif not peer.did or peer.did in self._members:
            raise Refused(
                SessionCode.PEER,
                "This DID is in the shared session already." if peer.did else "A shared session has no members without a DID.",
                fix="Prove the DID, by end-to-end encryption or a signed request.",
            )
        try:
            # It waits for nothing, so no other connection of this DID joins in between, and the session does not end.
            member.place = await self._places.take(0)
        except TimeoutError as error:
            most = self.settings.capacity.members
            raise Unavailable(SessionCode.BUSY, f"The shared session has room for {most} members.", fix="Try later.") from error
        self._members[peer.did] = member
        await self._wait_for(member, self._tell_joined)

    async def received(self, member: MemberHandler, payload: bytes, stream: str, metadata: CallMetadata | None) -> None:
        """Give a message of a member to the handler. Raises `TreatyError` for a message that it did not get."""
        if self.is_member(member):
            await self._wait_for(member, partial(self._give, payload, stream, metadata))

    def is_member(self, member: MemberHandler) -> bool:
        """Return whether a connection is in the session."""
        return self._members.get(member.did) is member

    def is_readable_for(self, member: MemberHandler) -> bool:
        if self._host is None or not self.is_member(member):
            return True
        most = self.settings.capacity.functions
        return self.working_for(member, streams=False) < most and self._host.working(streams=False) < MAX_SHARED

    def working_for(self, member: MemberHandler, *, streams: bool) -> int:
        if self._host is None or not self.is_member(member):
            return 0
        return self._host.working(streams=streams, peer=member.described.peer)

    def leave(self, member: MemberHandler) -> None:
        """Remove a member; safe to repeat. The handler is told after all earlier events."""
        if self.is_member(member):
            del self._members[member.did]
            self._places.give_back(member.place)
            member.settle(None)
            self._steps.put(partial(self._tell_lost, member), member.place)
            self._end_if_outdated()

    def expel(self, member: MemberHandler, error: TreatyError) -> None:
        """Remove a member, and end its session by an error."""
        if self.is_member(member):
            self.leave(member)
            member.fail(error)

    # Called by the agent

    async def begun(self) -> None:
        """Wait until the handler has begun, or goes on. Raises the error of a session that has not."""
        await self._has_begun.wait()
        if self._error is not None:
            raise self._error

    def outdate(self) -> None:
        """End the session when its last member has left: further members join another one."""
        self._is_outdated = True
        self._end_if_outdated()

    async def close(self, *, rests: bool) -> None:
        """End the sessions of all members. Never raises.

        `rests`: the session goes on in the next process of this home, if it is kept. Otherwise the handler is told that it ends,
        and its last effects are performed.
        """
        self._rests = rests
        self._steps.put_last(self._rest if rests else self._say_goodbye)
        # Bounded: a step before this one may hang in a handler. After the last step functions are stopped, which has a time too.
        _, late = await asyncio.wait({self._task}, timeout=CANCELLING_TIME)
        if late and self.is_over:
            _, late = await asyncio.wait({self._task}, timeout=2 * CANCELLING_TIME)
        for task in late:
            task.cancel()
        await asyncio.wait({self._task})

    # The interface of a session to the handler's host

    @property
    def backlog(self) -> int:
        return sum(member.backlog for member in self._members.values())

    def post(self, step: Step) -> None:
        self._steps.put(step)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the steps."""
        self._tasks.start(work)

    def origin(self) -> CallOrigin:
        """Return the origin of calls of the member whose message is handled now; without one, of calls without a peer."""
        return self._cause.port.origin() if self._cause is not None else self.own_origin()

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        raise AssertionError("a shared session sends by send_to")

    async def send_to(self, effect: Send, operation: str, metadata: CallMetadata | None) -> None:
        """Send a message to a member. One that leaves meanwhile misses it, and one that cannot take it is dropped."""
        member = self._told.get(effect.peer)
        if member is None or not self.is_member(member):
            return  # it has left, and the handler is told next
        try:
            await member.send(effect, operation, metadata)
        except TreatyError as error:
            self.expel(member, error)
        except Exception:
            # A fault of one connection costs that member alone, of whatever kind it is.
            _log.exception("A message to %s failed", effect.peer)
            self.expel(member, Unavailable(SessionCode.INTERNAL, _INTERNAL))

    async def wait_writable(self) -> None:
        """Return at once: no member holds up the others. One that reads too slowly is dropped."""

    def item(self, call: str, value: Value) -> None:
        self.calls.item(call, value)

    def answer(self, call: str, outcome: Return | TreatyError, *, silent: bool = False) -> None:
        self.calls.answered(call, outcome, silent=silent)

    async def end(self, error: TreatyError | None) -> None:
        self.is_over, self._error = True, error

    # The interface of a session to the table of its calls

    @property
    def handler(self) -> HandlerHost | None:
        return self._host

    @property
    def phase(self) -> Phase:
        return Phase.RUNNING if self._host is not None and self._host.is_open else Phase.WAITING

    def own_origin(self) -> CallOrigin:
        return CallOrigin(protocol=self.settings.protocol, role=self.role.name)

    def time_limit(self, operation: str) -> float:
        declared, defaults = self.role.calls.get(operation), SessionTimeouts()
        return (declared.timeout if declared else defaults.operation) + defaults.answer

    def messages_sent(self) -> int:
        return 0  # it has no connection of its own

    def served_call(self) -> None:
        """Nothing follows: the members began their sessions, and propose the reports."""

    def replied(self) -> None:
        """No event is recorded: a shared session has no timeline."""

    def served(self, seconds: float, succeeded: bool) -> None:
        """Nothing follows from the time of a call."""

    # Steps

    async def _run(self) -> None:
        try:
            self.settings.room.take_up()
            self._host = await self.settings.start(self, self.send_to)
            await self._host.open()
            self._has_begun.set()
            await self.calls.issue()
            while not self.is_over:
                step = await self._steps.get()
                await step()
                self._after_step()
        except TreatyError as error:
            self._error = error
            _log.warning(
                "The shared session of %s as %s ended: %s (%s)", self.settings.protocol, self.role.name, error, error.code
            )
        except Exception:
            _log.exception("The shared session of %s failed", self.settings.protocol)
            self._error = Unavailable(SessionCode.INTERNAL, _INTERNAL)
        finally:
            await self._wind_up()

    async def _tell_joined(self, member: MemberHandler) -> None:
        assert self._host is not None
        # The turns of networks may have put the end of an earlier connection of this DID behind this step.
        if (previous := self._told.get(member.did)) is not None:
            await self._tell_lost(previous)
        # Before the event: its effects may send to the member.
        self._told[member.did] = member
        try:
            await self._host.joined(*member.described)
        except TreatyError:
            del self._told[member.did]
            raise

    async def _tell_lost(self, member: MemberHandler) -> None:
        if self._told.get(member.did) is member:
            assert self._host is not None
            del self._told[member.did]
            await self._host.peer_lost(member.did)

    async def _give(self, payload: bytes, stream: str, metadata: CallMetadata | None, member: MemberHandler) -> None:
        assert self._host is not None
        # The functions that the message leads to count for the network of its sender.
        turn = asker.set(member.place)
        self._cause = member
        try:
            await self._host.received(payload, stream=stream, metadata=metadata, peer=member.did)
        finally:
            self._cause = None
            asker.reset(turn)

    async def _rest(self) -> None:
        if self.settings.room.exists:
            await self.end(None)
        else:
            await self._say_goodbye()

    async def _say_goodbye(self) -> None:
        assert self._host is not None
        await self._host.say_goodbye()
        await self.end(None)

    async def _wait_for(self, member: MemberHandler, give: Callable[[MemberHandler], Awaitable[None]]) -> None:
        """Give the handler an event of a member as a step, and wait for it. Raise its error if it is the member's alone."""
        done = member.begin()

        async def step() -> None:
            if done.done():
                return  # the member has left, or its connection has ended
            try:
                await give(member)
            except TreatyError as error:
                if error.code not in MEMBER_FAULTS:
                    raise
                # First: `leave` settles the wait of a member that leaves by itself.
                if not done.done():
                    done.set_exception(error)
                self.leave(member)
            else:
                if not done.done():
                    done.set_result(None)

        self._steps.put(step, member.place)
        await done

    # Helpers

    def _make_way(self, peer: ProvedPeer) -> None:
        """Remove the member in the place of a DID for the agent that proved it. Only a proof can: whoever claims the DID would
        cut its owner off."""
        previous = self._members.get(peer.did)
        if previous is not None:
            self.expel(previous, Refused(SessionCode.PEER, "A later connection of the same DID took this one's place."))

    def _after_step(self) -> None:
        waiting = 0
        for member in self._members.values():
            member.note_step()
            waiting += member.backlog
        # After the step and not at each message: one event has at most half of it.
        while waiting > MAX_WAITING:
            slowest = max(self._members.values(), key=lambda member: member.backlog)
            waiting -= slowest.backlog
            self.expel(slowest, PeerUnavailable(SessionCode.SLOW_PEER, "The other side reads its messages too slowly."))

    def _end_if_outdated(self) -> None:
        if self._is_outdated and not self._members and not self.is_over:
            self._steps.put_last(self._say_goodbye)

    async def _wind_up(self) -> None:
        self.is_over = True
        error = self._error
        # Before another session may begin, which takes the file up.
        if self._has_begun.is_set() and not self._rests and (error is None or error.code not in _PASSING):
            self.settings.room.remove()
        self.settings.room.release()
        self._has_begun.set()
        self._ended(self)
        self.calls.end(error or session_over())
        members, self._members = list(self._members.values()), {}
        for member in members:
            self._places.give_back(member.place)
            member.settle(error or session_over())
            member.port.post(partial(member.port.end, error))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCELLING_TIME)
        if self._host is not None:
            with suppress(TreatyError):
                await self._host.close()


class MemberSteps:
    """The steps that wait, in a line for each network of members and one for this side. The lines take turns.

    Unbounded, because its producers are bounded: one message of each member, capped functions, calls that wait.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[Step]] = {}
        self._last: tuple[int, Step] | None = None
        self._added = asyncio.Event()

    def put(self, step: Step, network: str = "") -> None:
        """Add a step to a line; "" is this side's."""
        self._lines.setdefault(network, deque()).append(step)
        self._added.set()

    def put_last(self, step: Step) -> None:
        """Add the step that ends the session. It comes after as many others as wait now, so that a flood cannot hold it up."""
        self._last = self._last or (sum(map(len, self._lines.values())), step)
        self._added.set()

    async def get(self) -> Step:
        """Wait for a step, and return the first one of the line whose turn it is."""
        while True:
            if self._last is not None:
                ahead, last = self._last
                if not (ahead and self._lines):
                    return last
                self._last = ahead - 1, last
            if self._lines:
                network = next(iter(self._lines))
                line = self._lines.pop(network)
                step = line.popleft()
                if line:
                    self._lines[network] = line  # behind the others
                return step
            self._added.clear()
            await self._added.wait()


class SharedMember(NamedTuple):
    """A member of a shared session. `peer`: a `ProvedPeer` if it proved its DID. `role`: its role."""

    peer: ProvedPeer | ClaimedPeer
    role: str


class Membership(Protocol):
    """The functions that a member uses from its shared session. `role`: this side's."""

    role: Role

    async def join(self, member: MemberHandler) -> None:
        """Add a member, and return when the handler knows it. Raises `TreatyError`; then it is no member."""

    async def received(self, member: MemberHandler, payload: bytes, stream: str, metadata: CallMetadata | None) -> None:
        """Give a message of a member to the handler. Raises `TreatyError` for a message that it did not get."""

    def is_readable_for(self, member: MemberHandler) -> bool:
        """Return whether there is room for the functions of another message of a member."""

    def working_for(self, member: MemberHandler, *, streams: bool) -> int:
        """Return the number of functions that messages of a member led to. `streams`: as in `HostedHandler.is_working`."""

    def leave(self, member: MemberHandler) -> None:
        """Remove a member; safe to repeat. The handler is told after all earlier events."""


class MemberHandler:
    """The part of one connection in a shared session. Implements `HostedHandler`. It never gives effects of its own.

    `port`: the connection's session. `described`: the member; known when it joins.
    """

    def __init__(
        self,
        shared: Membership,
        port: HandlerPort,
        peer: PeerIdentity,
        role: str,
        *,
        send_named: SendNamed | None,
        ended: Callable[[], None],
    ) -> None:
        """Join nothing yet. `role`: the peer's. `send_named`: as in `HandlerContext`. `ended`: called once, at the end."""
        self.role, self.port = shared.role, port
        self.is_open = False
        self.described = SharedMember(peer, role)
        self.place = ""
        self._shared, self._send_named, self._ended = shared, send_named, ended
        self._waiting: asyncio.Future[None] | None = None
        self._is_closed = self._is_awaited = self._is_held = False

    @property
    def is_readable(self) -> bool:
        # The connection reads on when there is room, so it is told.
        self._is_held = not self._shared.is_readable_for(self)
        return not self._is_held

    @property
    def did(self) -> str:
        """The member's DID, which is unique in the session."""
        return self.described.peer.did

    @property
    def backlog(self) -> int:
        """The bytes that wait to be sent to the member."""
        return self.port.backlog

    def is_working(self, *, streams: bool) -> bool:
        # The connection may end when this is over, so it is told.
        self._is_awaited = self._shared.working_for(self, streams=streams) > 0
        return self._is_awaited

    async def open(self) -> None:
        """Join. Raises `TreatyError`."""
        self.described = self.described._replace(peer=self.port.origin().peer)
        await self._shared.join(self)
        self.is_open = True

    async def renegotiated(self, parameters: Mapping[str, Any]) -> None:
        """Do nothing: a shared session is not told of the parameters of one member."""

    async def received(self, payload: bytes, *, stream: str = "", metadata: CallMetadata | None = None) -> None:
        await self._shared.received(self, payload, stream, metadata)

    async def call(
        self, call: str, operation: str, arguments: dict[str, Any], *, early: bool, metadata: CallMetadata | None = None
    ) -> None:
        """Refuse the call: the session is not this connection's alone."""
        fault = Refused(
            SessionCode.OPERATION,
            f"The role {self.role.name} is shared, so a call goes to its one session.",
            fix=f"Call it there: await agent.shared(URI).call({operation!r}, …).",
        )
        self.port.answer(call, fault)

    async def requested(self, call: str, operation: str, count: int, *, early: bool) -> None:
        pass

    async def cancelled(self, call: str, operation: str, *, early: bool) -> None:
        pass

    async def peer_lost(self) -> None:
        self._shared.leave(self)

    async def say_goodbye(self) -> None:
        self._shared.leave(self)

    async def retire(self) -> None:
        self._shared.leave(self)

    async def close(self) -> None:
        self._shared.leave(self)
        if not self._is_closed:
            self._is_closed = True
            self._ended()

    # Called by the shared session

    async def send(self, effect: Send, operation: str, metadata: CallMetadata | None) -> None:
        """Queue a message to the peer. Raises `TreatyError`, such as `session.slow-peer`."""
        if self._send_named is not None:
            await self._send_named(effect.data, effect.stream or operation, metadata)
        elif effect.stream:
            raise Refused(SessionCode.PROFILE, "This handler uses several streams, but a connection has only one.")
        else:
            await self.port.send(effect.data, early=False, metadata=metadata)

    def begin(self) -> asyncio.Future[None]:
        """Return the future of an event of this member. There is one at a time: the connection waits for it."""
        self._waiting = asyncio.get_running_loop().create_future()
        return self._waiting

    def settle(self, error: TreatyError | None) -> None:
        """End the wait for an event that will not be given."""
        if self._waiting is not None and not self._waiting.done():
            if error is None:
                self._waiting.set_result(None)
            else:
                self._waiting.set_exception(error)

    def fail(self, error: TreatyError) -> None:
        """End the connection's session by an error."""

        async def step() -> None:
            raise error

        self.port.post(step)

    def note_step(self) -> None:
        """Let the connection decide again whether it may read or end, if it waits for that."""
        # A stream may go on: the connection knows how long it waits for one.
        may_end = self._is_awaited and not self._shared.working_for(self, streams=False)
        if may_end or (self._is_held and self._shared.is_readable_for(self)):
            self._is_awaited = self._is_held = False
            self.port.post(_nothing)


async def _nothing() -> None:
    """Do nothing; after this step the connection decides again."""
