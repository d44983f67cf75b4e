"""Blobs: bytes by their SHA-256, in a local folder or an object store.

The key of a blob is `sha256/HH/HEX`, HEX its digest and HH the first two digits of it. Which blobs are served, and which uploads
expire, is not decided here but by the tables `blobs` and `pending_blobs`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from treaty_consensus.errors import Malformed, NotFound, Unavailable

from .space import BLOBS_ROOM, Room


class BlobStore:
    """Bytes by digest. Safe for concurrent use: equal keys have equal bytes, so whoever writes last changes nothing.

    `put` returns once the bytes are durable. Every method raises `Unavailable` when the store does not answer.
    """

    def __init__(self, store: ObjectStore, folder: Path | None) -> None:
        """`folder`: where a local store keeps its files, which are then synced to disk here; None for a store that does so."""
        self._store = store
        self._folder = folder
        self.room = Room(folder, "blobs", BLOBS_ROOM) if folder is not None else None
        """On the disk of a local store."""

    @classmethod
    def open(cls, folder: Path, url: str | None) -> BlobStore:
        """The object store at `url` (s3://…, gs://…, az://…, file:///…, memory:///; credentials from the environment), or the
        local `folder`, made if need be. Raises `Malformed` when there is no such kind of store."""
        if url is None or url.startswith("file://"):
            folder = Path(url.removeprefix("file://")) if url else folder
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(LocalStore(folder), folder)
        try:
            return cls(from_url(url), None)
        except (BaseError, ValueError) as error:
            raise Malformed(
                "settings.blobs", f"{url!r} names no object store.", fix="Use s3://BUCKET/PATH, gs://…, az://… or file:///PATH."
            ) from error

    async def put(self, sha256: str, data: bytes) -> None:
        """Store bytes under their digest, which the caller has computed. Raises `Unavailable` (`disk.full`) before anything is
        written when a local store has no room for them."""
        try:
            if self.room is not None:
                self.room.check(len(data))
            await obstore.put_async(self._store, _key(sha256), data)
            if self._folder is not None:
                await asyncio.to_thread(_sync, self._folder / _key(sha256))
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    async def get(self, sha256: str) -> bytes | None:
        """The bytes, or None when they are not here. They are not hashed again."""
        try:
            result = await obstore.get_async(self._store, _key(sha256))
            return bytes(await result.bytes_async())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    def reader(self) -> Callable[[str], bytes]:
        """`get` for threads beside the event loop that this is called on, whom it keeps waiting; raises `NotFound` where `get`
        returns None."""
        loop = asyncio.get_running_loop()

        def read(sha256: str) -> bytes:
            data = asyncio.run_coroutine_threadsafe(self.get(sha256), loop).result()
            if data is None:
                raise NotFound("blob.missing", f"The bytes of the blob {sha256} are not here.")
            return data

        return read

    async def size(self, sha256: str) -> int | None:
        """The number of bytes, or None when they are not here."""
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


def _sync(path: Path) -> None:
    """Make a file durable, and its name, and the names of the two directories above."""
    for part in (path, *path.parents[:3]):
        descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _key(sha256: str) -> str:
    return f"sha256/{sha256[:2]}/{sha256}"


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(
        "blobs.unavailable", f"The blob store does not answer ({type(error).__name__}).", fix="Send the same again in a while."
    )
