"""Make and cache the representation of each resource that a GET serves.

A *target* is the cache key of a representation: its path, and its query in one canonical spelling, such as
`/protocols/a.example/chat/1.0.md`, `/checkpoint`, `/protocols?q=info`.

An answer is made at one of two heads:

- The *newest* head: records, documents, lists, the checkpoint. It is the head of a writer's receipt. A cached answer is dropped
  as soon as a leaf changes a subject that it depends on (`log.changes`), so a writer who asks this registry, and no cache before
  it, reads its own writes.
- The *periodic* head, the published head of at most `PERIOD` seconds ago: bundles, elections, speakers, standings and receipts.
  Their proofs change with every leaf, so at the newest head they could not be cached. A decision begins a period too. If a leaf
  has changed the subject of a bundle since then, the bundle is made at the current published head, or at the newest head when it
  is not found below that one.

Answers are made a few at a time, with fair turns by network (`admission.fair_queue`): two searches, and four others, of the
eight connections of the pool. Concurrent requests for the same answer share it, unless the log has grown since its start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from treaty_consensus import canonical
from treaty_consensus.canonical import b64encode
from treaty_consensus.codes import LogCode, RegistryCode
from treaty_consensus.errors import NotFound, Unavailable
from treaty_consensus.events import Subject
from treaty_consensus.handler.compatibility import Compatibility
from treaty_consensus.log.tiles import TILE_WIDTH, parse_path, truncated, width_at

from ..admission.fair_queue import FairQueue
from ..cache_control import IMMUTABLE, REVALIDATE, SHARED
from ..catalogue.predecessors import Attached
from ..catalogue.queries import Catalogue
from ..catalogue.resources import Bundle, Record
from ..catalogue.retrieval import Query, Retrieval
from ..catalogue.standing import StandingQueries
from ..codes import RegistryStatementCode
from ..log.changes import CATALOGUE, HEAD, PERIODIC, Changes, elected, versions_of
from ..networks import sender
from ..readable import Head, ReadableLog
from ..storage.stored_leaf import restored
from .bundles import Plan, assemble, evidence_plan, protocol_plan, topic_plan
from .cache import ResponseCache
from .feeds import ATOM, Feeds
from .negotiation import Form
from .representation import BUNDLE, JSON, MARKDOWN, OCTETS, TEXT, Representation
from .topics import ElectionQueries
from .verdicts import Verdicts
from .voting import VotingQueries

# Seconds. The proofs of a bundle change with every leaf, so only an older head lets many readers share one.
PERIOD = 10.0
# PostgreSQL's bigint.
MAX_SIZE = 2**63 - 1
VARY = ("Vary", "Accept")
# A browser must not render foreign bytes under the registry's origin.
_ATTACHMENT = ("Content-Disposition", "attachment")
# Four answers and two searches at a time leave two of the pool's eight connections to admission and look-ups.
_WIDTH, _WAITING = 4, 256
_SEARCHES, _SEARCHES_WAITING = 2, 64
_UNKNOWN = "::"  # the address of requests that came without a network

_LEAF = "select leaf from leaves where statement = $1 and index < $2"

_T = TypeVar("_T")


class _Moment(NamedTuple):
    """The state when the making of an answer started: the newest head, its recorded changes, and the end of the period."""

    head: Head
    changes: Changes
    until: float


Made: TypeAlias = tuple[Representation, Iterable[str]]
"""A new answer, and the subjects that it depends on."""


class BundleView(Representation):
    """A bundle without a consistency proof, its head, and the subjects that it depends on."""

    __slots__ = ("head", "subjects")

    def __init__(self, bundle: Bundle, head: Head, subjects: Iterable[str]) -> None:
        super().__init__(msgspec.json.encode(bundle), BUNDLE, VARY, cache_control=SHARED)
        self.head = head
        self.subjects = frozenset(subjects)

    def with_consistency(self, since: int, proof: list[bytes]) -> Representation:
        """Return this bundle with the consistency proof from the tree of `since` leaves as its last member."""
        member = b',"consistency":' + msgspec.json.encode([*map(b64encode, proof)]) + b"}"
        return Representation(self.body[:-1] + member, BUNDLE, VARY, cache_control=SHARED, tag=f"{self.tag}-{since}")


class Views:
    """Makes and caches representations. One per process, on one event loop."""

    def __init__(self, registry: ReadableLog, memory: ResponseCache | None = None, period: float = PERIOD) -> None:
        self.registry = registry
        self.catalogue = Catalogue(registry.pool)
        self.retrieval = Retrieval(registry.pool)
        self.standings = StandingQueries(registry.pool)
        self.elections = ElectionQueries(registry, self.standings)
        self.voting = VotingQueries(registry, self.elections)
        self.feeds = Feeds(registry)
        self._verdicts = Verdicts(registry)
        self.memory = memory or ResponseCache()
        self._queue = FairQueue(time.monotonic, width=_WIDTH, waiting=_WAITING, code=RegistryCode.BUSY)
        self.searches = FairQueue(time.monotonic, width=_SEARCHES, waiting=_SEARCHES_WAITING, code=RegistryCode.BUSY)
        self._making: dict[str, tuple[Head, asyncio.Task[Representation]]] = {}
        self._period = period
        self._changes = registry.changes
        self._begin_period(registry.head)
        self.memory.renew(registry.head, None)

    @property
    def queues(self) -> dict[str, FairQueue]:
        """Return the queues of answers that are being made, and of searches."""
        return {"answers": self._queue, "searches": self.searches}

    @property
    def is_current(self) -> bool:
        """Whether the cache has nothing to drop. Called for every request."""
        head = self.registry.head
        return self.memory.head is head and (self._head is head or time.monotonic() < self._until)

    def renew(self) -> None:
        """Drop the cached answers that the newest head or the end of a period makes outdated."""
        head, served, changes = self.registry.head, self.memory.head, self.registry.changes
        # After a new take-over the old record of changes says nothing, so everything is dropped.
        changed = changes.between(served.size, head.size) if served and changes is self._changes else None
        self._changes = changes
        subjects = {HEAD, *(changed or ())}
        # Only at the end of a period and of an epoch: the proofs change with every leaf, and would never be served twice.
        if changed is None or PERIODIC in changed or time.monotonic() >= self._until:
            self._begin_period(head)
            subjects.add(PERIODIC)
        self.memory.renew(head, None if changed is None else subjects)

    async def json(
        self, target: str, make: Callable[[], Awaitable[msgspec.Struct]], *subjects: str, cache_control: str = REVALIDATE
    ) -> Representation:
        """Return the JSON of the result of `make`, which depends on `subjects`. Raises the errors of `make`."""

        async def view() -> Made:
            return Representation(msgspec.json.encode(await make()), JSON, VARY, cache_control=cache_control), subjects

        return await self.made(target, view)

    async def feed(self, target: str, subject: Subject | None) -> Representation:
        """Return an Atom feed. Raises `Unavailable`."""

        async def view() -> Made:
            return Representation(await self.feeds.feed(target, subject), ATOM), (HEAD,)

        return await self.made(target, view)

    def constant(self, target: str, body: bytes, media_type: str = JSON) -> Representation:
        """Return bytes that do not change while this process runs."""
        view = Representation(body, media_type)
        self.memory.keep(target, view)
        return view

    async def page(self, target: str, query: Query) -> Representation:
        """Return a page of search results. Raises as `Retrieval.page`."""

        async def view() -> Made:
            return Representation(msgspec.json.encode(await self.retrieval.page(query)), JSON, VARY), (CATALOGUE,)

        return await self.made(target, view, self.searches)

    async def versions(self, namespace: str, name: str) -> Representation:
        """Return all versions of a protocol. Raises as `Catalogue.versions`."""
        path = f"/protocols/{namespace}/{name}"

        async def view() -> Made:
            rows = await self.catalogue.versions(namespace, name)
            topics = {elected(summary.topic) for summary in rows.versions}
            return Representation(msgspec.json.encode(rows), JSON, VARY, cache_control=SHARED), (self.uri(path), *topics)

        return await self.made(path, view)

    async def protocol(self, path: str, form: Form) -> Representation:
        """Return a version at `/protocols/NAMESPACE/NAME/VERSION` in one of its forms. Raises `Malformed`, `NotFound`, `Gone`."""
        if form == "bundle":
            return await self.bundle(path, None)
        cached = self.memory.get(f"{path}.{form}")
        if cached is not None:
            return cached
        # The moment before the read: a change after it makes the answer unfit for the cache.
        now, uri = self._now(), self.uri(path)
        record = await self.catalogue.record(uri)
        if form == "json":  # without a task of its own, because `Catalogue.record` shares queries already
            parsed = msgspec.json.decode(record.json, type=Record)
            try:
                verdict = await self.verdict(parsed)
            except Unavailable:  # all readers are busy: a record is served all the same, and not kept
                return Representation(record.json, JSON, VARY, cache_control=SHARED)
            body = msgspec.json.encode(msgspec.structs.replace(parsed, compatibility=verdict)) if verdict else record.json
            view = Representation(body, JSON, VARY, cache_control=SHARED)
            self._keep(now, f"{path}.json", view, (uri, elected(parsed.topic), versions_of(uri)))
            return view

        async def document() -> Made:
            data = await self.registry.blob(record.document)
            return Representation(data, MARKDOWN, VARY, cache_control=IMMUTABLE, tag=record.document), ()

        return await self.made(f"{path}.md", document)

    async def verdict(self, record: Record) -> Compatibility | None:
        """Return the verdict on a version and the one before it. None where one of them has no handler that can be read. Raises
        `Unavailable`."""
        pair = await self._verdicts.pair(record)
        return None if pair is None else await self.verdict_between(*pair)

    async def verdict_between(self, old: Attached, new: Attached) -> Compatibility | None:
        """Return the verdict on two handlers, or None if one cannot be read. Raises `Unavailable`."""

        async def view() -> Made:
            return Representation(msgspec.msgpack.encode(await self._verdicts.read(old, new)), OCTETS), ()

        answer = await self.made(f"compatibility {old.wheel} {new.wheel} {old.filename} {new.filename}", view)
        return msgspec.msgpack.decode(answer.body, type=Compatibility | None)

    async def bundle(self, path: str, since: int | None) -> Representation:
        """Return the bundle of the version at `path`. Raises as `bundles.protocol_plan`."""
        uri = self.uri(path)
        return await self._bundle(path, since, lambda head: protocol_plan(self.registry, head, uri))

    async def evidence(self, path: str) -> Representation:
        """Return the bundle of the version at `path` with the reports of those that agreed on it. Raises as `bundle`."""
        uri = self.uri(path)
        return await self._bundle(f"{path}/evidence", None, lambda head: evidence_plan(self.registry, head, uri))

    async def topic(self, topic: str) -> Representation:
        """Return a topic's election. Raises as `topics.ElectionQueries.topic`."""

        async def view() -> Made:
            value = await self.elections.topic(topic, self.registry.head)
            return Representation(msgspec.json.encode(value), JSON, VARY, cache_control=SHARED), (topic, PERIODIC)

        return await self.made(f"/topics/{topic}.json", view)

    async def topic_bundle(self, topic: str, since: int | None) -> Representation:
        """Return a topic's bundle. Raises as `bundles.topic_plan`."""
        return await self._bundle(f"/topics/{topic}", since, lambda head: topic_plan(self.registry, head, topic))

    async def blob(self, digest: str) -> Representation:
        """Return a blob. Raises `Malformed`, `NotFound`, `Gone`."""
        canonical.parse_digest(digest)

        async def view() -> Made:
            data = await self.registry.blob(digest)
            return Representation(data, OCTETS, _ATTACHMENT, cache_control=IMMUTABLE, tag=digest), ()

        return await self.made(f"/blobs/sha256/{digest}", view)

    async def tile(self, path: str) -> Representation:
        """Return a tile. The widest existing tile at its place is read; every narrower one is its beginning.

        Raises `Malformed` or `NotFound`.
        """
        tile, head = parse_path(path), self.registry.head
        width = width_at(tile, head.size)
        if tile.width > width:
            raise NotFound(LogCode.MISSING, f"The log has no tile {path} yet.", fix="See /checkpoint for its size.")
        widest = tile._replace(width=width).path

        async def view() -> Made:
            data = await self.registry.tile(widest, head)
            assert data is not None, "the head has it"
            whole = Representation(data, OCTETS, cache_control=IMMUTABLE, tag=widest)
            return whole, () if width == TILE_WIDTH else (HEAD,)  # a wider tile replaces it

        whole = await self.made(widest, view)
        if path == widest:
            return whole
        # The beginning of the widest tile, so one cached tile serves all narrower ones.
        return Representation(truncated(tile, whole.body), OCTETS, cache_control=IMMUTABLE, tag=path)

    async def checkpoint(self) -> Representation:
        """Return the newest published checkpoint, with the cosignatures of witnesses if there are any."""
        now = self._now()
        view = Representation(now.head.published.note, TEXT, cache_control=SHARED)
        self._keep(now, "/checkpoint", view, (HEAD,))
        return view

    async def statement(self, id_: str) -> Representation:
        """Return a logged statement as it was signed. Raises `Malformed` or `NotFound`."""
        digest = bytes.fromhex(canonical.parse_digest(id_))

        async def view() -> Made:
            leaf = await self.registry.pool.fetchval(_LEAF, digest, self.registry.head.size)
            if leaf is None:
                raise NotFound(RegistryStatementCode.UNKNOWN, f"This log has no statement {id_}.")
            return Representation(restored(leaf), JSON, VARY, cache_control=IMMUTABLE), ()

        return await self.made(f"/statements/{id_}", view)

    async def receipt(self, id_: str) -> Representation:
        """Return a statement's receipt. Raises `Malformed` or `NotFound`."""

        async def view() -> Made:
            newest = self.registry.head
            # A writer that asks for a new leaf's receipt finds it at the newest head only.
            heads = self._periodic, newest.published, newest
            receipt = await _first_found(lambda head: self.registry.receipt(id_, head), *heads)
            return Representation(receipt, TEXT), (PERIODIC,)

        return await self.made(f"/proofs/{id_}", view)

    def _begin_period(self, head: Head) -> None:
        self._head, self._periodic = head, head.published
        self._until = time.monotonic() + self._period

    async def _bundle(self, path: str, since: int | None, plan: Callable[[Head], Awaitable[Plan]]) -> Representation:
        target = f"{path}.bundle"
        whole = await self.made(target, lambda: self._whole(plan))
        assert isinstance(whole, BundleView), "nothing else is kept under this target"
        # This node may lag behind the one that the reader asked before. It then sends no proof.
        if since is None or since > whole.head.size:
            return whole

        async def view() -> Made:
            proof = await self.registry.consistency(since, whole.head)
            return whole.with_consistency(since, proof), whole.subjects

        return await self.made(f"{target}?since={since}", view)

    async def _whole(self, plan: Callable[[Head], Awaitable[Plan]]) -> Made:
        newest = self.registry.head
        planned = await _first_found(plan, self._periodic, newest.published, newest)
        # A status or a new handler must not wait for the end of the period.
        if self._is_behind(planned, newest):
            planned = await _first_found(plan, newest.published, newest)
        subjects = {PERIODIC, *planned.subjects}
        if self._is_behind(planned, newest) or (planned.head is newest and newest.published is not newest):
            subjects.add(HEAD)  # drop it at the next head, which witnesses may have cosigned by then
        view = BundleView(await assemble(self.registry, planned), planned.head, subjects)
        return view, view.subjects

    def _is_behind(self, plan: Plan, newest: Head) -> bool:
        """Whether a subject of the plan has changed between its head and the newest head."""
        changed = self.registry.changes.between(plan.head.size, newest.size)
        return changed is None or bool(changed & plan.subjects)

    async def made(self, target: str, make: Callable[[], Awaitable[Made]], queue: FairQueue | None = None) -> Representation:
        """Return the cached answer, the answer that is being made, or a new answer of `make` when its turn comes.

        Raises the errors of `make`, and `Unavailable` (`registry.busy`).
        """
        cached = self.memory.get(target)
        if cached is not None:
            return cached
        now = self._now()
        begun, task = self._making.get(target, (None, None))
        # A task from an older head may miss a leaf that this caller has written.
        if task is None or begun is not now.head:
            task = asyncio.create_task(self._make(target, now, make, queue or self._queue))
            task.add_done_callback(_retrieve)
            self._making[target] = now.head, task
        return await asyncio.shield(task)  # cancelling the first caller must not cancel it for the others

    async def _make(self, target: str, now: _Moment, make: Callable[[], Awaitable[Made]], queue: FairQueue) -> Representation:
        try:
            async with queue.turn(sender.get() or _UNKNOWN, 1):
                view, subjects = await make()
            self._keep(now, target, view, subjects)
            return view
        finally:
            _, task = self._making.get(target, (None, None))
            # A newer task may have taken the place.
            if task is asyncio.current_task():
                del self._making[target]

    def _now(self) -> _Moment:
        return _Moment(self.registry.head, self.registry.changes, self._until)

    def _keep(self, begun: _Moment, target: str, view: Representation, subjects: Iterable[str]) -> None:
        """Cache an answer that was read from `begun` on, unless a subject that it depends on has changed since."""
        served, about = self.memory.head, frozenset(subjects)
        # Another process may have led in between, with changes that are not recorded here.
        if begun.changes is not self._changes or served is None:
            return
        if begun.head is not served:
            changed = self._changes.between(begun.head.size, served.size)
            if changed is None or changed & about or HEAD in about:
                return
        if PERIODIC not in about or begun.until == self._until:
            self.memory.keep(target, view, about)

    def uri(self, path: str) -> str:
        return f"https://{self.registry.origin}{path}"


async def _first_found(make: Callable[[Head], Awaitable[_T]], *heads: Head) -> _T:
    """Return the result of `make` at the first of these heads, older ones first, where it is found. Raises `NotFound` if at
    none."""
    *earlier, newest = heads
    for head in earlier:
        if head is not newest:
            try:
                return await make(head)
            except NotFound:
                continue
    return await make(newest)


def _retrieve(task: asyncio.Task[Representation]) -> None:
    """Mark the error of a task as retrieved, because all callers may have been cancelled."""
    if not task.cancelled():
        task.exception()


def parse_since(text: str | None) -> int | None:
    """Parse the value of `since`, a size of the log. Raises `Malformed`."""
    return None if text is None else canonical.parse_decimal(text, limit=MAX_SIZE)
