"""The agreed text and what it stands on: a document in full, or changes to a base that the text pins by its digest."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import printable
from treaty_consensus.protocol import MAX_DOCUMENT, check_document

from ..meta.documents import parse_candidate

Fetch = Callable[[str], Awaitable[bytes]]
"""The document of a published protocol, by URI. Raises `TreatyError`."""

MAX_NAME, MAX_TITLE = 40, 120
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Document:
    """What is negotiated. `text`: exactly as it was said. `base`: the text of the document that it changes, or ""."""

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
        """What a project of it is called: the last name of its topic, else its title."""
        words = re.sub(r"[^a-z0-9]+", "-", (self.topic.rpartition("/")[2] or self.title).lower())
        return words.strip("-")[:MAX_NAME].strip("-") or "protocol"

    @property
    def uri(self) -> str:
        """Its placeholder of a URI, at a host that cannot exist (RFC 2606), until it is published."""
        return f"https://negotiated.invalid/protocols/negotiated.invalid:{self.hash}/{self.name}/1.0"


async def resolve(text: str, fetch: Fetch | None) -> Document:
    """A candidate document with its base.

    Raises as `parse_candidate` does for a text that is none, and `Refused` (`negotiation.base`) when the base cannot be had, is
    not what the text pins, or stands on a base itself.
    """
    candidate = parse_candidate(text)
    title = printable(candidate.title, MAX_TITLE)[:MAX_TITLE] or "A negotiated protocol"
    if candidate.base is None:
        return Document(text, title, candidate.topic, "")
    uri = candidate.base.uri
    if fetch is None:
        raise Refused("negotiation.base", f"The document changes {uri}, and this agent has no registry to fetch that from.")
    try:
        data = await fetch(uri)
    except TreatyError as error:
        _log.warning("The base %s of a document that was proposed: %s (%s)", uri, error, error.code)
        raise Refused("negotiation.base", f"The document changes {uri}, which cannot be had here.") from error
    if len(data) > MAX_DOCUMENT or hex_digest(data) != candidate.base.sha256:
        raise Refused("negotiation.base", f"What {uri} leads to is not the document that is to be changed: its digest differs.")
    check_document(data)
    base = data.decode("utf-8")
    if _stands_on_another(base):
        raise Refused("negotiation.base", f"{uri} consists of changes itself.", fix="Take a base that is written in full.")
    return Document(text, title, candidate.topic, base)


def _stands_on_another(base: str) -> bool:
    try:
        return parse_candidate(base).base is not None
    except TreatyError:
        return False  # what was published need not have the form of a candidate
