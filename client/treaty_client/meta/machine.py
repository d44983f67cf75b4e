"""The state machine of the Hello profile, the same for both sides: no I/O, no clock, no randomness.

    state        what it waits for                                        seconds   goes to
    HELLO        the other side's Hello                                   10        NEGOTIATING, AGREED, RUNNING, REJECTED
    NEGOTIATING  a proposal or the answer to one; this side's decision    60        AGREED, REJECTED
    AGREED       both codeGeneration messages                             15        TESTING, RUNNING
    TESTING      test cases, then their passing on this side              60        RUNNING, AGREED, REJECTED
    RUNNING      application messages                                     600       CLOSED, AGREED, TESTING
    CLOSED       –  the session was running and is over
    REJECTED     –  no protocol in common, no agreement, or no more messages to reach one
    ERROR        –  somebody broke a rule, the code could not be made, or the connection was lost too early
    TIMEOUT      –  a deadline passed

HELLO goes to RUNNING when a hash is confirmed; TESTING and RUNNING go back to AGREED when an error is to be mended. A destination
that is RUNNING goes back to TESTING when the source proposes test cases.

Whoever drives it passes in what happens and the time (seconds, any monotonic clock), performs the returned actions in their
order, and calls `tick` at `deadline`. Foreign input never raises; it ends the machine, after a last fixErrorNegotiation where
both sides list that. After the end every call returns no actions.

A decision of this side that is not due, because things went on without it, does nothing. What this side says on its own account
(`say`, `ask`, `report_error`, `send_verification`, and a text over its cap) raises `TreatyError` where it may never be said,
and changes nothing.

Order on the wire. Each side sends codeGeneration before its first PT=01 frame of a session that took the long way; PT=01 frames
that arrive before the session runs here are kept and delivered when it does. A source that offers a hash may send early data
right behind its Hello: a destination that does not confirm the hash drops PT=01 frames up to the source's codeGeneration, and the
source starts over.

The parts: `handshake` (Hellos), `negotiation`, `generation`, `testing`, `repair`, `questions`; what they share is in `core`.
"""

from __future__ import annotations

from collections.abc import Mapping

from treaty_consensus.errors import Refused, TooLarge, TreatyError, Unavailable

from . import frame
from .actions import Action, SendBinary, SendText
from .core import FINAL, State, say
from .frame import ProtocolType
from .handshake import Provided
from .hello import FIX_ERROR_NEGOTIATION, NATURAL_LANGUAGE_PROTOCOL, REPORT_COSIGNATURE, VERIFICATION_PROTOCOL, Hello
from .limits import Limits, Timeouts
from .messages import ReportCosignature
from .reception import Reception, nothing_in_common
from .recording import Recorder, recorded

__all__ = ["FINAL", "Limits", "Machine", "Provided", "State", "Timeouts"]

_LIMITS = Limits()


class Machine(Reception):
    """One session. Make it by `source` or `destination`; not for concurrent use. Attributes are for reading."""

    recorder: Recorder | None = None
    _early_frames = 0

    @classmethod
    def source(
        cls,
        hello: Hello,
        *,
        now: float,
        timeouts: Timeouts,
        known_uri: str = "",
        negotiates: bool = False,
        wants_tests: bool = False,
        natural: bool = False,
        limits: Limits = _LIMITS,
        recorder: Recorder | None = None,
    ) -> tuple[Machine, list[Action]]:
        """The side that connects, and its first actions.

        `known_uri`: the URI of the hash that `hello` offers, if it does. `negotiates`: it proposes a protocol where none is in
        common. `wants_tests`: it proposes test cases where both sides can. `natural`: it wants nothing but natural language, and
        `hello` offers nothing.
        """
        machine = cls(
            hello,
            now=now,
            timeouts=timeouts,
            limits=limits,
            known_uri=known_uri,
            negotiates=negotiates,
            wants_tests=wants_tests,
            natural=natural,
        )
        actions: list[Action] = [SendText(hello.format())]
        machine.recorder = recorder
        if recorder is not None:
            options = {"known_uri": known_uri, "negotiates": negotiates, "wants_tests": wants_tests, "natural": natural}
            recorder.note("source", {"hello": hello, "timeouts": timeouts, "limits": limits, **options}, now, actions)
        return machine, actions

    @classmethod
    def destination(
        cls,
        hello: Hello,
        *,
        now: float,
        timeouts: Timeouts,
        provides: Mapping[str, Provided],
        negotiates: bool = False,
        limits: Limits = _LIMITS,
        recorder: Recorder | None = None,
    ) -> Machine:
        """The side that is connected to. `hello`: its own, which it completes when the source's has come. `provides`: URI to
        protocol, of those that the policy admits. `negotiates`: it considers proposals."""
        machine = cls(hello, now=now, timeouts=timeouts, limits=limits, provides=provides, negotiates=negotiates)
        machine.recorder = recorder
        if recorder is not None:
            options = {"provides": dict(provides), "negotiates": negotiates}
            recorder.note("destination", {"hello": hello, "timeouts": timeouts, "limits": limits, **options}, now, [])
        return machine

    @property
    def deadline(self) -> float:
        """When `tick` is due; infinity after the end."""
        return self.deadlines.next

    @property
    def accepts_input(self) -> bool:
        """False while the driver had better not read on: the inbox is full, and only this side's work is lacking."""
        waits_for_peer = self._talks.waits_for_peer or self._tests.waits_for_peer or self._repairs.waits_for_peer
        return not self._inbox.is_full or waits_for_peer or not self._generation.peer

    def can_report(self) -> bool:
        """Whether both sides list the capability of co-signing reports."""
        return self.both_list(REPORT_COSIGNATURE)

    # What happens

    @recorded
    def receive(self, message: str | bytes, now: float) -> list[Action]:
        """A text or binary message of the peer."""
        return [] if self.is_final else self._receive(message, now)

    @recorded
    def lost(self, reason: str = "") -> list[Action]:
        """The connection is gone; `reason` is what the peer gave for closing it, or ""."""
        if self.is_final:
            return []
        if self.state is State.NEGOTIATING and not self.is_source and not self._talks.said:
            return self.end(State.REJECTED, nothing_in_common("and the other side proposed none."))
        said = f": {reason[:80]!a}" if reason else ""
        error = Unavailable("session.peer-lost", f"The other side ended the session{said}.")
        running = self.state is State.RUNNING
        return self.end(State.CLOSED if running else State.ERROR, error if reason or not running else None)

    @recorded
    def tick(self, now: float) -> list[Action]:
        """Time passed. Does nothing before `deadline`."""
        error = self.deadlines.passed(now)
        return self.end(State.TIMEOUT, error) if error else []

    @recorded
    def close(self) -> list[Action]:
        """This side has had enough."""
        return [] if self.is_final else self.end(State.CLOSED, None)

    @recorded
    def fail(self, error: TreatyError) -> list[Action]:
        """This side cannot go on."""
        return [] if self.is_final else self.end(State.ERROR, error)

    # Agreeing on a protocol and getting its code

    @recorded
    def propose(self, text: str, summary: str, now: float) -> list[Action]:
        """The answer to `Draft` or `Consider`: a protocol document in full, and what changed since the peer's, "" in the first
        one. One more than the limit allows is a rejection. Raises `Malformed` or `TooLarge` on what may not be sent."""
        return self._talks.propose(text, summary, now)

    @recorded
    def accept(self, now: float) -> list[Action]:
        """The answer to `Consider`: agreed."""
        return self._talks.accept(now)

    @recorded
    def reject(self, reason: str, now: float) -> list[Action]:
        """The answer to `Draft` or `Consider`: there will be no agreement; the peer is told the reason. Raises `TooLarge`."""
        return self._talks.reject(reason)

    @recorded
    def code_ready(self, protocol_hash: str, now: float) -> list[Action]:
        """The code that `Load` asked for is ready; it is for the document of this hash."""
        return self._generation.ready(protocol_hash, now)

    @recorded
    def code_failed(self, error: TreatyError) -> list[Action]:
        """The code that `Load` asked for cannot be made, or mended: tell the peer, and end."""
        return self._generation.failed(error)

    # Testing it and mending it

    @recorded
    def propose_tests(self, text: str, summary: str, now: float) -> list[Action]:
        """The answer to `DraftTests` or `ConsiderTests`; see `propose`."""
        return self._tests.propose(text, summary, now)

    @recorded
    def accept_tests(self, now: float) -> list[Action]:
        """The answer to `ConsiderTests`: agreed."""
        return self._tests.accept(now)

    @recorded
    def reject_tests(self, reason: str, now: float) -> list[Action]:
        """The answer to `DraftTests` or `ConsiderTests`: then there is no session. Raises `TooLarge`."""
        return self._tests.reject(reason)

    @recorded
    def skip_tests(self, now: float) -> list[Action]:
        """The answer to `DraftTests`: do without."""
        return self._tests.skip(now)

    @recorded
    def tests_passed(self, now: float) -> list[Action]:
        """The answer to `Test`: this side's code does what was agreed."""
        return self._tests.passed(now)

    @recorded
    def report_error(self, description: str, now: float) -> list[Action]:
        """The peer's messages are not what was agreed on: tell it, and wait for `ErrorRejected` or its new code. Only while
        tests are run or the session runs, after a message of the peer, and one at a time; else it does nothing. Raises `Refused`
        (`meta.not-agreed`), `Malformed` or `TooLarge`."""
        if self.is_final:
            return []
        self.require(FIX_ERROR_NEGOTIATION)
        told = self._generation.was_ready and self._generation.heard_from_peer and not self._tests.may_come
        if not ((told and self.state is State.RUNNING) or self._tests.are_due):
            return []
        return self._repairs.report(description, now)

    @recorded
    def accept_error(self, now: float) -> list[Action]:
        """The answer to `ConsiderError`: this side is at fault; `Load` follows."""
        return [] if self.is_final else self._repairs.accept(now)

    @recorded
    def reject_error(self, reason: str, now: float) -> list[Action]:
        """The answer to `ConsiderError`: this side is not at fault, and why. Raises `Malformed` or `TooLarge`."""
        return [] if self.is_final else self._repairs.reject(reason, now)

    # Saying something

    @recorded
    def send(self, payload: bytes, now: float, *, early: bool = False) -> list[Action]:
        """An application message to the peer; kept until it may be sent.

        `early`: it may go out before the peer confirmed the hash, as nothing is lost if that is done twice. Nothing overtakes
        what is kept already. Where natural language alone is spoken there are no application messages: raises `Refused`.
        """
        if self.is_final:
            return []
        if self.is_natural:
            raise Refused("session.natural", "This session has no protocol: only natural language is spoken in it.")
        try:
            data = frame.encode(ProtocolType.APPLICATION, payload)
        except TooLarge as error:
            return self.end(State.ERROR, error)
        if self.state is State.RUNNING and self._generation.own:
            self.touch(now)
            return [SendBinary(data)]
        offered = self.is_source and self.state is State.HELLO and self.own.used_protocol_hash is not None
        if early and offered and not self._outbox and self._early_frames < self.limits.early_frames:
            self._early_frames += 1
            return [SendBinary(data)]
        if self._outbox.is_full:
            return self.end(State.ERROR, TooLarge("session.outbox-full", "Too much was said before the session was running."))
        self._outbox.put(data)
        return []

    @recorded
    def send_meta(self, message: ReportCosignature, now: float) -> list[Action]:
        """A meta message that is not about the handshake; dropped unless the session is running, and in a protocol."""
        return [self._said(say(message), now)] if self.state is State.RUNNING and not self.is_natural else []

    @recorded
    def send_verification(self, payload: bytes, now: float) -> list[Action]:
        """A message of the handler under test (PT=11); dropped unless test cases were agreed on and are run, or the session runs.
        Raises `Refused` (`meta.not-agreed`) or `TooLarge`."""
        if self.is_final:
            return []
        self.require(VERIFICATION_PROTOCOL)
        data = frame.encode(ProtocolType.VERIFICATION, payload)
        return [self._said(SendBinary(data), now)] if self._may_verify else []

    @recorded
    def say(self, text: str, now: float) -> list[Action]:
        """A message in natural language (PT=10), at any time after the Hellos. Raises `Refused` (`meta.not-agreed`),
        `Malformed` or
        `TooLarge`."""
        if self.is_final:
            return []
        self.require(NATURAL_LANGUAGE_PROTOCOL)
        return [self._said(SendBinary(frame.encode(ProtocolType.NATURAL_LANGUAGE, frame.encode_text(text))), now)]

    @recorded
    def ask(self, message_id: str, text: str, now: float) -> list[Action]:
        """A question about the negotiation, at any time after the Hellos; `Answered` follows. `message_id`: 16 random characters,
        another for each question. Raises `Refused` (`meta.not-agreed`, `question.*`), `Malformed` or `TooLarge`."""
        return [] if self.is_final else self._questions.ask(message_id, text, now)

    @recorded
    def answer(self, message_id: str, text: str, now: float) -> list[Action]:
        """The answer to `Question`. Raises `Malformed` or `TooLarge`."""
        return [] if self.is_final else self._questions.answer(message_id, text, now)

    def _said(self, action: SendBinary, now: float) -> SendBinary:
        self.touch(now)
        return action
