"""Define the session that an application uses, the same under both profiles."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed
from treaty_anp.trace_context import TraceContext
from treaty_consensus.errors import Refused, TreatyError
from treaty_io.codes import SessionCode
from treaty_io.identity import ClaimedPeer, PeerIdentity, ProvedPeer

from .activity import CallCounts
from .agreements import Profile
from .calls import NO_ARGUMENTS, Arguments, CallTable
from .interfaces import SessionEvent, SpokenProtocol


@dataclass(frozen=True)
class ReportParties:
    """The parties of a report on a session: the keys of both sides as DID URLs, and the negotiation id that both compute."""

    own_key: str
    peer_key: str
    nid: str


class SessionBackend(Protocol):
    """A running session of one profile. `timeline`: its events so far; `messages_received`: application messages of the peer."""

    calls: CallTable
    timeline: list[SessionEvent]
    messages_received: int

    @property
    def profile(self) -> Profile:
        """The profile that the connection speaks."""

    @property
    def is_initiator(self) -> bool:
        """Whether this side connected."""

    @property
    def id(self) -> str:
        """The session's id on the wire."""

    @property
    def peer(self) -> PeerIdentity:
        """The other side; `UNNAMED` until it is known."""

    @property
    def spoken(self) -> SpokenProtocol | None:
        """The protocol, once it is known."""

    @property
    def protocol_id(self) -> str:
        """The protocol's id in the flow profile, else ""."""

    @property
    def document(self) -> str:
        """The text of a negotiated protocol, else ""."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The agreed parameters of the session."""

    @property
    def expires_at(self) -> int:
        """The agreed end of the session, in milliseconds since 1970; 0 without one."""

    @property
    def role(self) -> str:
        """This side's role in the protocol, "" until its handler runs."""

    @property
    def resumed(self) -> bool:
        """Whether a remembered agreement was confirmed."""

    @property
    def is_running(self) -> bool:
        """Whether both sides are ready and the session is open."""

    @property
    def can_report(self) -> bool:
        """Whether both sides co-sign reports."""

    def transcript(self) -> bytes:
        """Return the transcript so far."""

    def check_open(self) -> None:
        """Raise the error that ended the session, if it has ended."""

    def record_event(self, name: str) -> None:
        """Add an event to the timeline, and report it to the observer."""

    async def report_parties(self) -> ReportParties:
        """Return the parties of a report. Raises `Refused` (`report.*`) if the session lacks something that a report needs."""

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        """Ask the peer to co-sign a report, and wait for its answer. One at a time. Raises `TreatyError`."""

    async def say(self, text: str) -> None:
        """See `Session.say`."""

    def heard(self) -> AsyncIterator[str]:
        """See `Session.heard`."""

    async def ask(self, question: str) -> str:
        """See `Session.ask`."""

    async def report_error(self, description: str) -> None:
        """See `Session.report_error`."""

    async def renegotiate(self, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        """See `Session.renegotiate`."""

    def retire(self) -> None:
        """End the session for its application: calls fail from now on, and the handler gives its worker back. The connection
        stays open for a report, until `close`. Safe to repeat."""

    async def close(self) -> None:
        """See `Session.close`."""


_Item_co = TypeVar("_Item_co", covariant=True)


class ItemStream(Generic[_Item_co]):
    """The items of a stream, made by `Session.stream`; typed stubs name the type of an item. One task at a time iterates over it.

    The call begins with the first item that is asked for. It is cancelled, at the other side too, by `aclose`, by the end of an
    `async with` block, by the cancellation of the task that waits for an item, and when the object is no longer used.
    """

    def __init__(self, items: AsyncGenerator[_Item_co, None]) -> None:
        self._items = items

    def __aiter__(self) -> ItemStream[_Item_co]:
        return self

    async def __anext__(self) -> _Item_co:
        """Return the next item. Raises the errors of `Session.stream`; then the stream is over."""
        return await anext(self._items)

    async def aclose(self) -> None:
        """Leave the stream. Safe to repeat."""
        await self._items.aclose()

    async def __aenter__(self) -> ItemStream[_Item_co]:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


class Session:
    """A session with another agent: one of `Agent.connect`, or one that the other agent opened (`Agent.on_session`). For one
    event loop; several calls may run at once."""

    def __init__(self, backend: SessionBackend, counts: CallCounts) -> None:
        """Wrap a backend, which runs in a task of its own. `counts`: of the calls."""
        self._backend, self._counts = backend, counts

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def profile(self) -> Profile:
        """The profile: `hello` or `flow`. Most applications do not need it."""
        return self._backend.profile

    @property
    def id(self) -> str:
        """The session's id on the wire."""
        return self._backend.id

    @property
    def peer(self) -> ProvedPeer | ClaimedPeer:
        """The other agent. It is a `ProvedPeer` if it proved its DID: by end-to-end encryption, an HTTP signature, or a signature
        in each message (flow profile). The plain Hello proves no DID: its sender is a `ClaimedPeer`, of the DID "" before its
        first message."""
        return self._backend.peer

    @property
    def protocol(self) -> str:
        """The URI of the protocol, `urn:treaty:negotiated:HASH` for a negotiated one; "" until it is known."""
        spoken = self._backend.spoken
        return spoken.uri if spoken else ""

    @property
    def protocol_id(self) -> str:
        """The id `anp:protocol:NAME:VERSION` of the protocol in the flow profile, else ""."""
        return self._backend.protocol_id

    @property
    def role(self) -> str:
        """This side's role in the protocol, such as `requester`; "" until the handler of the protocol runs."""
        return self._backend.role

    @property
    def document(self) -> str:
        """The text of a negotiated protocol, else ""."""
        return self._backend.document

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters that both sides agreed on; empty under the Hello profile."""
        return self._backend.parameters

    @property
    def expires_at(self) -> int:
        """The agreed end of the session, in milliseconds since 1970; 0 under the Hello profile, which has none."""
        return self._backend.expires_at

    @property
    def resumed(self) -> bool:
        """Whether the peer confirmed a remembered agreement, so that nothing was negotiated or fetched."""
        return self._backend.resumed

    @property
    def is_over(self) -> bool:
        """Whether the session takes no further calls. Calls under way may still be answered."""
        if self._backend.calls.is_refusing:
            return True
        try:
            self._backend.check_open()
        except TreatyError:
            return True
        return False

    @property
    def error(self) -> TreatyError | None:
        """The error that ended the session, with which its calls fail; None before the end. `session.closed` after an end
        without a reason."""
        return self._backend.calls.ended_by

    async def wait_ended(self) -> TreatyError:
        """Wait for the end of the session, and return its `error`. Any number of tasks may wait."""
        return await self._backend.calls.wait_ended()

    def has_failed_with(self, error: TreatyError) -> bool:
        """Return whether a call of this session ended with this error, and not the middleware around it."""
        return self._backend.calls.has_failed_with(error)

    @property
    def timeline(self) -> list[SessionEvent]:
        """The events so far, with their times."""
        return list(self._backend.timeline)

    @property
    def transcript(self) -> bytes:
        """The transcript so far, which `treaty_anp.transcript` reads and replays; b"" if the agent records nothing."""
        return self._backend.transcript()

    async def call(
        self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any
    ) -> Any:
        """Call an operation of the other side. Return its value, a JSON value by the operation's schema.

        The arguments are those of `dict`: names, or a mapping where a name is none of Python or is `within`. `within`: fewer
        seconds than the operation's own time.

        Raises `OperationError` when the operation fails. Its `status` and message come from the other side. 503: the code changed
        before the answer.

        An operation that is an event returns None when its message is sent. A call that is cancelled, or over its time, is given
        up at the other side too, if the protocol has a message for that.

        Raises `OutcomeUnknown` (`session.outcome-unknown`) when no answer came within the time, or before the end of the session,
        and the session's error when it ended before the call was sent. Raises `Malformed` (`operation.arguments`,
        `session.operation` for a stream) or `Refused` (`session.operation`) when the call does not fit the protocol, and
        `Unavailable` (`session.busy`) when there is no room for it now, (`session.late`) when its time was over before. It was
        not sent then, and the session goes on.
        """
        return await self.attempt(operation, dict(arguments, **named), within=within, limited=within is not None)

    async def attempt(
        self,
        operation: str,
        arguments: dict[str, Any],
        *,
        within: float | None = None,
        limited: bool = False,
        trace: TraceContext | None = None,
    ) -> Any:
        """Make one attempt of a call, for a `Peer`. `trace`: its span, by default a new one. See `CallTable.make`."""
        self._backend.check_open()
        with self._counts.counted():
            return await self._backend.calls.make(operation, arguments, within=within, limited=limited, trace=trace)

    def stream(
        self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any
    ) -> ItemStream[Any]:
        """Call an operation of the other side that is a stream, and return its items, JSON values by the operation's schema.

            async with session.stream("find", text="lamp") as items:
                async for item in items:
                    ...

        The other side makes only as many items as are taken here, and the operation's `window` ahead. The arguments are given as
        in `call`. `within`: fewer seconds until the first item than the operation's own time.

        The iteration raises the errors of `call`; `OutcomeUnknown` when the other side was silent for the operation's time
        although it owed an item. Raises `Malformed` (`session.operation`) for an operation that is no stream, and `TooLarge`
        (`session.outbox-full`) when the items that wait hold too many bytes.
        """
        return self.attempt_stream(operation, dict(arguments, **named), within=within, limited=within is not None)

    def attempt_stream(
        self, operation: str, arguments: dict[str, Any], *, within: float | None = None, limited: bool = False
    ) -> ItemStream[Any]:
        """Make one attempt of a stream, for a `Peer`. The arguments as in `CallTable.stream`."""
        self._backend.check_open()
        return ItemStream(self._items(operation, arguments, within, limited))

    async def _items(
        self, operation: str, arguments: dict[str, Any], within: float | None, limited: bool
    ) -> AsyncGenerator[Any, None]:
        with self._counts.counted():
            calls = self._backend.calls
            async with aclosing(calls.stream(operation, arguments, within=within, limited=limited)) as items:
                async for item in items:
                    yield item

    async def say(self, text: str) -> None:
        """Send a text in natural language; it may be Markdown. Wait while the peer reads slowly.

        Raises `Refused` (`session.profile` unless both sides converse, and under the flow profile), and the
        session's error when it has ended.
        """
        await self._backend.say(text)

    def heard(self) -> AsyncIterator[str]:
        """Yield the peer's texts in natural language, until the session ends. While 16 texts wait, nothing more is read from the
        peer. Raises `Refused` (`session.profile`) under the flow profile."""
        return self._backend.heard()

    async def ask(self, question: str) -> str:
        """Ask the other side's negotiator about the protocol, and return its answer.

        Raises `Refused` (`session.profile` unless both sides negotiate, and under the flow profile), and the
        session's error when it ends first. A late answer ends the session.
        """
        return await self._backend.ask(question)

    async def report_error(self, description: str) -> None:
        """Report a fault of the other side's messages, and wait until its code is repaired. Open calls are then issued again.
        A call that the peer answers outside of the protocol is reported automatically, once.

        Raises `Refused`: `session.profile` unless both sides negotiate, and under the flow profile; `negotiation.fault` with
        the peer's reason. Raises the session's error when it ends first.
        """
        await self._backend.report_error(description)

    async def renegotiate(self, parameters: Mapping[str, Any] | None = None, *, protocol: str = "") -> None:
        """Change the session's parameters, or its protocol to another registered id. Without parameters, extend its duration.
        Return when the change is effective; calls continue meanwhile. Only the initiator may call this.

        Raises `Refused` (`session.profile`) under the Hello profile. Raises `TreatyError` when the change fails; an open session
        then continues without the change.
        """
        await self._backend.renegotiate(parameters, protocol)

    async def close(self) -> None:
        """End the session, and wait until its handler is closed. The last session of a connection also waits for the connection.
        Safe to repeat."""
        await self._backend.close()


def not_in_profile(what: str, profile: str, other: str) -> Refused:
    """Return the error for a function that the profile does not have."""
    return Refused(SessionCode.PROFILE, f"The {profile} profile has no {what}.", fix=f"Connect by the {other} profile.")
