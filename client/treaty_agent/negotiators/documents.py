"""Resolve the agreed text: a document in full, or changes to a base.

A text pins its base by a digest. A sentence of natural language need not: then the base is read where a trusted registry has it,
whose documents never change, and else the text stands for itself, and the negotiator judges it without the base.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from treaty_anp.hello_profile.documents import Base, parse_candidate
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import printable
from treaty_consensus.protocol import MAX_DOCUMENT, check_document
from treaty_io.codes import NegotiationCode
from treaty_io.line_limit import limited_logger

Fetch = Callable[[str], Awaitable[bytes]]
"""Return the document of a published protocol, by URI. Raises `TreatyError`."""

# Short enough for a folder and for a line of a prompt.
MAX_NAME, MAX_TITLE = 40, 120
_log = limited_logger(__name__)


class BaseCache:
    """Fetch base documents, and keep the last one: the session checks a proposal, then its negotiator reads the same base."""

    def __init__(self, fetch: Fetch) -> None:
        """Fetch nothing yet."""
        self._fetch = fetch
        # Only one: each proposal of a peer may name another base of 256 KiB.
        self._last: tuple[str, bytes] | None = None

    async def fetch(self, uri: str) -> bytes:
        """Return a document. Raises the errors of `fetch`."""
        if self._last is None or self._last[0] != uri:
            self._last = uri, await self._fetch(uri)
        return self._last[1]


@dataclass(frozen=True)
class NegotiatedDocument:
    """A document under negotiation. `text`: exactly as received. `base`: the text of the document that it changes, or ""."""

    text: str
    title: str
    topic: str
    base: str

    @property
    def hash(self) -> str:
        """The protocol hash."""
        return hex_digest(self.text.encode("utf-8"))

    @property
    def name(self) -> str:
        """The name for a project: the last part of the topic, else the title."""
        words = re.sub(r"[^a-z0-9]+", "-", (self.topic.rpartition("/")[2] or self.title).lower())
        return words.strip("-")[:MAX_NAME].strip("-") or "protocol"

    @property
    def uri(self) -> str:
        """A placeholder URI until the document is published, at a host that cannot exist (RFC 2606)."""
        return f"https://negotiated.invalid/protocols/negotiated.invalid:{self.hash}/{self.name}/1.0"


async def resolve(text: str, fetch: Fetch | None) -> NegotiatedDocument:
    """Return a candidate document with its base.

    Raises the errors of `parse_candidate`, and `Refused` (`negotiation.message`) when a pinned base cannot be fetched or has
    another digest, and when the base has a base itself.
    """
    candidate = parse_candidate(text)
    title = printable(candidate.title, MAX_TITLE)[:MAX_TITLE] or "A negotiated protocol"
    if candidate.base is None:
        return NegotiatedDocument(text, title, candidate.topic, "")
    try:
        base = await _read(candidate.base, fetch)
    except Refused:
        if candidate.base.is_pinned:
            raise
        base = ""
    # One level only: a chain of bases would cost a fetch for each level.
    if _stands_on_another(base):
        raise Refused(
            NegotiationCode.MESSAGE,
            f"The base {candidate.base.uri} consists of changes, too.",
            fix="Choose a base that is written in full.",
        )
    return NegotiatedDocument(text, title, candidate.topic, base)


async def _read(base: Base, fetch: Fetch | None) -> str:
    uri = base.uri
    if fetch is None:
        raise Refused(NegotiationCode.MESSAGE, f"The document changes {uri}, and this agent has no registry to fetch it from.")
    try:
        data = await fetch(uri)
    except TreatyError as error:
        _log.warning("The base %s of a document that was proposed: %s (%s)", uri, error, error.code)
        raise Refused(NegotiationCode.MESSAGE, f"The document changes {uri}, which this agent cannot fetch.") from error
    # Where the peer pinned the digest, both sides must read the same base.
    if len(data) > MAX_DOCUMENT or (base.is_pinned and hex_digest(data) != base.sha256):
        raise Refused(NegotiationCode.MESSAGE, f"The document at {uri} is not the base of the changes: its digest differs.")
    check_document(data)
    return data.decode("utf-8")


def _stands_on_another(base: str) -> bool:
    try:
        return parse_candidate(base).base is not None
    except TreatyError:
        return False  # a published document need not have the form of a candidate
