"""The exit statuses of `treaty`, and the errors behind them. docs/guides/command-line.md has the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treaty_consensus.codes import DecisionCode, IdentityCode, LogCode, SystemCode
from treaty_consensus.errors import Gone, Malformed, NotFound, TreatyError, Unavailable, Untrusted
from treaty_io.codes import ClientTopicCode, ResolveCode

REFUSED, USAGE, UNAVAILABLE, UNTRUSTED, NOT_FOUND, NOT_YET, FOUND, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 130

# The code decides before the family. The errors of the log's clock and epochs have different families.
_BY_CODE: Final = {
    SystemCode.USAGE: USAGE,
    SystemCode.FILE: REFUSED,
    SystemCode.MISSING: REFUSED,
    ClientTopicCode.UNDECIDED: NOT_YET,
    DecisionCode.EARLY: NOT_YET,
    LogCode.CLOSING: NOT_YET,
    IdentityCode.NEW_TENURE: NOT_YET,
    ResolveCode.UNKNOWN: NOT_FOUND,
}
_BY_FAMILY: Final[Sequence[tuple[type[TreatyError], int]]] = (
    (Unavailable, UNAVAILABLE),
    (Untrusted, UNTRUSTED),
    (NotFound, NOT_FOUND),
    (Gone, NOT_FOUND),
)


def status_of(error: TreatyError) -> int:
    """Return the exit status for an error."""
    from treaty_client.protocols.verification.steps import Step, VerificationFailed  # here, because only errors need it

    for code, status in _BY_CODE.items():
        if error.code == code:
            return status
    if isinstance(error, VerificationFailed):
        # A step that could not reach a host proves nothing against the protocol, and neither does a registry that has no such
        # name. After step 1 something is missing in a proof.
        if isinstance(error.__cause__, Unavailable):
            return UNAVAILABLE
        is_absent = error.step == Step.RESOLVE and isinstance(error.__cause__, (NotFound, Gone))
        return NOT_FOUND if is_absent else UNTRUSTED
    return next((status for family, status in _BY_FAMILY if isinstance(error, family)), REFUSED)


def failure_of(error: Exception) -> TreatyError | None:
    """Return the error to show for an exception of a command; None if it is a fault of the program."""
    from cyclopts import CycloptsError  # imported already when a command ran

    match error:
        case TreatyError():
            return error
        case CycloptsError():
            command = " ".join(["treaty", *error.command_chain]) if error.command_chain else "treaty"
            try:
                # Cyclopts wraps the message in a box of its own. Only its words are needed.
                words = " ".join(str(error).split())
            except ImportError:  # it looks for a similar command, in modules whose libraries may not be installed
                words = f"Unknown command {(error.unused_tokens or [''])[0][:80]!r}."
            return Malformed(SystemCode.USAGE, words, fix=f"Show the options: {command} --help")
        # A full disk or a path of the command line: the user can act on it, so it is no traceback.
        case OSError():
            return Unavailable(SystemCode.FILE, f"{error.strerror or error}: {error.filename or 'a system call'}.")
    return None
