"""What is served for a GET: each resource's representation, made here and remembered.

A *target* is the key that memory has for a representation: its own path, with its query where there is one, such as
`/protocols/a.example/chat/1.0.md`, `/checkpoint`, `/protocols?q=info`. Who makes one takes `registry.head` first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import NotFound
from treaty_consensus.log.tiles import TILE_WIDTH, parse_path, truncated

from ..catalogue.queries import Catalogue
from ..catalogue.resources import Bundle
from ..catalogue.standing import Standings
from ..registry import Head, Registry
from .bundles import protocol_bundle, topic_bundle
from .memory import Memory
from .negotiation import Form
from .representation import BUNDLE, IMMUTABLE, JSON, MARKDOWN, OCTETS, TEXT, Header, Representation
from .topics import Elections

MAX_SIZE = 2**63 - 1
_VARY = ("Vary", "Accept")
_ATTACHMENT = ("Content-Disposition", "attachment")


class Views:
    """Makes and remembers representations. One a process, on one event loop."""

    def __init__(self, registry: Registry, memory: Memory | None = None) -> None:
        self.registry = registry
        self.catalogue = Catalogue(registry.pool)
        self.elections = Elections(registry)
        self.standings = Standings(registry.pool)
        self.memory = memory or Memory()
        self._withdrawals_below = 0
        self._renewing: asyncio.Task[None] | None = None

    async def renew(self) -> None:
        """Let memory forget what the newest head makes untrue: everything that follows from the log, and withdrawn blobs."""
        for _ in range(2):  # the first may have begun before the head that the caller knows of
            if self.memory.head is self.registry.head:
                return
            if self._renewing is None or self._renewing.done():
                self._renewing = asyncio.create_task(self._renew())
            # One for all who wait: while PostgreSQL stands still, they must not wait for each other's attempts in turn.
            await asyncio.shield(self._renewing)

    async def _renew(self) -> None:
        head = self.registry.head
        withdrawn: list[str] = []
        if head.size > self._withdrawals_below:
            rows = await self.registry.pool.fetch("select sha256 from withdrawals where index >= $1", self._withdrawals_below)
            withdrawn = [row["sha256"].hex() for row in rows]
        self.memory.renew(head, withdrawn)
        self._withdrawals_below = head.size

    def current(self, target: str, head: Head, view: Representation) -> Representation:
        """Remember what follows from the log at `head`, which the caller took before it asked for anything."""
        self.memory.keep_for(head, target, view)
        return view

    def lasting(self, target: str, head: Head, view: Representation) -> Representation:
        """Remember what never changes; `head` as for `current`."""
        self.memory.keep(head, target, view)
        return view

    def json(self, target: str, head: Head, value: msgspec.Struct, *extra: Header) -> Representation:
        """The JSON of `value`, with `extra` headers, remembered as `current`."""
        return self.current(target, head, Representation(msgspec.json.encode(value), JSON, *extra))

    async def protocol(self, path: str, form: Form) -> Representation:
        """A version at `/protocols/NAMESPACE/NAME/VERSION` in one of its forms. Raises `Malformed`, `NotFound`, `Gone`."""
        if form == "bundle":
            return await self.bundle(path, None)
        head = self.registry.head
        record = await self.catalogue.record(self._uri(path))
        if form == "json":
            return self.current(f"{path}.json", head, Representation(record.json, JSON, _VARY))
        document = await self.registry.blob(record.document)
        view = Representation(document, MARKDOWN, _VARY, cache_control=IMMUTABLE, digest=record.document)
        return self.lasting(f"{path}.md", head, view)

    async def bundle(self, path: str, since: int | None) -> Representation:
        """The bundle of the version at `path`. Raises as `bundle.protocol_bundle`."""
        head = self.registry.head
        uri = self._uri(path)
        value = await _published(head, lambda at: protocol_bundle(self.registry, at, uri, since))
        return self._bundle(path, since, head, value)

    async def topic(self, topic: str) -> Representation:
        """A topic's election. Raises as `topics.Elections.topic`."""
        head = self.registry.head
        return self.json(f"/topics/{topic}.json", head, await self.elections.topic(topic, head), _VARY)

    async def topic_bundle(self, topic: str, since: int | None) -> Representation:
        """A topic's bundle. Raises as `bundle.topic_bundle`."""
        head = self.registry.head
        value = await _published(head, lambda at: topic_bundle(self.registry, at, topic, since))
        return self._bundle(f"/topics/{topic}", since, head, value)

    async def blob(self, digest: str) -> Representation:
        """A blob. Raises `Malformed`, `NotFound`, `Gone`."""
        canonical.parse_digest(digest)
        head = self.registry.head
        data = await self.registry.blob(digest)
        view = Representation(data, OCTETS, _ATTACHMENT, cache_control=IMMUTABLE, digest=digest)
        return self.lasting(f"/blobs/sha256/{digest}", head, view)

    async def tile(self, path: str) -> Representation:
        """A tile. Of a tile that is full in memory every narrower one is a prefix. Raises `Malformed` or `NotFound`."""
        tile = parse_path(path)
        head = self.registry.head
        full = self.memory.get(tile._replace(width=TILE_WIDTH).path)
        data = truncated(tile, full.body) if full else await self.registry.tile(path)
        if data is None:
            raise NotFound("log.tile-missing", f"The log has no tile {path} yet.", fix="See /checkpoint for its size.")
        return self.lasting(path, head, Representation(data, OCTETS, cache_control=IMMUTABLE))

    async def checkpoint(self) -> Representation:
        """The newest signed checkpoint, with the cosignatures of witnesses where there are some."""
        head = self.registry.head
        return self.current("/checkpoint", head, Representation(head.published.note, TEXT))

    def _bundle(self, path: str, since: int | None, head: Head, value: Bundle) -> Representation:
        suffix = ".bundle" if since is None else f".bundle?since={since}"
        view = Representation(msgspec.json.encode(value), BUNDLE, _VARY)
        return self.current(path + suffix, head, view)

    def _uri(self, path: str) -> str:
        return f"https://{self.registry.origin}{path}"


async def _published(head: Head, bundle: Callable[[Head], Awaitable[Bundle]]) -> Bundle:
    """A bundle at the published head; of what is so new that it is not below that one yet, at the newest."""
    try:
        return await bundle(head.published)
    except NotFound:
        if head.published is head:
            raise
    return await bundle(head)


def parse_since(text: str | None) -> int | None:
    """The value of `since`, a size of the log. Raises `Malformed`."""
    return None if text is None else canonical.parse_decimal(text, limit=MAX_SIZE)
