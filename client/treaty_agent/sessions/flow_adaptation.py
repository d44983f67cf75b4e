"""Change the sessions of one connection when their calls are slow or fail, or when the peer reports a new situation.

`anp.flow_profile.adaptation` finds and chooses; this module negotiates the change. Only an initiator may change a session. A
responder with a finding reports low resources instead, and the initiator then takes its next step. For example, a shop whose
functions become slow gets smaller chunks and more time for its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from treaty_anp.flow_profile import parameters as rules
from treaty_anp.flow_profile.adaptation import Change
from treaty_anp.flow_profile.initiator import Initiator
from treaty_anp.flow_profile.payloads import ContextInfo, Level
from treaty_anp.flow_profile.registry import ProtocolOffer
from treaty_anp.flow_profile.responder import Responder
from treaty_anp.flow_profile.terms import kept
from treaty_consensus.errors import TreatyError
from treaty_io.line_limit import limited_logger

from .flow_session import FlowSession

LOW: Level = "low"
_log = limited_logger(__name__)


class SessionAdapter:
    """The changes of one connection. For one event loop."""

    def __init__(
        self,
        machine: Initiator | Responder,
        sessions: Mapping[str, FlowSession],
        *,
        seconds: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        tell: Callable[[ContextInfo], None],
    ) -> None:
        """Change nothing yet. `seconds`: the monotonic clock. `spawn`: run a task beside the steps. `tell`: send a situation to
        the initiator."""
        self._machine, self._sessions = machine, sessions
        self._seconds, self._spawn, self._tell = seconds, spawn, tell

    def check(self, session_id: str) -> None:
        """Take the next step if the last calls of a session make it necessary."""
        session = self._sessions.get(session_id)
        offer = self._offer_of(session) if session else None
        if session is None or offer is None or session.changing is not None:
            return
        change = session.adaptation.next_change(self._seconds(), offer, session.parameters, self._ranking())
        if change is None:
            return
        session.record_event(f"adapting: {change.finding}")
        if isinstance(self._machine, Initiator):
            self._change(session, change)
        else:
            self._tell(_with_low_resources(self._machine.capabilities.context))

    def peer_changed(self) -> None:
        """React to the responder's report of its situation: low resources lead to the next step of each session; with others this
        side asks for its preferred parameters again, which the responder may admit now."""
        if not isinstance(self._machine, Initiator):
            return
        low = self._machine.known.context.resource_availability == LOW
        for session in list(self._sessions.values()):
            offer = self._offer_of(session)
            if offer is None or session.changing is not None:
                continue
            if low:
                change = session.adaptation.step("slow", self._seconds(), offer, session.parameters, self._ranking())
                if change is not None:
                    session.record_event("adapting: peer")
                    self._change(session, change)
            elif offer.parameters:
                self._prefer(session, offer)

    def _prefer(self, session: FlowSession, offer: ProtocolOffer) -> None:
        try:
            wanted = rules.preferred(kept(offer.parameters, encrypted=self._machine.encrypted))
        except rules.Unsupported:
            return
        self._change(session, Change("slow", parameters=wanted))

    def _change(self, session: FlowSession, change: Change) -> None:
        async def negotiate() -> None:
            try:
                await session.renegotiate(change.parameters, change.protocol)
            except TreatyError as error:  # the session goes on as it was; the next finding comes after a pause
                _log.info("The session with %s could not be changed: %s", session.peer, error)

        # In a task: the step that made the finding must not wait for the peer.
        self._spawn(negotiate())

    def _offer_of(self, session: FlowSession) -> ProtocolOffer | None:
        return self._machine.capabilities.registry.get(session.agreed.protocol)

    def _ranking(self) -> list[str]:
        return [found.id for found in self._machine.ranking] if isinstance(self._machine, Initiator) else []


def _with_low_resources(context: ContextInfo) -> ContextInfo:
    """Return a situation with low resources."""
    return ContextInfo(LOW, context.connection_type, context.preferences)
