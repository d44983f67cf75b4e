"""Hold what the sessions of one connection of the flow profile share.

The sessions hold the core and call its methods. The core knows no session.
"""

from __future__ import annotations

from treaty_anp.flow_profile import commands
from treaty_anp.flow_profile.actions import Action
from treaty_anp.flow_profile.initiator import Initiator
from treaty_anp.flow_profile.processor import MessageProcessor, Now
from treaty_anp.flow_profile.responder import Responder
from treaty_anp.transcript import TranscriptRecorder
from treaty_consensus.codes import ReportCode
from treaty_consensus.errors import Refused
from treaty_io.identity import ProvedPeer

from ..reports.report_rules import flow_negotiation_id
from .connection_loop import ConnectionLoop
from .flow_context import FlowDependencies
from .handler_hosts import HostRequest
from .interfaces import SessionEvent
from .session import ReportParties


class FlowCore:
    """One connection, as its sessions know it. For one event loop.

    `loop`: runs the steps and the tasks of the connection, and performs the machine's actions.
    `processor`: signs and checks the messages.
    `wanted`: this side's role and functions.
    `recorder`: keeps the transcript, or None.
    `timeline`: the events before a session.
    """

    def __init__(
        self,
        loop: ConnectionLoop[Action, Now],
        machine: Initiator | Responder,
        processor: MessageProcessor,
        dependencies: FlowDependencies,
        wanted: HostRequest,
        recorder: TranscriptRecorder | None,
    ) -> None:
        self.loop, self.machine, self.processor, self.dependencies = loop, machine, processor, dependencies
        self.wanted, self.recorder = wanted, recorder
        self.timeline: list[SessionEvent] = []
        self._started = self.seconds()

    @property
    def is_initiator(self) -> bool:
        """Whether this side opened the connection."""
        return isinstance(self.machine, Initiator)

    @property
    def peer(self) -> ProvedPeer:
        """The other side, once its first message came: each message is verified by the keys of that DID."""
        return ProvedPeer(self.machine.peer)

    def seconds(self) -> float:
        """Return the time of the monotonic clock."""
        return self.loop.now().seconds

    async def command(self, command: commands.Command) -> None:
        """Give the machine a command, and perform its actions. Raises the errors of the command's class."""
        await self.loop.perform(self.machine.apply(command, self.loop.now()))

    def report_event(self, name: str, protocol: str) -> SessionEvent:
        """Report an event to the observer, and return it for a timeline. `protocol`: its URI, or ""."""
        event = SessionEvent(name, self.seconds() - self._started)
        self.dependencies.observe("initiator" if self.is_initiator else "responder", self.machine.peer, protocol, event)
        return event

    def record_event(self, name: str, protocol: str = "") -> None:
        """Record an event before the session exists."""
        self.timeline.append(self.report_event(name, protocol))

    def transcript(self) -> bytes:
        """Return the transcript so far, b"" without a recorder."""
        return self.recorder.transcript() if self.recorder else b""

    async def report_parties(self, session_id: str) -> ReportParties:
        """Return the keys and the nid of a report. Each side chose one of the two ids in the nid with new random bits. Raises
        `Refused` (`report.other`)."""
        session, key, peer = self.machine.sessions.get(session_id), self.processor.peer_key, self.machine.peer
        if key is None or self.dependencies.key_ids is None:
            raise Refused(ReportCode.OTHER, "A report needs a key of each side.")
        peer_keys = await self.dependencies.key_ids(peer)
        peer_key = next((id for id, value in peer_keys.items() if value == key), None)
        if peer_key is None:
            raise Refused(ReportCode.OTHER, f"The key by which {peer} signs has no id.")
        local = self.machine.local
        initiator, responder = (local, peer) if self.is_initiator else (peer, local)
        nid = flow_negotiation_id(initiator, responder, session_id, session.acknowledgment)
        return ReportParties(self.processor.identity.key_id, peer_key, nid)
