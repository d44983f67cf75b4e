"""Check the events into a session and the effects out of it against the manifest.

`SessionRules` follows one session. A wrong event (arguments or a result that break
their schema) is an error of the local application. It does not reach the handler, and the session continues. A wrong effect is an
error of the handler: `Refused` with a code `handler.failed`. Then none of the event's effects may happen, and the caller must
kill the worker, because the handler's state assumes that they happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from treaty_consensus.errors import Refused, TooLarge, TreatyError, Unavailable
from treaty_consensus.handler import Operation, OperationKind, Role
from treaty_consensus.handler.manifest import MAX_WINDOW
from treaty_consensus.printable import printable
from treaty_handler import (
    Audit,
    Call,
    Cancel,
    Cancelled,
    Close,
    Effect,
    Emit,
    End,
    Event,
    Invoke,
    Item,
    Multicast,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
    Renegotiated,
    Request,
    Requested,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
)
from treaty_io.codes import ClientHandlerCode, SessionCode

from .kept_session import KeptSession
from .operation_schemas import MAX_FAILURE_TEXT, Operations
from .schemas import ValidationBudget

MAX_EFFECTS = 4_096
MAX_NOTES = 64
"""The cap of `Audit` effects of one event; each writes one line to the host's log."""
# The caps of a session: its pending calls, timers and stored values are memory of the host, and a handler chooses their number.
MAX_MESSAGE = 1024 * 1024
MAX_COPIES = 32 * 1024 * 1024
"""Bytes of all messages of one event, each counted for each peer. It is half of those that may wait for all members."""
MAX_PENDING = 1_024
MAX_TIMERS = 1_024
# A shorter timer would let a handler keep the host's loop busy by setting it again and again.
MIN_SECONDS, MAX_SECONDS = 0.01, 30 * 86_400.0
MAX_STORED = 1024 * 1024
MAX_STORED_KEYS = 1_024
MAX_SNAPSHOT = 64 * 1024
"""Bytes of the snapshot of a session without a worker."""
MAX_AUDIT_TEXT = 1_000

_ESCAPING = 20
"""The cost of escaping one character of a text that is not printable, in units of a `ValidationBudget`."""

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(slots=True)
class _Pending:
    """A call or an invoke without an answer. `credit`: the items of a stream that were asked for and did not come yet."""

    operation: Operation
    credit: int = 0

    @property
    def is_stream(self) -> bool:
        return self.operation.kind is OperationKind.STREAM


class SessionRules:
    """The rules of one session, and its pending calls, invokes and timers. `peers`: the DIDs it may receive from and send to; in
    a shared role they are those that joined instead."""

    def __init__(self, role: Role, operations: Operations, peers: Iterable[str]) -> None:
        self.role = role
        self.peers = set() if role.is_shared else set(peers)
        self.ended = False
        self._operations = operations
        self._opened = False
        self._calls: dict[str, _Pending] = {}
        self._invokes: dict[str, _Pending] = {}
        self._timers: set[str] = set()
        self._stored: dict[str, int] = {}

    def copy(self) -> SessionRules:
        """Return the rules as they are now, to go back to after an event that did not happen."""
        copied = SessionRules(self.role, self._operations, ())
        copied.peers, copied.ended, copied._opened = set(self.peers), self.ended, self._opened
        copied._calls = {call: replace(pending) for call, pending in self._calls.items()}
        copied._invokes = {call: replace(pending) for call, pending in self._invokes.items()}
        copied._timers, copied._stored = set(self._timers), dict(self._stored)
        return copied

    def keep(self, seed: str, snapshot: bytes) -> KeptSession:
        """Return the session with these rules. `seed`, `snapshot`: of its handler."""
        calls, invokes = ({id: pending.operation.name for id, pending in of.items()} for of in (self._calls, self._invokes))
        return KeptSession(seed, snapshot, sorted(self.peers), calls, invokes)

    def restore(self, kept: KeptSession) -> None:
        """Go on from the rules of a kept session. Its streams have no credit: their callers and functions are gone. The sizes of
        stored values are counted anew; the store bounds them too."""
        self._opened, self.peers, self._timers = True, set(kept.peers), set(kept.timers)
        self._calls = {id: _Pending(self.role.calls[name]) for id, name in kept.calls.items()}
        self._invokes = {id: _Pending(self.role.invokes[name]) for id, name in kept.invokes.items()}

    @property
    def pending_calls(self) -> tuple[str, ...]:
        """Return the ids of calls without a `Return`; when the session has ended, these calls have failed."""
        return tuple(self._calls)

    @property
    def open_invokes(self) -> int:
        """Return how many invoked functions have no `Result`."""
        return len(self._invokes)

    @property
    def has_calls(self) -> bool:
        """Return whether a call has no `Return`, or an invoked function no `Result`."""
        return bool(self._calls or self._invokes)

    def enter(self, event: Event) -> bool:
        """Check an event before the handler gets it. Return False for an outdated event, which must not be delivered.

        Raises `Malformed` (`operation.arguments`, `operation.result`), `TooLarge` (`session.message`), `Unavailable`
        (`session.busy`), `Refused` (`session.…`); after each of these the session is unchanged.
        Raises `ValueError` for a mistake of the host, such as a second `Opened`.
        """
        if self.ended:
            raise Refused(SessionCode.ENDED, "The session is over.", fix="Connect again.")
        if isinstance(event, Opened) == self._opened:
            raise ValueError("a session sees Opened first, and once")
        match event:
            case Opened(stored=stored):
                self._stored = {key: len(value) for key, value in stored.items()}
                self._opened = True
            case Renegotiated():
                # A handler of an earlier interface does not know this event.
                return self._operations.interface >= 4
            case Received(peer=peer, data=data, stream=stream):
                self._check_peer(peer)
                if len(data) > MAX_MESSAGE or (stream and not _NAME.fullmatch(stream)):
                    raise TooLarge(
                        SessionCode.MESSAGE, f"A message has at most {MAX_MESSAGE} bytes, on a stream with a plain name."
                    )
            case Call():
                self._enter_call(event)
            case Requested(call=call, count=count):
                return self._enter_requested(call, count)
            case Cancelled(call=call):
                # A handler of interface 1 does not know this event. Its call stays pending, and the host drops the answer.
                if self._operations.interface < 2:
                    return False
                return self._calls.pop(call, None) is not None  # else the answer came first
            case Result(call=call, value=value, error=error):
                # Checked before the call is forgotten: after a bad result the application can answer again.
                self._operations.check_answer(self._invoked(call).operation, value, error, ValidationBudget())
                del self._invokes[call]
            case Item(call=call, value=value):
                pending = self._invoked(call)
                if pending.credit < 1:
                    raise ValueError(f"no item of {call!r} is asked for")
                self._operations.check_value(pending.operation, value, ValidationBudget())
                pending.credit -= 1
            case Timer(name=name):
                # The timer fired while the event that cancelled it was under way. The handler must not see it.
                if name not in self._timers:
                    return False
                self._timers.remove(name)
            case PeerJoined(peer=peer):
                if not self.role.is_shared or peer in self.peers:
                    raise ValueError(f"{peer!r} is in the session already, or the role {self.role.name} is not shared")
                self.peers.add(peer)
            case PeerLost(peer=peer):
                self._check_peer(peer)
                if self.role.is_shared:
                    self.peers.remove(peer)
            case Close():
                pass
        return True

    def leave(self, event: Event, effects: Sequence[Effect]) -> list[Effect]:
        """Check the effects of an event. Return them with printable texts.

        All values in the effects share one `ValidationBudget`. Raises `Refused` (`handler.failed`), also beyond
        the budget.
        """
        if len(effects) > MAX_EFFECTS:
            raise _refused(f"asked for {len(effects)} effects at once; {MAX_EFFECTS} is the most")
        if len(effects) > MAX_NOTES and sum(1 for effect in effects if type(effect) is Audit) > MAX_NOTES:
            raise _refused(f"wrote more than {MAX_NOTES} notes at once")
        budget = ValidationBudget()  # one for all effects: their checks block the host's event loop together
        admitted: list[Effect] = []
        dropped = copies = 0
        for requested in effects:
            # In order: an effect before End counts, one after it is refused.
            if self.ended:
                raise _refused("asked for something after End")
            effect = requested
            if isinstance(requested, Send | Multicast):
                reached = self._reached(requested)
                if reached is not requested:
                    dropped += _width(requested) - _width(reached)
                if reached is None:
                    continue
                effect = reached
                copies += len(reached.data) * _width(reached)
                if copies > MAX_COPIES:
                    raise _refused(f"sent more than {MAX_COPIES} bytes at once, all copies counted")
            admitted.append(self._leave_one(effect, budget))
        if dropped:
            # One note for all, and first, because End is last.
            admitted.insert(0, Audit(text=f"Messages to agents that are not in the session were dropped: {dropped}."))
        if isinstance(event, Close):
            self.ended = True
        return admitted

    def _enter_call(self, event: Call) -> None:
        operation = self.role.calls.get(event.operation)
        if operation is None:
            raise Refused(
                SessionCode.OPERATION,
                f"The role {self.role.name} has no operation {printable(event.operation, 80)}.",
                fix=f"It has: {', '.join(self.role.calls) or 'none'}.",
            )
        if event.call in self._calls or not _NAME.fullmatch(event.call):
            raise ValueError(f"call {event.call!r} is pending already, or no plain name")
        if len(self._calls) >= MAX_PENDING:
            raise Unavailable(SessionCode.BUSY, f"{MAX_PENDING} calls are waiting for an answer already.", fix="Call later.")
        self._operations.check_arguments(operation, event.arguments, ValidationBudget())
        # After the checks, so that a refused call leaves no trace.
        self._calls[event.call] = _Pending(operation)

    def _enter_requested(self, call: str, count: int) -> bool:
        pending = self._calls.get(call)
        if pending is None:
            return False  # the stream ended while the application asked for more
        if not pending.is_stream or count < 1 or pending.credit + count > MAX_WINDOW:
            raise ValueError(f"{count} items of call {call!r} cannot be asked for")
        pending.credit += count
        return True

    def _invoked(self, call: str) -> _Pending:
        if call not in self._invokes:
            raise ValueError(f"no Invoke {call!r} is pending")
        return self._invokes[call]

    def _reached(self, effect: Send | Multicast) -> Send | Multicast | None:
        """Return a message with the peers that are in the session, or None. Raises `Refused` for another of a role that is not
        shared: a handler must not use the agent to reach third parties."""
        if self.role.is_shared:
            # Refused, it would end the session of all others, and a peer may leave at any moment.
            if isinstance(effect, Send):
                return effect if effect.peer in self.peers else None
            reachable = tuple(peer for peer in effect.peers if peer in self.peers)
            return replace(effect, peers=reachable) if reachable else None
        if isinstance(effect, Multicast):
            raise _refused(f"sent to several peers; the role {self.role.name} is not shared")
        if effect.peer not in self.peers:
            raise _refused(f"sent to {printable(effect.peer, 80)}, which is not in this session")
        return effect

    def _leave_one(self, effect: Effect, budget: ValidationBudget) -> Effect:
        match effect:
            case Send(data=data, stream=stream) | Multicast(data=data, stream=stream):
                if len(data) > MAX_MESSAGE or (stream and not _NAME.fullmatch(stream)):
                    raise _refused(
                        f"sent more than {MAX_MESSAGE} bytes, or on a stream without a plain name",
                    )
            case Invoke():
                self._leave_invoke(effect, budget)
            case Emit():
                self._leave_emit(effect, budget)
            case Request() | Cancel():
                self._leave_control(effect)
            case Return():
                return self._leave_return(effect, budget)
            case SetTimer():
                self._leave_timer(effect)
            case Persist():
                self._leave_persist(effect)
            case End():
                self.ended = True
            case Audit(text=text):
                if len(text) > MAX_AUDIT_TEXT:
                    raise _refused(f"wrote a note of {len(text)} characters; {MAX_AUDIT_TEXT} is the most")
                # Control characters could forge lines of the log or steer a terminal.
                return Audit(text=printable(text, MAX_AUDIT_TEXT))
        return effect

    def _leave_invoke(self, effect: Invoke, budget: ValidationBudget) -> None:
        operation = self.role.invokes.get(effect.operation)
        if operation is None:
            raise _refused(
                f"invoked {printable(effect.operation, 80)}, which the role {self.role.name} may not invoke",
            )
        if effect.call in self._invokes or not _NAME.fullmatch(effect.call) or len(self._invokes) >= MAX_PENDING:
            raise _refused(
                "invoked under an id that is pending or is no plain name, or has too many pending calls",
            )
        try:
            self._operations.check_arguments(operation, effect.arguments, budget)
        except TreatyError as error:
            if budget.exhausted:
                raise _too_costly(error) from error
            raise _refused(f"invoked {operation.name} with arguments that break its schema") from error
        self._invokes[effect.call] = _Pending(operation)

    def _leave_control(self, effect: Request | Cancel) -> None:
        # Else a package that claims interface 1 would fail on the hosts that have only that.
        if self._operations.interface < 2:
            raise _refused("used an effect of interface 2; its manifest names interface 1")
        pending = self._invokes.get(effect.call)
        if pending is None:
            raise _refused("requested items of an invoke, or cancelled one, that is not pending")
        if isinstance(effect, Cancel):
            del self._invokes[effect.call]
            return
        if not pending.is_stream:
            raise _refused(f"requested items of {pending.operation.name}, which is no stream")
        # The function may have made that many items before the peer takes one.
        if effect.count < 1 or pending.credit + effect.count > MAX_WINDOW:
            raise _refused(f"requested no item, or had more than {MAX_WINDOW} items outstanding")
        pending.credit += effect.count

    def _leave_emit(self, effect: Emit, budget: ValidationBudget) -> None:
        pending = self._calls.get(effect.call)
        if pending is None or not pending.is_stream:
            raise _refused("emitted an item of a call that is not pending, or no stream")
        if pending.credit < 1:
            raise _refused("emitted more items than the application asked for")
        pending.credit -= 1
        name = pending.operation.name
        try:
            self._operations.check_value(pending.operation, effect.value, budget)
        except TreatyError as error:
            if budget.exhausted:
                raise _too_costly(error) from error
            raise _refused(f"emitted an item of {name} that breaks its schema: {error.message}") from error

    def _leave_return(self, effect: Return, budget: ValidationBudget) -> Return:
        # Taken out first: one call has one return.
        pending = self._calls.pop(effect.call, None)
        if pending is None:
            raise _refused("returned to a call that is not pending")
        operation = pending.operation
        try:
            self._operations.check_answer(operation, effect.value, effect.error, budget)
        except TreatyError as error:
            if budget.exhausted:
                raise _too_costly(error) from error
            raise _refused(f"returned a result of {operation.name} that breaks its schema: {error.message}") from error
        if effect.error is None:
            return effect
        message = effect.error.message
        # Escaping takes longer than checking, and a handler chooses the text.
        if not message.isprintable() and not budget.take_checks(_ESCAPING * len(message)):
            raise _refused("returned too many errors at once whose messages are not printable")
        return replace(effect, error=replace(effect.error, message=printable(message, MAX_FAILURE_TEXT)))

    def _leave_timer(self, effect: SetTimer) -> None:
        if effect.seconds is None:
            self._timers.discard(effect.name)
            return
        # `not <=` instead of `>`: so that a NaN is refused too.
        if not MIN_SECONDS <= effect.seconds <= MAX_SECONDS or not _NAME.fullmatch(effect.name):
            raise _refused("set a timer without a plain name, or not between 10 ms and 30 days")
        # Counted after adding, because setting a timer again replaces it. After a refusal the session is over, so nothing is
        # undone.
        self._timers.add(effect.name)
        if len(self._timers) > MAX_TIMERS:
            raise _refused(f"set more than {MAX_TIMERS} timers")

    def _leave_persist(self, effect: Persist) -> None:
        self._stored.pop(effect.key, None)
        if effect.value is None:
            return
        self._stored[effect.key] = len(effect.value)
        if not _NAME.fullmatch(effect.key) or len(self._stored) > MAX_STORED_KEYS or sum(self._stored.values()) > MAX_STORED:
            raise _refused(f"kept more than {MAX_STORED} bytes or {MAX_STORED_KEYS} keys, or an odd key")

    def _check_peer(self, peer: str) -> None:
        if peer not in self.peers:
            fix = 'It has not joined: a vector begins with {"peerjoined": …} of each member.' if self.role.is_shared else ""
            raise Refused(SessionCode.PEER, f"{printable(peer, 80)} is not in this session.", fix=fix)


def _width(effect: Effect | None) -> int:
    """Return the number of peers that an effect sends to."""
    return len(effect.peers) if isinstance(effect, Multicast) else int(isinstance(effect, Send))


def _refused(what: str) -> Refused:
    return Refused(ClientHandlerCode.FAILED, f"The handler {what}.")


def _too_costly(error: TreatyError) -> Refused:
    return _refused(f"asked for effects whose values cost too much to check: {error.message}")
