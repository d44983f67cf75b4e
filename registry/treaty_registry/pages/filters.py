"""Write values for people: numbers, weights, hashes, times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from urllib.parse import quote

from treaty_consensus.did import parse_did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri


def weight(units: str | int) -> str:
    """Return a weight in units of 2^-32 as a decimal number with at most three places."""
    value = Fraction(int(units), ONE)
    text = f"{float(value):,.3f}".rstrip("0").rstrip(".")
    return "<0.001" if text == "0" and value else text


def count(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def short(digest: str) -> str:
    """Return the beginning of a digest."""
    return digest[:12]


def size(number: int) -> str:
    """Return a number of bytes."""
    if number < 1024:
        return f"{number} bytes"
    value = number / 1024
    return f"{value:.1f} KiB" if value < 1024 else f"{value / 1024:.1f} MiB"


def moment(seconds: int) -> str:
    """Return a Unix time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def day(seconds: int) -> str:
    """Return the day of a foreign Unix time in UTC, or the number when no calendar has it."""
    return when(seconds).partition(" ")[0]


def when(seconds: int) -> str:
    """Return a foreign Unix time in UTC, or the number when no calendar has it."""
    try:
        return moment(seconds)
    except (ValueError, OverflowError, OSError):
        return str(seconds)


# Parsing a URI costs more than the row that shows it, and a page has most of its URIs several times. At most 8 MiB.
@lru_cache(maxsize=4096)
def _parsed(uri: str) -> ProtocolUri:
    return parse_protocol_uri(uri)


def path(uri: str) -> str:
    """Return the path of a protocol's URI at its registry."""
    parsed = _parsed(uri)
    return f"/protocols/{parsed.namespace}/{parsed.name}/{parsed.version}"


def segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe=":")


def name(uri: str) -> str:
    """Return `ProtocolUri.label`."""
    return _parsed(uri).label


def validated(did: str) -> str:
    """Return how an operator validated the name of a DID, or "" for one that is its key or has a document."""
    return {"oidc": "by a token of a workflow", "dns": "by a record of its domain", None: ""}[parse_did(did).validated_by]


FILTERS: Mapping[str, Callable[..., object]] = {
    "weight": weight,
    "count": count,
    "short": short,
    "size": size,
    "moment": moment,
    "when": when,
    "day": day,
    "path": path,
    "segment": segment,
    "name": name,
    "validated": validated,
}
