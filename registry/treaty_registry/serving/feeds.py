"""Tell the newest events of the log as Atom feeds (RFC 4287): of the whole log, or of one subject.

A feed has the newest `ENTRIES` events among the newest `WINDOW` leaves. A reader that must not miss one follows the log itself
(`treaty watch`): a feed is not proved, and its reader trusts the registry.

    <feed xmlns="http://www.w3.org/2005/Atom">
      <id>https://registry.example/feeds/topic?name=commerce/product-info</id>
      <title>registry.example: topic commerce/product-info</title> <updated>2026-07-01T12:00:00Z</updated>
      <entry>
        <id>https://registry.example/log/7</id> <title>publish</title> <updated>…</updated>
        <author><name>did:wba:alice.example</name></author>
        <link rel="alternate" href="/statements/ab…"/> <content type="text">did:wba:alice.example publishes …</content>
      </entry>
    </feed>
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from xml.etree import ElementTree

from treaty_consensus.events import LogEvent, Subject, event_of

from ..readable import ReadableLog

ATOM = "application/atom+xml; charset=utf-8"
ENTRIES = 50
WINDOW = 4_096
"""Leaves that are kept, described. A feed of a subject that none of them concerns is empty."""
_CHUNK = 256
_SPACE = "http://www.w3.org/2005/Atom"
_NEVER = 253402300799  # the last second that a timestamp of RFC 3339 can say; authors may claim any time
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 §2.2


class Feeds:
    """The newest events of a log. Each leaf is read and described once. Used from one event loop."""

    def __init__(self, registry: ReadableLog) -> None:
        self._registry = registry
        self._events: deque[LogEvent] = deque(maxlen=WINDOW)
        self._end = 0
        # Two readers must not append the same leaves.
        self._lock = asyncio.Lock()

    async def feed(self, target: str, subject: Subject | None) -> bytes:
        """Return the feed at a path. `subject`: None for the whole log. Raises `Unavailable`."""
        async with self._lock:
            await self._read()
            newest = list(self._events)
        events = [event for event in reversed(newest) if subject is None or subject in event.subjects][:ENTRIES]
        return await asyncio.to_thread(atom, self._registry.origin, target, subject, events)

    async def _read(self) -> None:
        """Describe the leaves that are new since the last call."""
        head = self._registry.head
        begin = max(self._end, head.size - WINDOW)
        for first in range(begin, head.size, _CHUNK):
            indexes = range(first, min(first + _CHUNK, head.size))
            leaves = await self._registry.reader.leaves(indexes, head)
            # In a thread, because parsing holds the loop for some milliseconds.
            self._events += await asyncio.to_thread(_described, indexes, leaves)
            self._end = indexes.stop


def _described(indexes: Iterable[int], leaves: dict[int, bytes]) -> list[LogEvent]:
    return [event_of(index, leaves[index]) for index in indexes]


def atom(origin: str, target: str, subject: Subject | None, events: list[LogEvent]) -> bytes:
    """Return the document. `events`: the newest first."""
    feed = ElementTree.Element("feed", {"xmlns": _SPACE})
    about = f"{subject.kind} {subject.name}" if subject else "the log"
    _add(feed, "id", f"https://{origin}{target}")
    _add(feed, "title", f"{origin}: {about}")
    _add(feed, "updated", _time(max((event.issued or 0 for event in events), default=0)))
    ElementTree.SubElement(feed, "link", {"rel": "self", "type": "application/atom+xml", "href": _clean(target)})
    for event in events:
        entry = ElementTree.SubElement(feed, "entry")
        _add(entry, "id", f"https://{origin}/log/{event.index}")
        _add(entry, "title", event.kind)
        # RFC 4287 §4.2.15 asks for a time. A certificate or an entry of Sigstore has none of its author's.
        _add(entry, "updated", _time(event.issued or 0))
        author = ElementTree.SubElement(entry, "author")
        _add(author, "name", " and ".join(event.authors) or origin)
        page = f"/log?before={event.index + 1}" if event.issued is None else f"/statements/{event.id}"
        ElementTree.SubElement(entry, "link", {"rel": "alternate", "href": page})
        _add(entry, "content", event.sentence).set("type", "text")
    data: bytes = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return data


def _add(parent: ElementTree.Element, name: str, text: str) -> ElementTree.Element:
    child = ElementTree.SubElement(parent, name)
    child.text = _clean(text)
    return child


def _clean(text: str) -> str:
    # An alias is any printable text, and not all of it may stand in XML.
    return _NOT_XML.sub("\ufffd", text)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(min(seconds, _NEVER), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
