"""Store blobs by their SHA-256, in a local folder or an object store.

The key of a blob is `sha256/HH/HEX`: HEX is its digest and HH the first two digits of it. The tables `blobs` and `pending_blobs`
decide which blobs are served and which uploads expire.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import BlobCode
from treaty_consensus.errors import NotFound, Unavailable
from treaty_consensus.kinds import MAX_ROLL

from ..codes import BlobsCode
from ..telemetry.measures import STORE_OUTAGES
from .objects import local_path, open_store
from .space import BLOBS_ROOM, FreeSpace

_log = structlog.get_logger(__name__)


class BlobStore:
    """Bytes by digest. Safe for concurrent use, because equal keys have equal bytes.

    `put` returns once the bytes are durable. Every method raises `Unavailable` when the store does not answer.
    """

    def __init__(self, store: ObjectStore, folder: Path | None) -> None:
        """`folder`: the folder of a local store, whose files are synced to disk here; None for other stores."""
        self._store = store
        self._folder = folder
        self.room = FreeSpace(folder, "blobs", BLOBS_ROOM) if folder is not None else None
        """The free space on the disk of a local store; None for other stores."""

    @classmethod
    def open(cls, folder: Path, url: str | None) -> BlobStore:
        """Open the object store at `url`, or the local `folder`, which is created if needed.

        URLs are s3://…, gs://…, az://…, file:///… or memory:///; credentials come from the environment. Raises `Malformed` for
        another kind of store.
        """
        local = folder if url is None else local_path(url)
        if local is None:
            assert url is not None, "without one the folder is used"
            return cls(open_store(url), None)
        # Uploads that no logged statement names are not public.
        local.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(LocalStore(local), local)

    async def put(self, sha256: str, data: bytes) -> None:
        """Store bytes under their digest, which the caller has computed.

        Raises `Unavailable` (`disk.full`) before writing when a local store has too little space.
        """
        try:
            if self.room is not None:
                self.room.check(len(data))
            await obstore.put_async(self._store, _key(sha256), data)
            if self._folder is not None:
                # The local store does not sync. Without this a power failure could lose bytes that were acknowledged.
                await asyncio.to_thread(_sync, self._folder / _key(sha256))
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    async def whole(self, sha256: str) -> bytes | None:
        """Return the bytes, or None when they are not here. Raises `Unavailable` (`blobs.damaged`) if their digest is another."""
        data = await self.get(sha256)
        # A disk may flip a bit, and another program may write to a bucket. Caches keep what is served for ever.
        if data is not None and await asyncio.to_thread(hex_digest, data) != sha256:
            raise _damaged(sha256)
        return data

    async def get(self, sha256: str) -> bytes | None:
        """Return the bytes, or None when they are not here. They are not hashed again."""
        try:
            if self._folder is not None:
                # A third of the processor time of the store's own asynchronous read, which most of a small publish would be.
                return await asyncio.to_thread(_read, self._folder / _key(sha256), sha256)
            result = await obstore.get_async(self._store, _key(sha256))
            if result.meta["size"] > MAX_ROLL:
                raise _damaged(sha256)
            return bytes(await result.bytes_async())
        # For a missing key obstore raises Python's FileNotFoundError, which is an OSError too.
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    def reader(self) -> Callable[[str], bytes]:
        """Return `get` as a function for threads. It blocks its thread and raises `NotFound` where `get` returns None.

        The event loop of the caller of `reader` does the work.
        """
        loop = asyncio.get_running_loop()

        def read(sha256: str) -> bytes:
            data = asyncio.run_coroutine_threadsafe(self.get(sha256), loop).result()
            if data is None:
                raise NotFound(BlobCode.MISSING, f"The bytes of the blob {sha256} are not here.")
            return data

        return read

    async def size(self, sha256: str) -> int | None:
        """Return the number of bytes, or None when they are not here."""
        try:
            return (await obstore.head_async(self._store, _key(sha256)))["size"]
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    async def delete(self, sha256: str) -> None:
        """Remove the bytes if they are here."""
        try:
            await obstore.delete_async(self._store, _key(sha256))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error


def _read(path: Path, sha256: str) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_ROLL + 1)
    if len(data) > MAX_ROLL:
        raise _damaged(sha256)
    return data


def _sync(path: Path) -> None:
    """Make a file durable, with its name and the names of the two directories above it."""
    # The directories may be new. A file whose name is not durable is lost with it.
    for part in (path, *path.parents[:3]):
        descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _key(sha256: str) -> str:
    return f"sha256/{sha256[:2]}/{sha256}"


def _damaged(sha256: str) -> Unavailable:
    _log.critical("a blob is damaged", sha256=sha256)
    return Unavailable(
        BlobsCode.DAMAGED,
        f"The stored bytes of {sha256} are damaged.",
        fix="The registry's operator has to bring them back from a backup; treaty-registry audit lists them.",
    )


def _unavailable(error: Exception) -> Unavailable:
    STORE_OUTAGES.labels("blobs").inc()
    return Unavailable(
        BlobsCode.UNAVAILABLE, f"The blob store does not answer ({type(error).__name__}).", fix="Send the same again in a while."
    )
