"""Keep uploaded blobs until a logged statement names them.

An upload is not served. It is stored in the blob store under its digest, and its row in `pending_blobs` has its expiry time. The
commit of a statement that names it deletes that row and inserts a row in `blobs`. Expired uploads are deleted. A withdrawal makes
the bytes of a blob an expired upload again (`log.tables`), so they are deleted even if the process ends in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from treaty_consensus.codes import BlobCode
from treaty_consensus.errors import Gone, NotFound, Refused
from treaty_consensus.kinds import Blob

from ..catalogue.lookup import Lookup
from ..codes import RegistryBlobCode
from ..storage.blobs import BlobStore
from ..storage.postgres import AnyConnection, Pool
from .upload_room import UploadRoom

LIFETIME = 3600
"""Seconds after which an upload without a statement expires."""
MARGIN = 120
"""Seconds that an upload must still last when its statement is examined."""

_AT_ONCE = 32  # expired uploads deleted in one transaction

# PostgreSQL sets xmax to 0 in a new row, and not in a row that was updated because it existed.
_WAIT = """
insert into pending_blobs (sha256, size, expires) values ($1, $2, now() + make_interval(secs => $3))
on conflict (sha256) do update set expires = excluded.expires
returning xmax = 0
"""
# One statement, which sees one moment: a commit moves a row from one table to the other.
_PRESENT = """
select sha256, false as withdrawn from pending_blobs
where sha256 = any($1::bytea[]) and expires > now() + make_interval(secs => $2)
union all
select sha256, withdrawn is not null from blobs where sha256 = any($1::bytea[])
"""
# `skip locked`: several processes may expire uploads at once, and need not wait for each other.
_EXPIRED = """
delete from pending_blobs where sha256 in
  (select sha256 from pending_blobs where expires < now() order by expires limit $1 for update skip locked)
returning sha256
"""
_SERVED = "select sha256 from blobs where sha256 = any($1::bytea[]) and withdrawn is null"


class Uploads:
    """Pending uploads, and the blobs of logged statements. Safe for concurrent use, also by several processes."""

    def __init__(self, pool: Pool, blobs: BlobStore, lifetime: float = LIFETIME, contact: str | None = None) -> None:
        """`lifetime`: seconds that an upload is kept. `contact`: whom the refusal of withdrawn bytes names."""
        self._pool = pool
        self._blobs = blobs
        self._lifetime = lifetime
        self._contact = contact
        # The statements of a batch ask at about the same time, so one query serves them all.
        self._present = Lookup(pool, self._read_present)
        self._room = UploadRoom(pool, lifetime)

    async def hold(self, sha256: str, data: bytes, network: str | None) -> bool:
        """Store bytes that a statement will name; `sha256` is their digest. They are durable on return. False when they were
        stored already. `network`: that of an author without standing; None for one with standing.

        Raises `Gone` when these bytes were withdrawn, and `Unavailable` when too many uploads are pending.
        """
        if await self._is_logged(sha256):
            return False
        if await self._room.make(sha256, len(data), network):
            await self.expire()
        return await self._store(sha256, data, network)

    async def hold_own(self, sha256: str, data: bytes) -> None:
        """Do the same as `hold`, without the limit, for a blob of the operator's statements. Raises `Gone`.

        The limit does not apply, so strangers cannot keep an epoch open by filling it.
        """
        if not await self._is_logged(sha256):
            await self._store(sha256, data, None)

    async def present(self, named: Sequence[Blob]) -> dict[str, bytes]:
        """Return the bytes of all these blobs. Raises as `check` and `contents`."""
        await self.check(named)
        return await self.contents(named)

    async def check(self, named: Sequence[Blob]) -> None:
        """Check that all these blobs were uploaded. Reads no bytes.

        An upload that expires within `MARGIN` seconds counts as expired, because it must last until the statement is logged.
        This call does not extend the expiry, because the statement may still be refused. Raises `NotFound` when a blob was not
        uploaded, and `Gone` when it was withdrawn.
        """
        states = await asyncio.gather(*(self._present.get(blob.sha256) for blob in named))
        for blob, withdrawn in zip(named, states, strict=True):
            if withdrawn:
                raise self._withdrawn(blob.sha256)
            if withdrawn is None:
                raise _missing(blob)

    async def contents(self, named: Sequence[Blob]) -> dict[str, bytes]:
        """Return the bytes of blobs that `check` has found. Raises `NotFound` when the bytes of one are not here, and `Refused`
        when its size differs from the named size."""
        contents = {}
        for blob in named:
            data = await self._blobs.get(blob.sha256)
            if data is None:
                raise _missing(blob)
            if len(data) != blob.size:
                raise Refused(RegistryBlobCode.DIGEST, f"The blob {blob.sha256} has {len(data)} bytes, not {blob.size}.")
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
        """Delete expired uploads and withdrawn bytes, and return their number. After a crash the next call deletes the rest."""
        deleted = 0
        while True:
            # In small batches: the pool lends a connection only for seconds, and a store may need long for each delete.
            async with self._pool.acquire() as connection, connection.transaction():
                digests = [row["sha256"] for row in await connection.fetch(_EXPIRED, _AT_ONCE)]
                used = await connection.fetch(_SERVED, digests)
                # Hold the row locks until the bytes are deleted: a new upload of the same bytes waits, and then stores them
                # again.
                gone = {digest.hex() for digest in digests} - {row["sha256"].hex() for row in used}
                # Before the commit: after a crash in between the rows are still there, and the next call deletes the
                # bytes again.
                await asyncio.gather(*map(self._blobs.delete, gone))
            deleted += len(gone)
            if len(digests) < _AT_ONCE:
                return deleted

    async def _read_present(self, connection: AnyConnection, digests: list[str]) -> Mapping[str, bool]:
        """Return for each of these digests that is here whether its bytes were withdrawn."""
        rows = await connection.fetch(_PRESENT, [*map(bytes.fromhex, digests)], min(MARGIN, self._lifetime / 2))
        present: dict[str, bool] = {}
        for row in rows:
            # Withdrawn bytes may be uploaded again by a sender that raced the withdrawal.
            digest = row["sha256"].hex()
            present[digest] = row["withdrawn"] or present.get(digest, False)
        return present

    async def _store(self, sha256: str, data: bytes, network: str | None) -> bool:
        # The row first. A crash after it leaves a row without bytes, which counts as missing and expires. Bytes
        # without a row would never be deleted.
        new = await self._pool.fetchval(_WAIT, bytes.fromhex(sha256), len(data), self._lifetime)
        self._room.add(sha256, len(data), network)
        await self._blobs.put(sha256, data)
        return bool(new)

    async def _is_logged(self, sha256: str) -> bool:
        row = await self._pool.fetchrow("select withdrawn from blobs where sha256 = $1", bytes.fromhex(sha256))
        if row is not None and row["withdrawn"] is not None:
            raise self._withdrawn(sha256)
        return row is not None

    def _withdrawn(self, sha256: str) -> Gone:
        fix = f"Questions about it go to {self._contact}." if self._contact else ""
        return Gone(BlobCode.WITHDRAWN, f"The operator of this registry withdrew the bytes of {sha256}.", fix=fix)


def _missing(blob: Blob) -> NotFound:
    return NotFound(
        BlobCode.MISSING,
        f"The statement names the blob {blob.sha256}, which is not here.",
        fix=f"Upload it first: PUT /blobs/sha256/{blob.sha256}",
    )
