"""Keep uploaded blobs until a logged statement names them.

An upload is not served. It is stored in the blob store under its digest, and its row in `pending_blobs` has its expiry time. The
commit of a statement that names it deletes that row and inserts a row in `blobs`. Expired uploads are deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from treaty_consensus.codes import BlobCode
from treaty_consensus.errors import Gone, NotFound, Refused, Unavailable
from treaty_consensus.kinds import Blob

from ..codes import QuotaCode, RegistryBlobCode
from ..storage.blobs import BlobStore
from ..storage.postgres import Pool

LIFETIME = 3600
"""Seconds after which an upload without a statement expires."""
MARGIN = 120
"""Seconds that an upload must still last when its statement is examined."""
MAX_WAITING = 1024**3
"""Bytes of all pending uploads together."""

_AT_ONCE = 32  # expired uploads deleted in one transaction

# PostgreSQL sets xmax to 0 in a new row, and not in a row that was updated because it existed.
_WAIT = """
insert into pending_blobs (sha256, size, expires) values ($1, $2, now() + make_interval(secs => $3))
on conflict (sha256) do update set expires = excluded.expires
returning xmax = 0
"""
_WAITING = """
select sha256 from pending_blobs where sha256 = any($1::bytea[]) and expires > now() + make_interval(secs => $2)
"""
# `skip locked`: several processes may expire uploads at once, and need not wait for each other.
_EXPIRED = """
delete from pending_blobs where sha256 in
  (select sha256 from pending_blobs where expires < now() order by expires limit $1 for update skip locked)
returning sha256
"""
_LOGGED = "select sha256, withdrawn is not null as withdrawn from blobs where sha256 = any($1::bytea[])"


class Uploads:
    """Pending uploads, and the blobs of logged statements. Safe for concurrent use, also by several processes."""

    def __init__(self, pool: Pool, blobs: BlobStore, lifetime: float = LIFETIME) -> None:
        self._pool = pool
        self._blobs = blobs
        self._lifetime = lifetime

    async def hold(self, sha256: str, data: bytes) -> bool:
        """Store bytes that a statement will name; `sha256` is their digest. They are durable on return. False when they were
        stored already.

        Raises `Gone` when these bytes were withdrawn, and `Unavailable` when too many uploads are pending.
        """
        if await self._is_logged(sha256):
            return False
        # Uploads at the same time may each pass this check. The turns bound how far they exceed the limit.
        if await self._pool.fetchval("select coalesce(sum(size), 0) from pending_blobs") + len(data) > MAX_WAITING:
            raise Unavailable(QuotaCode.UPLOADS, "Too many uploads wait for their statements.", fix="Send again in an hour.")
        return await self._store(sha256, data)

    async def hold_own(self, sha256: str, data: bytes) -> None:
        """Do the same as `hold`, without the limit, for a blob of the operator's statements. Raises `Gone`.

        The limit does not apply, so strangers cannot keep an epoch open by filling it.
        """
        if not await self._is_logged(sha256):
            await self._store(sha256, data)

    async def present(self, named: Sequence[Blob]) -> dict[str, bytes]:
        """Return the bytes of all these blobs.

        An upload that expires within `MARGIN` seconds counts as expired, because it must last until the statement is logged.
        This call does not extend the expiry, because the statement may still be refused. Raises `NotFound` when a blob was not
        uploaded, `Gone` when it was withdrawn, and `Refused` when its size differs from the named size.
        """
        digests = [bytes.fromhex(blob.sha256) for blob in named]
        # In this order: if a commit moves a row between the two queries, the second query finds it.
        known = {row["sha256"].hex() for row in await self._pool.fetch(_WAITING, digests, min(MARGIN, self._lifetime / 2))}
        logged = {row["sha256"].hex(): row["withdrawn"] for row in await self._pool.fetch(_LOGGED, digests)}
        contents = {}
        for blob in named:
            if logged.get(blob.sha256):
                raise _withdrawn(blob.sha256)
            data = await self._blobs.get(blob.sha256) if blob.sha256 in known | logged.keys() else None
            if data is None:
                raise NotFound(
                    BlobCode.MISSING,
                    f"The statement names the blob {blob.sha256}, which is not here.",
                    fix=f"Upload it first: PUT /blobs/sha256/{blob.sha256}",
                )
            if len(data) != blob.size:
                raise Refused(RegistryBlobCode.SIZE, f"The blob {blob.sha256} has {len(data)} bytes, not {blob.size}.")
            contents[blob.sha256] = data
        return contents

    async def served(self, sha256: str) -> bytes:
        """Return the bytes of a blob that a logged statement names. Raises `NotFound`, or `Gone` when they were withdrawn."""
        # An upload without a logged statement is not served, or strangers could distribute any bytes from here.
        data = await self._blobs.whole(sha256) if await self._is_logged(sha256) else None
        if data is None:
            raise NotFound(RegistryBlobCode.UNKNOWN, f"No logged statement names a blob {sha256}.")
        return data

    async def expire(self) -> int:
        """Delete expired uploads and return their number. After a crash the next call deletes the rest."""
        deleted = 0
        while True:
            # In small batches: the pool lends a connection only for seconds, and a store may need long for each delete.
            async with self._pool.acquire() as connection, connection.transaction():
                digests = [row["sha256"] for row in await connection.fetch(_EXPIRED, _AT_ONCE)]
                kept = await connection.fetch("select sha256 from blobs where sha256 = any($1::bytea[])", digests)
                # Hold the row locks until the bytes are deleted: a new upload of the same bytes waits, and then stores them
                # again.
                gone = {digest.hex() for digest in digests} - {row["sha256"].hex() for row in kept}
                # Before the commit: after a crash in between the rows are still there, and the next call deletes the
                # bytes again.
                await asyncio.gather(*map(self._blobs.delete, gone))
            deleted += len(gone)
            if len(digests) < _AT_ONCE:
                return deleted

    async def _store(self, sha256: str, data: bytes) -> bool:
        # The row first. A crash after it leaves a row without bytes, which counts as missing and expires. Bytes
        # without a row would never be deleted.
        new = await self._pool.fetchval(_WAIT, bytes.fromhex(sha256), len(data), self._lifetime)
        await self._blobs.put(sha256, data)
        return bool(new)

    async def _is_logged(self, sha256: str) -> bool:
        row = await self._pool.fetchrow("select withdrawn from blobs where sha256 = $1", bytes.fromhex(sha256))
        if row is not None and row["withdrawn"] is not None:
            raise _withdrawn(sha256)
        return row is not None


def _withdrawn(sha256: str) -> Gone:
    return Gone(RegistryBlobCode.WITHDRAWN, f"The operator of this registry withdrew the bytes of {sha256}.")
