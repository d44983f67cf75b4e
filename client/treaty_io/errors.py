"""The errors that applications tell apart by their class, beside the families of `treaty_consensus.errors`.

PeerUnavailable        the other agent cannot be reached, whatever the stage: discovery, connecting, the session, its end
RegistryUnavailable    a registry cannot be reached, or fails
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

from treaty_consensus.errors import Origin, TreatyError, Unavailable
from treaty_consensus.printable import printable

from .codes import SessionCode

# Signatures and statements are accepted with a difference of this size.
SKEW = 30.0
"""Seconds by which two clocks may differ without being named as a cause."""
MAX_PEER_CODE = 80
"""Characters of a peer's code that are kept."""
_COMPARE = "Compare your clock with the other side's, and set the wrong one by NTP."
_E = TypeVar("_E", bound=TreatyError)
_SAID = re.compile(r"([a-z0-9-]{1,40}\.[a-z0-9.-]{1,39})(?::|\Z| [0-9]{1,15}\Z)")
"""A code at the beginning of a peer's sentence, or before a number (`treaty_agent.transport.parting`)."""


class PeerUnavailable(Unavailable):
    """The other agent cannot be reached, or serves nothing at present. The call was not done, except for the items that a
    stream gave before."""


class RegistryUnavailable(Unavailable):
    """A registry cannot be reached, or fails."""

    @property
    def origin(self) -> Origin:
        """Always the registry, also if the network in between fails: the two look the same."""
        return Origin.REGISTRY


def session_over() -> PeerUnavailable:
    """Return the error for a call after the end of its session."""
    return PeerUnavailable(SessionCode.CLOSED, "The session is over.", fix="Connect again.")


def clock_difference(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that the clock of this machine, `now` (since 1970), is ahead of the Date header of an answer; None
    without a valid one. The header counts whole seconds, and the answer took some time to come."""
    try:
        # A date has 29 characters.
        peer_time = parsedate_to_datetime(headers.get("Date", "")[:40])
        return now - (peer_time if peer_time.tzinfo else peer_time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def clock_error(family: type[_E], code: str, message: str, difference: float | None) -> _E:
    """Return the error for a signature that the other side refused because of its time. `difference`: see `clock_difference`."""
    error = family(code, message + _shown(difference), fix=_COMPARE)
    error.clock_difference = difference
    return error


def with_clock(error: _E, difference: float | None) -> _E:
    """Return a refusal of the other side, with the difference of the clocks if this is large enough to be the cause."""
    if difference is None or abs(difference) < SKEW:
        return error
    return clock_error(type(error), error.code, error.message, difference)


def _shown(difference: float | None) -> str:
    if difference is None:
        return ""
    where = "ahead of" if difference > 0 else "behind"
    return f" The clock of this machine is {abs(difference):.0f} seconds {where} the other one."


def peer_code_of(reason: str) -> str:
    """Return the code at the beginning of a peer's text, else the beginning of the text: at most `MAX_PEER_CODE` characters, all
    of them printable."""
    return code_in(reason) or printable(reason[:MAX_PEER_CODE], MAX_PEER_CODE)[:MAX_PEER_CODE]


def code_in(reason: str) -> str:
    """Return the code at the beginning of a peer's text, or ""."""
    match = _SAID.match(reason[: MAX_PEER_CODE + 1])
    return match[1] if match else ""
