"""Convert the five errors of the negotiation flow between the wire and exceptions.

    errorCode                 code here                   family        when
    NO_COMMON_PROTOCOL        session.no-common-protocol  Refused       nothing is spoken by both, or all of it was rejected
    NEGOTIATION_TIMEOUT       session.reply-timeout       Unavailable   an answer did not come in time
    VERSION_CONFLICT          flow.version-conflict       Refused       the same protocol, or the flow itself, in other versions
    PARAM_NEGOTIATION_FAILED  flow.parameters             Refused       no agreement on a parameter
    VERIFICATION_FAILED       flow.verification           Unauthorized  a signature, a key, a time or a recipient is wrong
    BUSY                      flow.busy                   Unavailable   the sender negotiates too much; beyond the source

An error message has one of these codes, a sentence, `details`, the suggested action (`renegotiate`, `retry`, `abort`) and the
seconds to wait. Other codes of a peer become `session.peer-refused`. A peer that breaks the rules of the flow gets none of them:
the connection is closed with the local code as its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from treaty_consensus.errors import Refused, TreatyError, Unauthorized
from treaty_consensus.printable import printable
from treaty_io.codes import FlowCode, SessionCode
from treaty_io.errors import MAX_PEER_CODE, PeerUnavailable, code_in

from .parameters import Unsupported
from .payloads import VERSION, ErrorReport
from .processor import BUSY_TIME


class ErrorCode(StrEnum):
    """The code of an error message."""

    NO_COMMON_PROTOCOL = "NO_COMMON_PROTOCOL"
    NEGOTIATION_TIMEOUT = "NEGOTIATION_TIMEOUT"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    PARAM_NEGOTIATION_FAILED = "PARAM_NEGOTIATION_FAILED"
    VERIFICATION_FAILED = "VERIFICATION_FAILED"
    BUSY = "BUSY"


RENEGOTIATE, RETRY, ABORT = "renegotiate", "retry", "abort"

_KINDS: Mapping[str, tuple[type[TreatyError], str, str]] = {
    ErrorCode.NO_COMMON_PROTOCOL: (Refused, SessionCode.NO_COMMON_PROTOCOL, "Offer a protocol that the other side speaks."),
    ErrorCode.NEGOTIATION_TIMEOUT: (PeerUnavailable, SessionCode.REPLY_TIMEOUT, "Try again later."),
    ErrorCode.VERSION_CONFLICT: (Refused, FlowCode.VERSION_CONFLICT, "Offer a version that the other side speaks."),
    ErrorCode.PARAM_NEGOTIATION_FAILED: (Refused, FlowCode.PARAMETERS, "Ask for other parameters."),
    ErrorCode.VERIFICATION_FAILED: (
        Unauthorized,
        FlowCode.VERIFICATION,
        "See whether the DID documents and the clocks are right.",
    ),
    ErrorCode.BUSY: (PeerUnavailable, FlowCode.BUSY, "Try again later."),
}
_SUGGESTED = {
    ErrorCode.NO_COMMON_PROTOCOL: ABORT,
    ErrorCode.NEGOTIATION_TIMEOUT: RETRY,
    ErrorCode.VERSION_CONFLICT: ABORT,
    ErrorCode.PARAM_NEGOTIATION_FAILED: RENEGOTIATE,
    ErrorCode.VERIFICATION_FAILED: ABORT,
    ErrorCode.BUSY: RETRY,
}


def error_of(code: str, message: str) -> TreatyError:
    """Return the exception for a wire code. `message`: this side's own text."""
    # A code of another make must not end in a KeyError: it is still an error of the peer.
    family, own, fix = _KINDS.get(code, (Refused, SessionCode.PEER_REFUSED, ""))
    return family(own, message, fix=fix)


def peers_error(report: ErrorReport) -> TreatyError:
    """Return the exception for a peer's error message. Its texts are escaped."""
    # Escaped and cut: the text is of a stranger, and goes to logs and terminals.
    message_text = ascii(report.error_message[:200])
    error_code = printable(report.error_code, MAX_PEER_CODE)
    later = f" It may be tried again after {report.retry_after:g} seconds." if report.retry_after else ""
    error = error_of(report.error_code, f"The other side says {error_code}: {message_text}.{later}")
    # This implementation adds the exact code to one of the five.
    reason = report.details.get("reason")
    error.peer_code = (code_in(reason) if isinstance(reason, str) else "") or error_code
    return error


def report(
    code: ErrorCode, message: str, *, details: Mapping[str, Any] | None = None, suggested: str = "", retry_after: float = 0
) -> ErrorReport:
    """Return the payload of an error message."""
    return ErrorReport(
        error_code=code.value,
        # The peer passes over a longer text.
        error_message=message[:500],
        details=dict(details or {}),
        suggested_action=suggested or _SUGGESTED[code],
        retry_after=retry_after,
    )


def refusal(error: TreatyError) -> ErrorReport:
    """Return the error message about a message that is not accepted. `details` say the local code."""
    details: dict[str, Any] = {"reason": error.code}
    if error.code == FlowCode.VERSION:
        return report(ErrorCode.VERSION_CONFLICT, error.message, details={**details, "supported": [VERSION]})
    if error.code == FlowCode.BUSY:
        return report(ErrorCode.BUSY, error.message, details=details, retry_after=BUSY_TIME)
    return report(ErrorCode.VERIFICATION_FAILED, "A message of yours is not accepted: " + error.message, details=details)


def is_told(error: TreatyError) -> bool:
    """Return whether `refusal` has a message for an error. All other errors mean that the peer breaks the rules."""
    return isinstance(error, Unauthorized) or error.code in (FlowCode.VERSION, FlowCode.BUSY, FlowCode.SIGNATURE)


def parameter_report(error: Unsupported) -> ErrorReport:
    """Return the error message for a parameter without an agreement."""
    return report(ErrorCode.PARAM_NEGOTIATION_FAILED, error.message, details=error.details)
