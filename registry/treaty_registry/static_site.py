"""Write the read side of a registry to the object store of its tiles, so that agents and people read it while no process runs.

    protocols/NS/NAME/VERSION.bundle, .json, .md        a version: all proofs, record, document
    protocols/NS/NAME.json                              its versions
    topics/TOPIC.bundle, .json; topics.json             an election with its newest decision; all topics
    index/NAMESPACE/simple/…, files/…                   package indexes, their lists as HTML (`serving.package_index`)
    statements/ID                                       each decision, so that an agent that missed epochs follows them back
    blobs/sha256/HEX                                    every blob of a statement: wheels, transcripts, …
    log                                                 names and keys
    …/index.html                                        the page at each of these paths, and the first page
    static/FILE                                         the files of the pages
    site.json                                           how far this copy is (`Progress`)

The names are the paths of the API with the suffix of the form, so a client of the API finds them behind any static web server.

The leader does this. It follows the log: each leaf renews the objects that it changes, and a withdrawal deletes bytes. Besides,
the bundles are renewed in rounds, because a reader refuses a proof that is older than its policy allows. Every bundle is made at
a head that `tile_copy` has copied, so its consistency with another one is proved from tiles of the same store.

A crash leaves some newer objects and an older `site.json`, from which the next leader goes on: all of it is safe to repeat. A
leader that was replaced may write an older object over a newer one; the next round renews it, and deletes withdrawn bytes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import structlog
from obstore.exceptions import BaseError

from treaty_consensus import statement
from treaty_consensus.codes import LogCode
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Gone, NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Decision, Withdrawal, blobs_of
from treaty_consensus.protocol import parse_protocol_uri

from .cache_control import SHARED
from .catalogue.package_index import OWN
from .codes import BlobsCode
from .log.changes import subjects_of, versions_of
from .log.checkpoints import Head
from .log.tile_copy import TileCopy
from .operator.restore import STATEMENT_START
from .pages.pages import Pages
from .registry import Registry
from .serving import package_index
from .serving.bundles import Plan, assemble, protocol_plan, topic_plan
from .serving.representation import HTML, JSON, Representation
from .serving.views import BundleView
from .storage.postgres import DATABASE_ERRORS

if TYPE_CHECKING:
    from asyncpg import Record as Row

ROUND = 900
"""Seconds from the begin of a round to that of the next one, if it is done by then: a quarter of a reader's usual `max_age`."""
_PERIOD = 2.0  # seconds between two looks at the head
_LEAVES = 256  # of one step, after which the progress is written: a restart repeats at most so many
_BATCH = 32  # protocols and topics of a round in one period: a bundle costs about 5 ms, and readers have the rest
_AT_ONCE = 4  # objects in work, which bounds memory and leaves connections of the pool to readers
_MAX_AFFECTED = 4096  # protocols that the withdrawals of one step change at once; a round changes the others
_MAX_TOPICS = 10_000  # of the one list: a static server has no pages of it, and a client reads 4 MiB
_MAX_PROGRESS = 64 * 1024
_ENDINGS = (".metadata", ".provenance")
_KEPT_HEADERS = {
    b"content-type": "Content-Type",
    b"cache-control": "Cache-Control",
    b"content-disposition": "Content-Disposition",
}

_CHANGED = """
select uri, topic from protocols where uri = any($1::text[])
union select uri, topic from protocols where document = any($2::bytea[]) or card = any($2::bytea[])
union select p.uri, p.topic from handlers h join protocols p using (uri)
where h.wheel = any($2::bytea[]) or h.bundle = any($2::bytea[])
limit $3
"""
_TRANSCRIPTS = "select distinct topic from decisions where transcript = any($1::bytea[])"
_DOCUMENTS = "select uri from protocols where document = any($1::bytea[])"
_WHEELS = "select distinct publisher, filename, wheel, signer from handlers where uri = any($1::text[]) limit $2"
_FILES = "select distinct publisher, filename, wheel from handlers where wheel = any($1::bytea[])"
_WITHDRAWN = "select sha256 from blobs where withdrawn is not null"
_PROTOCOLS = "select uri from protocols where uri > $1 and index < $2 order by uri limit $3"
_TOPICS = "select topic from topics where topic > $1 order by topic limit $2"

_log = structlog.get_logger(__name__)


class Progress(msgspec.Struct, frozen=True):
    """`site.json`. `size`: the leaves that the copy follows. `begun`: when the round began, Unix seconds.

    `protocol`, `topic`: the last one that the round has renewed; None when it is through. `whole`: the round renews records and
    pages too. `again`: the next one begins at once and is whole, because a leaf has changed any number of objects.
    """

    origin: str
    size: int = 0
    begun: int = 0
    protocol: str | None = None
    topic: str | None = None
    whole: bool = False
    again: bool = False

    @property
    def is_round_over(self) -> bool:
        """Whether nothing is left of the round."""
        return self.protocol is None and self.topic is None


@dataclass
class _Leaves:
    """What some leaves change: the URIs of versions, topics with a decision, ids of decisions. `blobs`, `withdrawn`: digests."""

    uris: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    decisions: set[str] = field(default_factory=set)
    blobs: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    everything: bool = False


class StaticSite:
    """The copy beside the tiles. For one event loop."""

    def __init__(self, registry: Registry, tiles: TileCopy, pages: Pages) -> None:
        self._registry, self._tiles, self._store = registry, tiles, tiles.store
        self._pages, self._views = pages, pages.views
        self._written: Progress | None = None  # as this process wrote it last; None before, or when another one may have led
        self._head: bytes = b""  # the note of the newest head in `log`

    async def run(self) -> None:
        """Follow the copied heads while this process leads, until cancelled. Failures are logged once and tried again."""
        reported = ""
        while True:
            await asyncio.sleep(_PERIOD)
            head = self._tiles.published
            if head is None or not self._registry.leader.leads:
                self._written = None
                continue
            try:
                await self.renew(head)
                reported = ""
            # The registry does not depend on its copy, so nothing here may end this task.
            except Exception as error:
                self._written = None
                if reported != (reported := f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"):
                    is_expected = isinstance(error, (TreatyError, BaseError, *DATABASE_ERRORS))
                    _log.error("the static site was not renewed", error=reported, exc_info=None if is_expected else error)

    async def renew(self, head: Head) -> None:
        """Bring the copy to `head`, and go on with the round. Raises `Untrusted` for the site of another log, and obstore's
        errors."""
        progress = self._written or await self._begin()
        while progress.size < head.size:
            progress = await self._follow(progress, head)
            await self._save(progress)
        if progress.is_round_over and (progress.again or int(self._registry.clock().timestamp()) - progress.begun >= ROUND):
            progress = await self._begin_round(progress)
        if not progress.is_round_over:
            progress = await self._go_on(progress, head)
            await self._save(progress)
        if head.note != self._head:
            log = Representation(msgspec.json.encode(await self._views.elections.log(head)), JSON, cache_control=SHARED)
            await self._put("/log", log)
            self._head = head.note

    async def _begin(self) -> Progress:
        """Return the progress of the store. The files of the pages are those of this release."""
        data, condition = await self._store.get("site.json", _MAX_PROGRESS)
        if data is None and condition != "create":
            raise _foreign()
        try:
            progress = Progress(self._registry.origin) if data is None else msgspec.json.decode(data, type=Progress)
        except msgspec.DecodeError as error:
            raise _foreign() from error
        if progress.origin != self._registry.origin:
            raise _foreign()
        for path, file in self._pages.assets.files.items():
            await self._put(path, file)
        wheels, own = self._registry.wheels, f"/index/{OWN}"
        files = {f"{own}/files/{digest}/{filename}" for digest, filename in wheels.by_digest}
        await self._each((path + ending for path in files for ending in ("", _ENDINGS[0])), self._index_file)
        await self._each({f"{own}/simple", *(f"{own}/simple/{wheel.project}" for wheel in wheels.wheels)}, self._index_list)
        self._head = b""
        return progress

    async def _save(self, progress: Progress) -> None:
        await self._put("/site.json", Representation(msgspec.json.encode(progress), JSON))
        self._written = progress

    # The leaves

    async def _follow(self, progress: Progress, head: Head) -> Progress:
        """Renew the objects that the next leaves change."""
        end = min(progress.size + _LEAVES, head.size)
        leaves = await self._registry.reader.entries(progress.size, end, head)
        # In a thread: parsing hundreds of leaves would hold up the answers to readers.
        changed = await asyncio.to_thread(_read, leaves)
        self._refresh()
        # First, so that a bundle names no blob that is not there yet.
        await self._each(changed.blobs, self._blob)
        await self._each(changed.decisions, self._statement)
        if changed.withdrawn:
            await self._withdraw(changed.withdrawn)
        digests = [*map(bytes.fromhex, changed.withdrawn)]
        rows = await self._registry.pool.fetch(_CHANGED, [*changed.uris], digests, _MAX_AFFECTED)
        topics = changed.topics | {row["topic"] for row in rows}
        if digests:
            topics |= {row["topic"] for row in await self._registry.pool.fetch(_TRANSCRIPTS, digests)}
        uris = {row["uri"] for row in rows}
        await self._each(uris, lambda uri: self._version(uri, head, whole=True))
        await self._each({versions_of(uri) for uri in uris}, self._versions)
        await self._indexes(uris, with_files=True)
        await self._each(topics, lambda topic: self._topic(topic, head))
        if topics:
            await self._front()
        changes_more = changed.everything or bool(changed.topics) or len(rows) == _MAX_AFFECTED
        # Before the first round every object is new.
        again = progress.again or (changes_more and progress.begun > 0)
        return msgspec.structs.replace(progress, size=end, again=again)

    async def _blob(self, digest: str) -> None:
        await self._made(f"/blobs/sha256/{digest}", lambda: self._views.blob(digest))

    async def _statement(self, digest: str) -> None:
        await self._made(f"/statements/{digest}", lambda: self._views.statement(digest))

    async def _withdraw(self, digests: Iterable[str]) -> None:
        """Delete bytes, also where they are the document of a version."""
        listed = [*digests]
        rows = await self._registry.pool.fetch(_DOCUMENTS, [*map(bytes.fromhex, listed)])
        keys = [f"blobs/sha256/{digest}" for digest in listed]
        for row in await self._registry.pool.fetch(_FILES, [*map(bytes.fromhex, listed)]):
            keys += [f"{path[1:]}{ending}" for path in _file(row) for ending in ("", *_ENDINGS)]
        await self._each([*keys, *(f"{_path(row['uri'])[1:]}.md" for row in rows)], self._store.delete)

    # The rounds

    async def _begin_round(self, progress: Progress) -> Progress:
        # Again: a leader that was replaced meanwhile may have written them after this one deleted them.
        withdrawn = await self._registry.pool.fetch(_WITHDRAWN)
        if withdrawn:
            await self._withdraw(row["sha256"].hex() for row in withdrawn)
        self._refresh()
        await self._front()
        begun = int(self._registry.clock().timestamp())
        return Progress(self._registry.origin, progress.size, begun, "", "", progress.again)

    async def _go_on(self, progress: Progress, head: Head) -> Progress:
        """Renew the next protocols and topics of the round."""
        self._refresh()
        protocol, topic, pool = progress.protocol, progress.topic, self._registry.pool
        if protocol is not None:
            uris = [row["uri"] for row in await pool.fetch(_PROTOCOLS, protocol, head.size, _BATCH)]
            await self._each(uris, lambda uri: self._version(uri, head, whole=progress.whole))
            await self._indexes(uris, with_files=progress.whole)
            protocol = uris[-1] if len(uris) == _BATCH else None
        if topic is not None:
            topics = [row["topic"] for row in await pool.fetch(_TOPICS, topic, _BATCH)]
            await self._each(topics, lambda name: self._topic(name, head))
            topic = topics[-1] if len(topics) == _BATCH else None
        return msgspec.structs.replace(progress, protocol=protocol, topic=topic)

    # The objects

    async def _version(self, uri: str, head: Head, *, whole: bool) -> None:
        path = _path(uri)
        await self._made(f"{path}.bundle", lambda: self._bundle(protocol_plan(self._registry, head, uri)))
        if whole:
            await self._made(f"{path}.json", lambda: self._views.protocol(path, "json"))
            await self._made(f"{path}.md", lambda: self._views.protocol(path, "md"))
            await self._made(f"{path}/index.html", lambda: self._pages.protocol(path))

    async def _versions(self, line: str) -> None:
        path = line.removeprefix(f"https://{self._registry.origin}")
        _, _, namespace, name = path.split("/")
        await self._made(f"{path}.json", lambda: self._views.versions(namespace, name))
        await self._made(f"{path}/index.html", lambda: self._pages.versions(path, namespace, name))

    async def _indexes(self, uris: Iterable[str], *, with_files: bool) -> None:
        """Renew the package indexes in which the wheels of these versions are."""
        rows = await self._registry.pool.fetch(_WHEELS, [*uris], _MAX_AFFECTED)
        files = {path: row for row in rows for path in _file(row)}
        if with_files:
            # A bundle without a certificate has no provenance.
            endings = {path: ("", *_ENDINGS) if row["signer"] else ("", _ENDINGS[0]) for path, row in files.items()}
            await self._each((path + ending for path in files for ending in endings[path]), self._index_file)
        lists = {path.partition("/files/")[0] + "/simple" for path in files}
        projects = {f"{path.partition('/files/')[0]}/simple/{_project(row)}" for path, row in files.items()}
        await self._each(lists | projects, self._index_list)

    async def _index_file(self, path: str) -> None:
        _, _, namespace, _, digest, filename = path.split("/")
        await self._made(path, lambda: package_index.file(self._views, namespace, digest, filename))

    async def _index_list(self, path: str) -> None:
        _, _, namespace, _, *project = path.split("/")
        if project:
            await self._made(f"{path}/index.html", lambda: package_index.project(self._views, namespace, project[0], HTML))
        else:
            await self._made(f"{path}/index.html", lambda: package_index.projects(self._views, namespace, HTML))

    async def _topic(self, topic: str, head: Head) -> None:
        path = f"/topics/{topic}"
        await self._made(f"{path}.bundle", lambda: self._bundle(topic_plan(self._registry, head, topic)))
        await self._made(f"{path}.json", lambda: self._views.topic(topic))
        await self._made(f"{path}/index.html", lambda: self._pages.topic(topic))

    async def _front(self) -> None:
        """Renew what lists everything."""
        topics = msgspec.json.encode(await self._views.elections.topics("", _MAX_TOPICS))
        await self._put("/topics.json", Representation(topics, JSON, cache_control=SHARED))
        await self._made("/topics/index.html", lambda: self._pages.topics("/topics", ""))
        await self._made("/index.html", self._pages.home)

    async def _bundle(self, plan: Awaitable[Plan]) -> Representation:
        planned = await plan
        return BundleView(await assemble(self._registry, planned), planned.head, planned.subjects)

    async def _made(self, path: str, make: Callable[[], Awaitable[Representation]]) -> None:
        """Write an object, or delete it where there is nothing to show any more."""
        try:
            view = await make()
        except (NotFound, Gone):
            await self._store.delete(path[1:])
        # One object that cannot be made, because of a damaged blob or a fault of ours, must not hold up all others for ever.
        except Exception as error:
            if isinstance(error, (Unavailable, *DATABASE_ERRORS)) and getattr(error, "code", "") != BlobsCode.DAMAGED:
                raise
            _log.exception("an object of the static site was left as it is", path=path)
        else:
            await self._put(path, view)

    async def _put(self, path: str, view: Representation) -> None:
        headers = {_KEPT_HEADERS[name]: value.decode("ascii") for name, value in view.start["headers"] if name in _KEPT_HEADERS}
        await self._store.put(path[1:], view.body, headers)

    async def _each(self, names: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with limit:
                await work(name)

        async with asyncio.TaskGroup() as group:
            for name in sorted(names):
                group.create_task(one(name))

    def _refresh(self) -> None:
        # The cache of answers is valid at a head, which a request moves on; maybe there is none.
        if not self._views.is_current:
            self._views.renew()


def _read(leaves: Iterable[bytes]) -> _Leaves:
    leaves_by_kind = _Leaves()
    for leaf in leaves:
        if not leaf.startswith(STATEMENT_START):
            continue
        parsed = statement.understand(leaf)
        match parsed.body:
            case Withdrawal() as body:
                leaves_by_kind.withdrawn.add(body.sha256)
                continue
            case Decision() as body:
                leaves_by_kind.topics.add(body.topic)
                leaves_by_kind.decisions.add(parsed.id)
        subjects = subjects_of(parsed)
        if subjects is None:
            leaves_by_kind.everything = True
        leaves_by_kind.blobs |= {blob.sha256 for blob in blobs_of(parsed.body)}
        leaves_by_kind.uris |= {
            subject for subject in subjects or () if subject.startswith("https://") and subject.count("/") == 6
        }
    return leaves_by_kind


def _path(uri: str) -> str:
    return parse_protocol_uri(uri).path


def _file(row: Row) -> list[str]:
    """Return the path of a wheel in the index of its publisher's namespace. A DID with a port has none."""
    did = parse_did(row["publisher"])
    return [f"/index/{did.namespace}/files/{row['wheel'].hex()}/{row['filename']}"] if did.port is None else []


def _project(row: Row) -> str:
    package: str = row["filename"]
    return package.partition("-")[0].replace("_", "-")


def _foreign() -> Untrusted:
    return Untrusted(
        LogCode.OTHER,
        "The store of tiles holds the site of something else than this log.",
        fix="Give each log an empty bucket or path of its own (--tiles).",
    )
