"""Say why a session ended at the other side: the same in both profiles.

A peer gives the reason as a machine code: in the close of the connection, or at the beginning of a text of its last message. A
code that this version knows decides the family of the error, because the peer means the same by it. A code of another make is
passed on, cut and escaped; then the family is that of a refusal, because the transport gives a reason only for one (WebSocket
close code 1008, HTTP status 410). Any other end of a connection has no reason, and may be repeated.
"""

from __future__ import annotations

from treaty_consensus.errors import Refused, TreatyError
from treaty_io.codes import AuthenticationCode, FlowCode, SecureCode
from treaty_io.codes.lookup import find_code
from treaty_io.errors import PeerUnavailable, clock_error, code_in, peer_code_of

_CLOCK = frozenset((AuthenticationCode.TIME, SecureCode.STALE, FlowCode.STALE))
"""The codes of a refusal that usually means that the clocks differ."""


def is_about_clock(code: str) -> bool:
    """Return whether a peer refused something of this side because of its time."""
    return code in _CLOCK


def ended_by_peer(reason: str, what: str, lost: str, refused: str) -> TreatyError:
    """Return the error for the end of a session. `reason`: the peer's text, or "". `what`: the beginning of the message. `lost`,
    `refused`: the codes of an end that may pass and of one that does not."""
    if not reason:
        return PeerUnavailable(lost, f"{what}.")
    peer_code = peer_code_of(reason)
    code = find_code(peer_code)
    why = f"{what}: {peer_code}. {code.meaning if code else ''}".strip()
    error: TreatyError
    if code is not None and code.is_temporary:
        error = PeerUnavailable(lost, why, fix="Try again later.")
    elif is_about_clock(peer_code):
        error = clock_error(Refused, refused, why, None)
    else:
        error = Refused(refused, why)
    error.peer_code = peer_code
    return error


def refused_by_peer(code: str, message: str, reason: str) -> TreatyError:
    """Return the error for a message of this side that the peer refused. `reason`: its text, which may begin with a code. A
    refusal that may pass is `PeerUnavailable`."""
    peer_code = code_in(reason)
    known_code = find_code(peer_code)
    error = (PeerUnavailable if known_code is not None and known_code.is_temporary else Refused)(code, message)
    error.peer_code = peer_code
    return error
