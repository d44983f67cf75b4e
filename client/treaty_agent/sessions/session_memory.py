"""Hold what an agent remembers of its sessions: agreements, negotiated protocols, approvals and transcripts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from treaty_anp.transcript import TranscriptRecorder
from treaty_io import durable
from treaty_io.line_limit import limited_logger

from .agreements import AgreementCache, NegotiatedProtocols, Profile
from .escalation import Approvals

MAX_TALKS = 1024 * 1024
"""Bytes of a transcript that is kept only for an escalation."""

_log = limited_logger(__name__)


@dataclass
class SessionMemory:
    """The memory of one agent.

    `transcripts`: the folder for recorded sessions, or None.
    `escalates`: whether a person is asked about failed negotiations, who reads what was said.
    `openings`: the document that a person wants to propose next, by address and request.
    `flow_openings`: the same in the flow profile: an id or URI.
    """

    agreements: AgreementCache
    negotiated: NegotiatedProtocols
    approvals: Approvals
    transcripts: Path | None
    escalates: bool
    openings: dict[tuple[str, str], str] = field(default_factory=dict)
    flow_openings: dict[tuple[str, str], str] = field(default_factory=dict)

    def recorder(self, profile: Profile) -> TranscriptRecorder | None:
        """Return a recorder for a connection, or None. Record everything if transcripts are kept, and only negotiations if
        they are escalated."""
        if self.transcripts is not None:
            return TranscriptRecorder(profile)
        if self.escalates:
            return TranscriptRecorder(profile, limit=MAX_TALKS, only_talks=True)
        return None

    async def keep_transcript(self, is_initiator: bool, name: str, recorder: TranscriptRecorder | None) -> None:
        """Write the transcript as ROLE-NAME.jsonl if transcripts are kept, and close the recorder. `name`: chosen by this
        side, so that the peer controls no part of a file's name."""
        if recorder is None:
            return
        # Closed before the write: a write error must not keep the memory.
        data = recorder.transcript()
        recorder.close()
        if self.transcripts is None:
            return
        try:
            path = self.transcripts / f"{'initiator' if is_initiator else 'responder'}-{name}.jsonl"
            # In a thread, because the write waits for the disk. 0600: transcripts hold business data.
            await asyncio.to_thread(durable.write, path, data, mode=0o600)
        except OSError as error:
            _log.warning("A transcript cannot be written: %s", error)
