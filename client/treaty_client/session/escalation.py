"""When two agents come to no agreement, a person may: what the person is told, and what becomes of the answer.

Negotiations that end rejected or at their limit are escalated where the agent has `on_escalation`. A text that it returns is the
document that the person wants. At the source it is proposed, in one new session, instead of what the negotiator would draft; at
the destination it is remembered, and accepted without asking the negotiator when it is proposed to the byte. None leaves it at
that. A destination asks for no more than it considered itself: one question at a time, twelve an hour.

    HOME/approved.json      {"approved": [HEX, …]}, the SHA-256 of such texts, newest first, at most 256
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import TreatyError
from treaty_consensus.kinds import Digest

from .. import durable
from ..negotiation.negotiator import SideName

MAX_APPROVED = 256
MAX_FILE = 64 * 1024
_log = logging.getLogger(__name__)

ESCALATED = frozenset({"negotiation.rejected", "negotiation.limit"})
"""The ends of a negotiation that a person may mend."""


@dataclass(frozen=True)
class Escalation:
    """`transcript`: the whole session (`meta.transcript`); `reason`: why it ended, which may quote the peer. `own_proposal` and
    `peer_proposal`: the last text that each side proposed, "" when it proposed none."""

    side: SideName
    peer: str
    reason: str
    own_proposal: str
    peer_proposal: str
    transcript: bytes


OnEscalation: TypeAlias = Callable[[Escalation], Awaitable[str | None]]


class Pager:
    """How often strangers make a destination call for a person: one at a time, and so many an hour. For one event loop."""

    def __init__(self, *, an_hour: int = 12, clock: Callable[[], float] = time.monotonic) -> None:
        self._an_hour, self._clock = an_hour, clock
        self._times: deque[float] = deque(maxlen=an_hour)
        self._busy = False

    def may_ask(self) -> bool:
        """Whether a person may be asked now; then it is noted that one is, until `asked`."""
        now = self._clock()
        often = len(self._times) == self._an_hour and now - self._times[0] < 3600
        if self._busy or often:
            _log.info("A failed negotiation is not escalated: a person is asked already, or was often enough")
            return False
        self._times.append(now)
        self._busy = True
        return True

    def asked(self) -> None:
        """The person has answered, or never will."""
        self._busy = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    approved: tuple[Digest, ...]


class Approvals:
    """HOME/approved.json. A file that does not parse is started anew: what was in it is asked again."""

    def __init__(self, home: Path) -> None:
        """Reads the file at the first use."""
        self._path = home / "approved.json"
        self._digests: tuple[str, ...] | None = None

    def add(self, text: str) -> None:
        """A person approves of this very text. Raises OSError."""
        digest = _digest(text)
        rest = (other for other in self._read() if other != digest)
        self._digests = (digest, *rest)[:MAX_APPROVED]
        durable.write(self._path, canonical.dumps({"approved": list(self._digests)}), mode=0o600)

    def __contains__(self, text: str) -> bool:
        return _digest(text) in self._read()

    def _read(self) -> tuple[str, ...]:
        if self._digests is None:
            try:
                value = canonical.parse_json(self._path.read_bytes(), limit=MAX_FILE, what="approved.json")
                self._digests = msgspec.convert(value, _File).approved[:MAX_APPROVED]
            except (OSError, TreatyError, msgspec.ValidationError):
                self._digests = ()
        return self._digests


def _digest(text: str) -> str:
    return canonical.hex_digest(text.encode())
