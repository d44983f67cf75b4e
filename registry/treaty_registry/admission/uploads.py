"""Blobs on their way into the log: uploads that no logged statement names yet.

An upload is never served. It waits in the blob store under its digest, with a row in `pending_blobs` that says until when; the
commit of the statement that names it takes the row away and adds one to `blobs`. What nobody names in time is deleted. A row is
written before the bytes and deleted after them, so a crash leaves no bytes that no row knows of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from treaty_consensus.errors import Gone, NotFound, Refused, Unavailable
from treaty_consensus.kinds import Blob

from ..storage.blobs import BlobStore
from ..storage.postgres import Pool

LIFETIME = 3600
"""Seconds that an upload waits for its statement."""
MARGIN = 120
MAX_WAITING = 1024**3
"""Bytes of uploads that wait at a time, of everybody together."""

_AT_ONCE = 32

_WAIT = """
insert into pending_blobs (sha256, size, expires) values ($1, $2, now() + make_interval(secs => $3))
on conflict (sha256) do update set expires = excluded.expires
returning xmax = 0
"""
_WAITING = """
select sha256 from pending_blobs where sha256 = any($1::bytea[]) and expires > now() + make_interval(secs => $2)
"""
_EXPIRED = """
delete from pending_blobs where sha256 in
  (select sha256 from pending_blobs where expires < now() order by expires limit $1 for update skip locked)
returning sha256
"""
_LOGGED = "select sha256, withdrawn is not null as withdrawn from blobs where sha256 = any($1::bytea[])"


class Uploads:
    """Safe for concurrent use, also by several processes."""

    def __init__(self, pool: Pool, blobs: BlobStore, lifetime: float = LIFETIME) -> None:
        self._pool = pool
        self._blobs = blobs
        self._lifetime = lifetime

    async def hold(self, sha256: str, data: bytes) -> bool:
        """Store bytes that a statement will name; `sha256` is their digest. Durable when it returns; False when they were held.

        Raises `Gone` when these bytes were withdrawn, `Unavailable` when too much is waiting already.
        """
        if await self._is_logged(sha256):
            return False
        if await self._pool.fetchval("select coalesce(sum(size), 0) from pending_blobs") + len(data) > MAX_WAITING:
            raise Unavailable("quota.uploads", "Too many uploads wait for their statements.", fix="Send again in an hour.")
        return await self._store(sha256, data)

    async def hold_own(self, sha256: str, data: bytes) -> None:
        """`hold` for what the operator states: nobody keeps an epoch open by letting uploads wait. Raises `Gone`."""
        if not await self._is_logged(sha256):
            await self._store(sha256, data)

    async def present(self, named: Sequence[Blob]) -> dict[str, bytes]:
        """The bytes of all these blobs. An upload that expires within `MARGIN` seconds counts as gone: the rest has to last until
        the statement is logged. Asking prolongs nothing, for the statement may yet be refused.

        Raises `NotFound` when one was not uploaded, `Gone` when it was withdrawn, `Refused` when its size is not the one named.
        """
        digests = [bytes.fromhex(blob.sha256) for blob in named]
        # In this order: a row that a commit takes away meanwhile is found among the logged ones, by a query that began later.
        known = {row["sha256"].hex() for row in await self._pool.fetch(_WAITING, digests, min(MARGIN, self._lifetime / 2))}
        logged = {row["sha256"].hex(): row["withdrawn"] for row in await self._pool.fetch(_LOGGED, digests)}
        contents = {}
        for blob in named:
            if logged.get(blob.sha256):
                raise _withdrawn(blob.sha256)
            data = await self._blobs.get(blob.sha256) if blob.sha256 in known | logged.keys() else None
            if data is None:
                raise NotFound(
                    "blob.missing",
                    f"The statement names the blob {blob.sha256}, which is not here.",
                    fix=f"Upload it first: PUT /blobs/sha256/{blob.sha256}",
                )
            if len(data) != blob.size:
                raise Refused("blob.size", f"The blob {blob.sha256} has {len(data)} bytes, not {blob.size}.")
            contents[blob.sha256] = data
        return contents

    async def served(self, sha256: str) -> bytes:
        """The bytes of a blob that a logged statement names. Raises `NotFound`, or `Gone` when they were withdrawn."""
        data = await self._blobs.get(sha256) if await self._is_logged(sha256) else None
        if data is None:
            raise NotFound("blob.unknown", f"No logged statement names a blob {sha256}.")
        return data

    async def expire(self) -> int:
        """Delete what was not named in time; return how many blobs that were. What a crash leaves is deleted the next time."""
        deleted = 0
        while True:
            # A few at a time: a pool lends a connection for seconds only, and a store may take long over each.
            async with self._pool.acquire() as connection, connection.transaction():
                digests = [row["sha256"] for row in await connection.fetch(_EXPIRED, _AT_ONCE)]
                kept = await connection.fetch("select sha256 from blobs where sha256 = any($1::bytea[])", digests)
                # The rows stay locked until the bytes are gone: an upload of the same bytes waits, and then stores them again.
                gone = {digest.hex() for digest in digests} - {row["sha256"].hex() for row in kept}
                await asyncio.gather(*map(self._blobs.delete, gone))
            deleted += len(gone)
            if len(digests) < _AT_ONCE:
                return deleted

    async def _store(self, sha256: str, data: bytes) -> bool:
        new = await self._pool.fetchval(_WAIT, bytes.fromhex(sha256), len(data), self._lifetime)
        await self._blobs.put(sha256, data)
        return bool(new)

    async def _is_logged(self, sha256: str) -> bool:
        row = await self._pool.fetchrow("select withdrawn from blobs where sha256 = $1", bytes.fromhex(sha256))
        if row is not None and row["withdrawn"] is not None:
            raise _withdrawn(sha256)
        return row is not None


def _withdrawn(sha256: str) -> Gone:
    return Gone("blob.withdrawn", f"The operator of this registry withdrew the bytes of {sha256}.")
