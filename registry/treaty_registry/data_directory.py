"""Open a registry's data directory (`settings`): its database and its operator's keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Conflict, NotFound
from treaty_consensus.log.checkpoint import Checkpoint

from .codes import KeysCode, SettingsCode
from .keys import Operator, create_operator, load_operator
from .log.fence import Fence, HeadRecord, create_fence, read_fence, restore_fence
from .log.stored_fence import StoredFence
from .log.tables import holds_log
from .settings import MIRROR_MARK, Settings
from .storage.embedded import embedded_postgres, is_cluster
from .storage.objects import local_path
from .storage.postgres import connect

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def running_database(settings: Settings) -> AsyncIterator[str]:
    """Yield the URL of the database of the settings, or of the embedded one, which is started and stopped as needed."""
    if settings.database is not None:
        yield settings.database
        return
    settings.data.mkdir(parents=True, exist_ok=True)
    async with embedded_postgres(settings.data) as url:
        yield url


def open_operator(settings: Settings) -> Operator:
    """Return the operator's keys of the log that is here. Blocking. Raises as `check_log`.

    Also raises `NotFound` when there are no keys, and `Conflict` for a mirror, or when the settings name another origin.
    """
    _check_no_mirror(settings)
    if not settings.keys.exists():
        raise _no_log(settings)
    operator = load_operator(settings.keys)
    # An origin is permanent. A different one in the settings is an error and never a rename.
    settings.check_origin(operator.origin)
    check_log(settings)
    return operator


async def create_log(settings: Settings, database: str) -> Operator:
    """Make the keys of a new log, and the record of its empty tree. Returns the keys.

    `database`: the URL of its running database. Keys that an interrupted call made are used again. Raises as `check_new`, and
    `Conflict` (`log.exists`) when the database holds a log.
    """
    async with connect(database) as connection:
        # Before the keys are made: they would be of another log than the leaves.
        if await holds_log(connection):
            raise _log_exists("the database")
    return await asyncio.to_thread(_create_keys, settings)


def _create_keys(settings: Settings) -> Operator:
    check_new(settings)
    if settings.keys.exists():
        return load_operator(settings.keys)
    assert settings.origin is not None, "`check_new` has looked"
    if ":" in settings.origin:
        # sigstore-go and cosign verify checkpoints with a key of the name `url.Hostname()`, which has no port.
        _log.warning(
            "the log's name has a port",
            origin=settings.origin,
            effect="Sigstore's Go clients (sigstore-go, cosign) cannot verify this log. Its name cannot change later.",
            fix="Begin with an empty directory and an --origin without a port; give the port in --base-url.",
        )
    # The fence first. A crash after it leaves a record of the empty tree, which the next call replaces. Keys
    # without a record would be refused at every start.
    _create_record(settings, settings.origin)
    return create_operator(settings.keys, settings.origin)


def check_new(settings: Settings) -> None:
    """Raise, before anything is made, where no new log may begin. Blocking.

    `NotFound` (`keys.missing`) without an origin; `Conflict` (`log.exists`, `settings.directory`) where a log or a mirror is.
    """
    _check_no_mirror(settings)
    if settings.keys.exists():
        origin = load_operator(settings.keys).origin
        settings.check_origin(origin)
        # With a record of the empty tree nothing was ever signed: a crash interrupted the making of this log.
        if read_record(settings, origin).size:
            raise _log_exists(str(settings.data))
    elif settings.origin is None:
        raise _no_log(settings)


def _log_exists(place: str) -> Conflict:
    return Conflict(
        LogCode.EXISTS,
        f"A log is in {place} already.",
        fix="Serve it with: treaty-registry serve, without --new. A new log needs an empty data directory and an empty database.",
    )


def _check_no_mirror(settings: Settings) -> None:
    if (settings.data / MIRROR_MARK).exists():
        raise Conflict(
            SettingsCode.DIRECTORY,
            f"{settings.data} is a mirror, which signs nothing.",
            fix="Serve it with: treaty-registry mirror. If its registry is gone for good: treaty-registry promote",
        )


def open_record(settings: Settings, origin: str) -> HeadRecord:
    """Open the record of the newest signed head. Blocking. Raises as `Fence` and `StoredFence`."""
    if settings.head_object is not None:
        return StoredFence(settings.head_object, origin)
    return Fence(settings.fence, origin, shared=settings.node is not None)


def read_record(settings: Settings, origin: str) -> Checkpoint:
    """Return the record without opening it for writing. Blocking. Raises as `open_record`."""
    return record_at(settings.head_object or str(settings.fence), origin)


def record_at(place: str, origin: str) -> Checkpoint:
    """Return the record at a path (the file `head`) or a URL (the option `--head`). Blocking. Raises as `open_record`."""
    if "://" in place and local_path(place) is None:
        return StoredFence(place, origin).record
    return read_fence(local_path(place) or Path(place), origin)


def restore_record(settings: Settings, record: Checkpoint) -> None:
    """Write the record of a restored or promoted log, whose caller has compared it with every head that may have been signed.

    Durable on return. Blocking. Raises `Conflict` or `Untrusted` when the record of a larger tree is there.
    """
    if settings.head_object is not None:
        StoredFence.restore(settings.head_object, record)
    else:
        settings.fence.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        restore_fence(settings.fence, record)


def check_log(settings: Settings) -> None:
    """Raise where a command would make an embedded database for a log that has another one, or for none. Blocking.

    `NotFound` (`keys.missing`) where there is no log and no mirror, and (`log.damaged`) where the database of a log that has
    signed is not there: its volume is not mounted, or the URL of its database is missing. Also raises as `read_record`.
    """
    if settings.database is not None or (settings.data / MIRROR_MARK).exists():
        return
    if not settings.keys.exists():
        raise _no_log(settings)
    if not is_cluster(settings.data):
        record = read_record(settings, load_operator(settings.keys).origin)
        if (error := no_leaves(f"{settings.data} has no embedded database", record)) is not None:
            raise error


def no_leaves(sentence: str, record: Checkpoint) -> NotFound | None:
    """Return the error for a place that lacks the leaves of a log, or None if it has signed none. `sentence`: a main clause."""
    if not record.size:
        return None
    return NotFound(
        LogCode.DAMAGED,
        f"{sentence}, but {record.origin} has signed {record.size} leaves.",
        fix="Mount the volume of the database, or name the server: TREATY_DATABASE_URL. If the database is lost: "
        "treaty-registry restore, into an empty data directory.",
    )


def _no_log(settings: Settings) -> NotFound:
    name, origin = (f" {settings.origin}", settings.origin) if settings.origin else ("", "registry.example")
    return NotFound(
        KeysCode.MISSING,
        f"There is no log{name} in {settings.data}.",
        fix="If it was made before, mount its volume or name its directory (--data DIRECTORY): a new one would be a second log. "
        f"To make a new log: treaty-registry init --origin {origin}",
    )


def _create_record(settings: Settings, origin: str) -> None:
    if settings.head_object is not None:
        StoredFence.create(settings.head_object, origin)
    else:
        settings.fence.parent.mkdir(parents=True, exist_ok=True)
        create_fence(settings.fence, origin)
