"""What is served for a GET: each resource's representation, made here and remembered.

A *target* is the key that memory has for a representation: its own path, with its query in one spelling where there is one, such
as `/protocols/a.example/chat/1.0.md`, `/checkpoint`, `/protocols?q=info`.

Answers are of one of two heads:

- the *newest*, which a writer's receipt is of: records, documents, lists, the checkpoint. What is remembered of them is forgotten
  as soon as a leaf changes what they follow from (`log.changes`), so a writer reads what it wrote.
- the *periodic* one, the published head as it was at most `PERIOD` seconds ago: bundles, elections, speakers, standings and
  receipts. Their proofs change with every leaf of the log, and would never be served twice from memory. A bundle of something
  that a leaf has changed since then is of the published head of now; what is not below that one either is of the newest.

Answers that take queries are made a few at a time, in turns by network (`admission.fair_queue`): searches two at once, all others
together four, of the eight connections there are. Two that ask for the same answer get the same, unless the log has grown since
its making began.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from treaty_consensus import canonical
from treaty_consensus.canonical import b64encode
from treaty_consensus.errors import NotFound
from treaty_consensus.log.tiles import TILE_WIDTH, parse_path, truncated, width_at

from ..admission.fair_queue import FairQueue
from ..catalogue.queries import Catalogue
from ..catalogue.resources import Bundle
from ..catalogue.retrieval import Query, Retrieval
from ..catalogue.standing import Standings
from ..log.changes import CATALOGUE, HEAD, Changes
from ..networks import sender
from ..registry import Head, Registry
from .bundles import Plan, assemble, protocol_plan, topic_plan
from .memory import Memory
from .negotiation import Form
from .representation import BUNDLE, IMMUTABLE, JSON, MARKDOWN, OCTETS, TEXT, Representation
from .topics import Elections

PERIOD = 10.0
PERIODIC = "periodic"
"""The subject of what is of the periodic head."""
MAX_SIZE = 2**63 - 1
_VARY = ("Vary", "Accept")
_ATTACHMENT = ("Content-Disposition", "attachment")
_WIDTH, _WAITING = 4, 256
_SEARCHES, _SEARCHES_WAITING = 2, 64
_UNKNOWN = "::"  # where a request came by no network

_LEAF = "select leaf from leaves where statement = $1 and index < $2"

_T = TypeVar("_T")


class _Moment(NamedTuple):
    """When the making of an answer began: the newest head, what was known of its changes, and when the period ends."""

    head: Head
    changes: Changes
    until: float


_Made: TypeAlias = tuple[Representation, Iterable[str]]
"""What was made, and the subjects that it follows from."""


class BundleView(Representation):
    """A bundle without a consistency proof, the head it is of, and what it follows from."""

    __slots__ = ("head", "subjects")

    def __init__(self, bundle: Bundle, head: Head, subjects: Iterable[str]) -> None:
        super().__init__(msgspec.json.encode(bundle), BUNDLE, _VARY)
        self.head = head
        self.subjects = frozenset(subjects)

    def with_consistency(self, since: int, proof: list[bytes]) -> Representation:
        """The same with the proof from the tree of `since` leaves, which becomes the last member."""
        member = b',"consistency":' + msgspec.json.encode([*map(b64encode, proof)]) + b"}"
        return Representation(self.body[:-1] + member, BUNDLE, _VARY, tag=f"{self.tag}-{since}")


class Views:
    """Makes and remembers representations. One a process, on one event loop."""

    def __init__(self, registry: Registry, memory: Memory | None = None, period: float = PERIOD) -> None:
        self.registry = registry
        self.catalogue = Catalogue(registry.pool)
        self.retrieval = Retrieval(registry.pool)
        self.elections = Elections(registry)
        self.standings = Standings(registry.pool)
        self.memory = memory or Memory()
        self._queue = FairQueue(time.monotonic, width=_WIDTH, waiting=_WAITING, code="registry.busy")
        self._searches = FairQueue(time.monotonic, width=_SEARCHES, waiting=_SEARCHES_WAITING, code="registry.busy")
        self._making: dict[str, tuple[Head, asyncio.Task[Representation]]] = {}
        self._period = period
        self._changes = registry.changes
        self._begin_period(registry.head)
        self.memory.renew(registry.head, None)

    @property
    def is_current(self) -> bool:
        """Whether memory holds nothing that has to be forgotten. Asked for every request."""
        head = self.registry.head
        return self.memory.head is head and (self._head is head or time.monotonic() < self._until)

    def renew(self) -> None:
        """Let memory forget what the newest head, or the end of a period, makes untrue."""
        head, known, changes = self.registry.head, self.memory.head, self.registry.changes
        changed = changes.between(known.size, head.size) if known and changes is self._changes else None
        self._changes = changes
        subjects = {HEAD, *(changed or ())}
        if changed is None or time.monotonic() >= self._until:
            self._begin_period(head)
            subjects.add(PERIODIC)
        self.memory.renew(head, None if changed is None else subjects)

    async def json(self, target: str, make: Callable[[], Awaitable[msgspec.Struct]], *subjects: str) -> Representation:
        """The JSON of what `make` returns, which follows from `subjects`. Raises what it raises."""

        async def view() -> _Made:
            return Representation(msgspec.json.encode(await make()), JSON), subjects

        return await self._made(target, view)

    def constant(self, target: str, body: bytes) -> Representation:
        """JSON that stays as it is as long as this process runs."""
        view = Representation(body, JSON)
        self.memory.keep(target, view)
        return view

    async def page(self, target: str, query: Query) -> Representation:
        """A page of search results. Raises as `Retrieval.page`."""

        async def view() -> _Made:
            return Representation(msgspec.json.encode(await self.retrieval.page(query)), JSON), (CATALOGUE,)

        return await self._made(target, view, self._searches)

    async def versions(self, namespace: str, name: str) -> Representation:
        """All versions of a protocol. Raises as `Catalogue.versions`."""
        path = f"/protocols/{namespace}/{name}"
        return await self.json(path, lambda: self.catalogue.versions(namespace, name), self._uri(path))

    async def protocol(self, path: str, form: Form) -> Representation:
        """A version at `/protocols/NAMESPACE/NAME/VERSION` in one of its forms. Raises `Malformed`, `NotFound`, `Gone`."""
        if form == "bundle":
            return await self.bundle(path, None)
        known = self.memory.get(f"{path}.{form}")
        if known is not None:
            return known
        now, uri = self._now(), self._uri(path)
        record = await self.catalogue.record(uri)
        if form == "json":  # without a task of its own: `Catalogue.record` lets all who ask share a query
            view = Representation(record.json, JSON, _VARY)
            self._keep(now, f"{path}.json", view, (uri,))
            return view

        async def document() -> _Made:
            data = await self.registry.blob(record.document)
            return Representation(data, MARKDOWN, _VARY, cache_control=IMMUTABLE, tag=record.document), ()

        return await self._made(f"{path}.md", document)

    async def bundle(self, path: str, since: int | None) -> Representation:
        """The bundle of the version at `path`. Raises as `bundles.protocol_plan`."""
        uri = self._uri(path)
        return await self._bundle(path, since, lambda head: protocol_plan(self.registry, head, uri))

    async def topic(self, topic: str) -> Representation:
        """A topic's election. Raises as `topics.Elections.topic`."""

        async def view() -> _Made:
            value = await self.elections.topic(topic, self.registry.head)
            return Representation(msgspec.json.encode(value), JSON, _VARY), (topic, PERIODIC)

        return await self._made(f"/topics/{topic}.json", view)

    async def topic_bundle(self, topic: str, since: int | None) -> Representation:
        """A topic's bundle. Raises as `bundles.topic_plan`."""
        return await self._bundle(f"/topics/{topic}", since, lambda head: topic_plan(self.registry, head, topic))

    async def blob(self, digest: str) -> Representation:
        """A blob. Raises `Malformed`, `NotFound`, `Gone`."""
        canonical.parse_digest(digest)

        async def view() -> _Made:
            data = await self.registry.blob(digest)
            return Representation(data, OCTETS, _ATTACHMENT, cache_control=IMMUTABLE, tag=digest), ()

        return await self._made(f"/blobs/sha256/{digest}", view)

    async def tile(self, path: str) -> Representation:
        """A tile. The widest one there is in its place is read, and every narrower one is the beginning of it. Raises `Malformed`
        or `NotFound`."""
        tile, head = parse_path(path), self.registry.head
        width = width_at(tile, head.size)
        if tile.width > width:
            raise NotFound("log.tile-missing", f"The log has no tile {path} yet.", fix="See /checkpoint for its size.")
        widest = tile._replace(width=width).path

        async def view() -> _Made:
            data = await self.registry.tile(widest, head)
            assert data is not None, "the head has it"
            whole = Representation(data, OCTETS, cache_control=IMMUTABLE, tag=widest)
            return whole, () if width == TILE_WIDTH else (HEAD,)  # a wider one takes its place

        whole = await self._made(widest, view)
        if path == widest:
            return whole
        return Representation(truncated(tile, whole.body), OCTETS, cache_control=IMMUTABLE, tag=path)

    async def checkpoint(self) -> Representation:
        """The newest signed checkpoint, with the cosignatures of witnesses where there are some."""
        now = self._now()
        view = Representation(now.head.published.note, TEXT)
        self._keep(now, "/checkpoint", view, (HEAD,))
        return view

    async def statement(self, id_: str) -> Representation:
        """A logged statement as it was signed. Raises `Malformed` or `NotFound`."""
        digest = bytes.fromhex(canonical.parse_digest(id_))

        async def view() -> _Made:
            leaf = await self.registry.pool.fetchval(_LEAF, digest, self.registry.head.size)
            if leaf is None:
                raise NotFound("statement.unknown", f"This log has no statement {id_}.")
            return Representation(leaf, JSON, cache_control=IMMUTABLE), ()

        return await self._made(f"/statements/{id_}", view)

    async def receipt(self, id_: str) -> Representation:
        """A statement's receipt. Raises `Malformed` or `NotFound`."""

        async def view() -> _Made:
            newest = self.registry.head
            heads = self._periodic, newest.published, newest
            receipt = await _first_found(lambda head: self.registry.receipt(id_, head), *heads)
            return Representation(receipt, TEXT), (PERIODIC,)

        return await self._made(f"/proofs/{id_}", view)

    def _begin_period(self, head: Head) -> None:
        self._head, self._periodic = head, head.published
        self._until = time.monotonic() + self._period

    async def _bundle(self, path: str, since: int | None, plan: Callable[[Head], Awaitable[Plan]]) -> Representation:
        target = f"{path}.bundle"
        whole = await self._made(target, lambda: self._whole(plan))
        assert isinstance(whole, BundleView), "nothing else is kept under this target"
        if since is None or since > whole.head.size:
            return whole

        async def view() -> _Made:
            proof = await self.registry.consistency(since, whole.head)
            return whole.with_consistency(since, proof), whole.subjects

        return await self._made(f"{target}?since={since}", view)

    async def _whole(self, plan: Callable[[Head], Awaitable[Plan]]) -> _Made:
        newest = self.registry.head
        planned = await _first_found(plan, self._periodic, newest.published, newest)
        if self._is_behind(planned, newest):
            planned = await _first_found(plan, newest.published, newest)
        subjects = {PERIODIC, *planned.subjects}
        if self._is_behind(planned, newest) or (planned.head is newest and newest.published is not newest):
            subjects.add(HEAD)  # the witnesses have yet to cosign what it should be of, and the next head may be the one
        view = BundleView(await assemble(self.registry, planned), planned.head, subjects)
        return view, view.subjects

    def _is_behind(self, plan: Plan, newest: Head) -> bool:
        """Whether something that the plan follows from has changed between its head and the newest."""
        changed = self.registry.changes.between(plan.head.size, newest.size)
        return changed is None or bool(changed & plan.subjects)

    async def _made(self, target: str, make: Callable[[], Awaitable[_Made]], queue: FairQueue | None = None) -> Representation:
        """What is remembered, or is just being made, or else what `make` makes when it is its turn. Raises what it raises, and
        `Unavailable` (`registry.busy`)."""
        known = self.memory.get(target)
        if known is not None:
            return known
        now = self._now()
        begun, task = self._making.get(target, (None, None))
        if task is None or begun is not now.head:
            task = asyncio.create_task(self._make(target, now, make, queue or self._queue))
            task.add_done_callback(_retrieve)
            self._making[target] = now.head, task
        return await asyncio.shield(task)  # the one who asked first may go away; others wait for the same

    async def _make(self, target: str, now: _Moment, make: Callable[[], Awaitable[_Made]], queue: FairQueue) -> Representation:
        try:
            async with queue.turn(sender.get() or _UNKNOWN, 1):
                view, subjects = await make()
            self._keep(now, target, view, subjects)
            return view
        finally:
            _, task = self._making.get(target, (None, None))
            if task is asyncio.current_task():
                del self._making[target]

    def _now(self) -> _Moment:
        return _Moment(self.registry.head, self.registry.changes, self._until)

    def _keep(self, begun: _Moment, target: str, view: Representation, subjects: Iterable[str]) -> None:
        """Remember what was read from `begun` on, unless something that it follows from has changed since."""
        known, about = self.memory.head, frozenset(subjects)
        if begun.changes is not self._changes or known is None:
            return
        if begun.head is not known:
            changed = self._changes.between(begun.head.size, known.size)
            if changed is None or changed & about or HEAD in about:
                return
        if PERIODIC not in about or begun.until == self._until:
            self.memory.keep(target, view, about)

    def _uri(self, path: str) -> str:
        return f"https://{self.registry.origin}{path}"


async def _first_found(make: Callable[[Head], Awaitable[_T]], *heads: Head) -> _T:
    """What is made at the first of these heads, older ones first, that it is below. Raises `NotFound` when it is below none."""
    *earlier, newest = heads
    for head in earlier:
        if head is not newest:
            try:
                return await make(head)
            except NotFound:
                continue
    return await make(newest)


def _retrieve(task: asyncio.Task[Representation]) -> None:
    """Everybody who waited for it may have gone; its error is then nobody's."""
    if not task.cancelled():
        task.exception()


def parse_since(text: str | None) -> int | None:
    """The value of `since`, a size of the log. Raises `Malformed`."""
    return None if text is None else canonical.parse_decimal(text, limit=MAX_SIZE)
