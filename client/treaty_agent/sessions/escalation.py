"""Ask a person after a negotiation failed, and use the answer.

A negotiation that ends rejected or at its limit is escalated if the agent has `on_escalation`. Its result is the document that
the person wants, or None. The initiator proposes that document in one new session instead of a draft of the negotiator. The
responder remembers the document, and accepts exactly this text without the negotiator when it is proposed.

A responder asks about proposals that it considered, one question at a time and at most twelve an hour.

In the flow profile only the initiator escalates: a negotiation without a common protocol, with rejected parameters, or at its
limit. The answer is then the id (`anp:protocol:NAME:VERSION`) or the URI of the protocol to propose in one new negotiation.

HOME/approved.json holds the SHA-256 of approved texts, newest first, at most 256 (docs/specification/home-caches.md):

    {"approved": ["5f2b…"]}
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.kinds import Digest
from treaty_io.codes import FlowCode, NegotiationCode, SessionCode
from treaty_io.line_limit import limited_logger
from treaty_io.state_file import StateFile

from ..negotiators.negotiator import RoleName
from .agreements import Profile

MAX_APPROVED = 256
MAX_FILE = 64 * 1024
_log = limited_logger(__name__)

ESCALATED = frozenset({NegotiationCode.REJECTED, NegotiationCode.LIMIT})
"""The failures in the Hello profile that a person may resolve, unless they pass by themselves."""
FLOW_ESCALATED = frozenset({SessionCode.NO_COMMON_PROTOCOL, FlowCode.VERSION_CONFLICT, FlowCode.PARAMETERS, FlowCode.ROUNDS})
"""The failures in the flow profile that a person may resolve."""


@dataclass(frozen=True)
class Escalation:
    """Describe a failed negotiation for a person.

    `role`: this agent's role.
    `reason`: the reason of the failure; it may quote the peer.
    `own_proposal`, `peer_proposal`: the last text that each side proposed, or "". In the flow profile: the ids that each side
    speaks, one on a line, or "" if they are unknown.
    `transcript`: the whole session (`treaty_anp.transcript`).
    `profile`: decides the form of the answer.
    """

    role: RoleName
    peer: str
    reason: str
    own_proposal: str
    peer_proposal: str
    transcript: bytes
    profile: Profile = "hello"


OnEscalation: TypeAlias = Callable[[Escalation], Awaitable[str | None]]


class EscalationLimiter:
    """Limit the questions that strangers cause at a responder: one at a time, and a maximum for each hour. For one event loop."""

    def __init__(self, *, an_hour: int = 12, clock: Callable[[], float] = time.monotonic) -> None:
        self._an_hour, self._clock = an_hour, clock
        self._times: deque[float] = deque(maxlen=an_hour)
        self._busy = False

    def may_ask(self) -> bool:
        """Return whether a person may be asked now. If so, reserve the question until `finish`."""
        now = self._clock()
        # The oldest of the last `an_hour` questions is less than an hour old.
        often = len(self._times) == self._an_hour and now - self._times[0] < 3600
        if self._busy or often:
            _log.info("A failed negotiation is not escalated: a person is being asked, or was asked too often")
            return False
        self._times.append(now)
        self._busy = True
        return True

    def finish(self) -> None:
        """End the reserved question."""
        self._busy = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    approved: tuple[Digest, ...]


class Approvals:
    """Read and write HOME/approved.json. A file that does not parse is replaced; its texts need a new approval."""

    def __init__(self, home: Path) -> None:
        """Read nothing yet; the first use reads the file."""
        self._file = StateFile(home / "approved.json", _File, limit=MAX_FILE)
        self._digests: tuple[str, ...] | None = None

    def add(self, text: str) -> None:
        """Remember that a person approved exactly this text. Raises OSError."""
        digest = _digest(text)
        rest = (other for other in self._read() if other != digest)
        # The oldest approvals are dropped: the file must not grow without end.
        self._digests = (digest, *rest)[:MAX_APPROVED]
        self._file.write(_File(self._digests))

    def __contains__(self, text: str) -> bool:
        return _digest(text) in self._read()

    def _read(self) -> tuple[str, ...]:
        if self._digests is None:
            # A damaged file counts as absent: a lost approval only costs a second question.
            file = self._file.read()
            self._digests = file.approved[:MAX_APPROVED] if file is not None else ()
        return self._digests


def _digest(text: str) -> str:
    return canonical.hex_digest(text.encode())
