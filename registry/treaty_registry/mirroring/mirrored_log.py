"""Provide a mirror as one object: the reads of a registry, from verified copies.

    async with MirroredLog.open(settings, upstream) as log: ...

The first start waits until the newest checkpoint is verified. Later starts serve the checkpoint that was shown last, whether the
registry answers or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import msgspec
import structlog

from treaty_client.audit.replay_store import ReplayStore
from treaty_client.audit.snapshot import Snapshot, Snapshots
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.trust import RegistryName
from treaty_consensus import canonical, statement
from treaty_consensus.codes import TrustedRootCode
from treaty_consensus.errors import Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Genesis
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.trusted_root import without_rotations
from treaty_io.base_url import parse_base_url
from treaty_io.codes import MirrorCode
from treaty_io.network.hosts import Address, Network

from ..admission.content_checker import ContentChecker
from ..admission.uploads import Uploads
from ..codes import RegistryMirrorCode, SettingsCode
from ..data_directory import running_database
from ..log.changes import Changes
from ..log.checkpoints import RENEWAL, Head
from ..log.clock import Clock, machine_clock
from ..log.reader import LogReader
from ..log.tables import read_keys, read_range
from ..readable import ReadableLog
from ..settings import Settings
from ..storage.blobs import BlobStore
from ..storage.postgres import DATABASE_ERRORS, Pool, connect, database_silent, migrate, open_pool
from .directory import MirrorDirectory
from .follower import Follower
from .tables import MirrorTables

_PATIENCE = 1.0  # seconds for PostgreSQL in a health check
_MAX_CONFIG = 256 * 1024
_SERVICES = "/sigstore"
"""The path of the Sigstore services below a registry's URL."""

_log = structlog.get_logger(__name__)


class _About(NamedTuple):
    """The genesis of a log, the trusted root that it pins, and the URL that the registry's pages name."""

    genesis: Genesis
    trusted_root: bytes
    base_url: str


class MirroredLog(ReadableLog):
    """The mirror of one registry. Made by `open`."""

    def __init__(
        self,
        settings: Settings,
        upstream: RegistryName,
        about: _About,
        pool: Pool,
        blobs: BlobStore,
        uploads: Uploads,
        checker: ContentChecker,
        tables: MirrorTables,
        follower: Follower,
        clock: Clock,
    ) -> None:
        self.origin = upstream.origin
        self.upstream = upstream
        self.base_url = about.base_url
        self.operator = about.genesis.operator
        self.trusted_root = about.trusted_root
        self.proxies = settings.proxies
        self.contact = settings.contact
        self.wheels = settings.wheels
        self.pool = pool
        self.blobs = blobs
        self.uploads = uploads
        self.checker = checker
        self.reader = LogReader(pool)
        self._tables = tables
        self._follower = follower
        self._clock = clock
        self.disks = [follower.room, *filter(None, [blobs.room])]

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, upstream: RegistryName, *, clock: Clock = machine_clock
    ) -> AsyncIterator[MirroredLog]:
        """Start the database if needed, verify what is stored or mirror the log for the first time, and follow it.

        `settings.resolve`, `settings.ca`: how the registry is reached. `settings.base_url`: the URL that pages name, if it is not
        the registry's own. `clock`: replaces the machine's clock. Raises `Conflict` (`settings.directory`), `Untrusted`, or
        `Unavailable` when the first copy cannot be made now; the next start continues it.
        """
        directory = MirrorDirectory(settings.data)
        async with AsyncExitStack() as stack:
            stack.enter_context(directory.held())
            directory.begin(upstream)
            database = await stack.enter_async_context(running_database(settings))
            async with connect(database) as connection:
                await migrate(connection)
            pool = await stack.enter_async_context(open_pool(database))
            blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
            uploads = Uploads(pool, blobs, contact=settings.contact)
            network = Network({host: Address(*address) for host, address in settings.resolve.items()}, settings.ca)
            client = await stack.enter_async_context(RegistryClient(upstream.base_url, network))
            tables, checker = MirrorTables(database), ContentChecker()
            stack.callback(tables.close)
            stack.push_async_callback(checker.close)
            scratch = stack.enter_context(ReplayStore(settings.data))
            await tables.connect()
            # Those of the verified leaves, because a rotation may have ended the key in the mirror's name.
            stored = await read_keys(pool)
            directory.renew(upstream, stored)
            keys = _trusted(upstream.key, stored)
            snapshots = directory.snapshots
            snapshot = await _snapshot(snapshots, directory, tables, keys, scratch)
            follower = Follower(keys, client, directory, tables, uploads, blobs, checker, scratch, snapshots, snapshot)
            checkpoint = directory.shown(keys, tables.edge.size)
            # The first copy is complete before anything is served.
            if checkpoint is None:
                await _begin(follower)
            else:
                await _resume(follower, directory, tables, keys)
            about = await _about(pool, client, directory, upstream, settings.base_url)
            mirrored = cls(settings, upstream, about, pool, blobs, uploads, checker, tables, follower, clock)
            following = asyncio.create_task(follower.run(), name="follow the registry")
            stack.push_async_callback(_ended, following)
            yield mirrored

    @property
    def keys(self) -> LogKeys:
        """Return the keys of the log, with those of the rotations that were verified."""
        return self._follower.keys

    @property
    def resumed(self) -> int:
        """Return the number of leaves that an earlier start replayed, and this one did not."""
        return self._follower.resumed

    @property
    def head(self) -> Head:
        """Return the newest head whose leaves are all verified and stored, with the note as it was received."""
        assert self._follower.head is not None, "open showed one"
        return self._follower.head

    @property
    def changes(self) -> Changes:  # type: ignore[override]  # the tables replace theirs when they connect again
        """Return the changes of the leaves that were stored since the tables were connected."""
        return self._tables.changes

    @property
    def refusal(self) -> Refused:
        """Return the refusal of every write."""
        return Refused(
            RegistryMirrorCode.READ_ONLY,
            f"This is a mirror of {self.origin}. It takes no writes.",
            fix=f"Send it to the registry: {self.base_url}",
        )

    @property
    def failure(self) -> TreatyError | None:
        """Return the error of the last step of following; None after a step that succeeded."""
        return self._follower.failure

    @property
    def alarm(self) -> TreatyError | None:
        """Return the reason why the log is not followed any further, or None."""
        return self._follower.alarm

    async def check_ready(self) -> None:
        """Raise `Unavailable` when the log is not followed, its newest checkpoint is old, or PostgreSQL does not answer."""
        alarm, failure = self.alarm, self.failure
        if alarm is not None:
            raise Unavailable(
                RegistryMirrorCode.STOPPED,
                f"This mirror serves {self.head.size} leaves and follows no further ({alarm.code}): {alarm.message}",
                fix=alarm.fix,
            )
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.pool.fetchval("select true")
        except (TreatyError, *DATABASE_ERRORS) as error:
            raise database_silent() from error
        # One renewal may be late. After two, readers see a stale log.
        age = self._clock().timestamp() - self.head.time
        if age >= 2 * RENEWAL:
            why = f" {failure.message}" if failure else ""
            raise Unavailable(
                MirrorCode.BEHIND,
                f"The newest checkpoint that this mirror has verified is {int(age)} seconds old.{why}",
                fix="Readers are served; agents refuse it once it is too old for their policies.",
            )


async def _snapshot(
    snapshots: Snapshots, directory: MirrorDirectory, tables: MirrorTables, keys: LogKeys, scratch: ReplayStore
) -> Snapshot | None:
    """Return the saved replay of the first leaves of the copy and of the tables, and fill `scratch` from it; None without one."""
    mark = directory.mark
    assert mark is not None, "`begin` made it"
    snapshot = await asyncio.to_thread(snapshots.find, mark[0].origin)
    if snapshot is None:
        return None
    with snapshot:
        # The tables take no leaf before their edge.
        if snapshot.size > tables.edge.size or (await tables.edge_at(snapshot.size)).root() != snapshot.root:
            return None
        try:
            fits = await asyncio.to_thread(snapshot.fits, directory.copy(keys), directory.evidence)
        except Untrusted as error:
            # Readers are served all the same. A proof, if there is one, stops the follower.
            _log.critical("a saved replay is not of this log", code=error.code, error=error.message)
            return None
        if not fits:
            return None
        await asyncio.to_thread(snapshot.load, scratch)
        return snapshot


async def _begin(follower: Follower) -> None:
    try:
        await follower.step()
    except TreatyError:
        # An earlier start had copied the log, and the registry is gone since then.
        if follower.head is None:
            raise


def _trusted(key: VerifierKey, stored: LogKeys | None) -> LogKeys:
    """Return the keys of the stored leaves if they lead to the trusted one, and else the trusted one alone."""
    leads = stored is not None and any(term.log == key for term in stored.terms)
    return stored if stored is not None and leads else LogKeys.pinned(key)


async def _resume(follower: Follower, directory: MirrorDirectory, tables: MirrorTables, keys: LogKeys) -> None:
    """Show the checkpoint that was shown last. Raises `Untrusted` when the tables do not begin with its leaves."""
    checkpoint = directory.shown(keys, tables.edge.size)
    assert checkpoint is not None, "the caller has seen it"
    edge = await tables.edge_at(checkpoint.checkpoint.size)
    if edge.root() != checkpoint.checkpoint.root or keys.newest.clock is None:
        raise Untrusted(
            SettingsCode.DIRECTORY,
            "The database of this mirror is not of the log in its data directory.",
            fix="Delete both and start the mirror again: everything is fetched anew.",
        )
    follower.resume(Head(keys.open(checkpoint.note), edge))


async def _genesis(pool: Pool) -> Genesis:
    (leaf,) = await read_range(pool, 0, 1)
    body = statement.understand(leaf).body
    assert isinstance(body, Genesis), "the replay checked it"
    return body


async def _about(
    pool: Pool, client: RegistryClient, directory: MirrorDirectory, upstream: RegistryName, base_url: str | None
) -> _About:
    genesis = await _genesis(pool)
    trusted_root = directory.trusted_root()
    try:
        fetched, config = _read_config(await client.trust_config())
        fetched = without_rotations(fetched)
        if canonical.hex_digest(fetched) != genesis.trusted_root:
            raise Untrusted(
                TrustedRootCode.DIGEST, f"The trusted root of {upstream.base_url} is not the one that its genesis pins."
            )
        directory.keep_trusted_root(fetched)
        directory.name(upstream, config)
        trusted_root = fetched
    # A later start needs no registry: its pages are made from what was stored.
    except TreatyError as error:
        if trusted_root is None or canonical.hex_digest(trusted_root) != genesis.trusted_root:
            raise
        _log.warning("the registry does not describe itself", code=error.code, error=error.message)
    assert trusted_root is not None
    stored = directory.mark
    return _About(genesis, trusted_root, base_url or (stored[1] if stored else upstream.base_url))


def _read_config(data: bytes) -> tuple[bytes, str]:
    """Return the trusted root in a ClientTrustConfig, and the URL of the registry that it names. Raises `Malformed`."""
    value = canonical.parse_json(data, limit=_MAX_CONFIG, name="trust configuration")
    try:
        config = msgspec.convert(value, _Config)
    except msgspec.ValidationError as error:
        raise Unavailable(TrustedRootCode.DIGEST, f"The trust configuration has another form: {error}.") from error
    (service,) = config.signing.services[:1] or (_Service(""),)
    return canonical.dumps(config.root), parse_base_url(service.url.removesuffix(_SERVICES))


class _Service(msgspec.Struct, frozen=True):
    url: str


class _Signing(msgspec.Struct, frozen=True):
    services: tuple[_Service, ...] = msgspec.field(name="caUrls")


class _Config(msgspec.Struct, frozen=True):
    root: dict[str, object] = msgspec.field(name="trustedRoot")
    signing: _Signing = msgspec.field(name="signingConfig")


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
