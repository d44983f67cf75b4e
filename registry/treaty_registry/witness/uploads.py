"""Read the body of an `add-entries` request as it arrives, and store its packages (C2SP tlog-mirror).

The body may have any size and may be compressed by gzip. At most one package is in memory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from treaty_consensus.log.merkle import HASH_SIZE
from treaty_consensus.log.upload import MAX_ORIGIN, MAX_PROOF, Upload, bad_upload

from .copies import Copies, LogCopy

_PATIENCE = 30.0  # seconds for the next bytes to arrive
_PACKAGE = 300.0  # seconds for the head or a package, which has at most 16 MiB: single bytes must not last for ever
_PIECE = 64 * 1024  # bytes that are decompressed at once: a small body may expand a thousand times


class UploadEnded(Exception):
    """The body ended before the bytes that were asked for."""


class UploadBody:
    """The bytes of a request, in the order in which they arrive."""

    def __init__(self, chunks: AsyncIterator[bytes], *, gzipped: bool) -> None:
        self._chunks = chunks
        self._inflate = zlib.decompressobj(wbits=31) if gzipped else None
        self._waiting = b""
        self._buffer = bytearray()

    async def read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises `Ended`, and `Malformed` for a body that is not gzip."""
        while len(self._buffer) < size:
            self._buffer += await self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def number(self, size: int) -> int:
        """Return a big-endian number of `size` bytes."""
        return int.from_bytes(await self.read(size), "big")

    async def _more(self) -> bytes:
        while True:
            if not self._waiting:
                try:
                    async with asyncio.timeout(_PATIENCE):
                        self._waiting = await anext(self._chunks)
                except (StopAsyncIteration, TimeoutError) as error:
                    raise UploadEnded from error
            # zlib would keep all that follows the end of the compressed bytes.
            if self._inflate is not None and self._inflate.eof:
                raise UploadEnded
            if self._inflate is None:
                data, self._waiting = self._waiting, b""
            else:
                try:
                    data = self._inflate.decompress(self._waiting, _PIECE)
                except zlib.error as error:
                    raise bad_upload("it is not gzip") from error
                self._waiting = self._inflate.unconsumed_tail
            if data:
                return data


async def read_head(body: UploadBody) -> Upload:
    """Return the head of a request. Raises `Malformed` (`witness.request`)."""
    try:
        async with asyncio.timeout(_PACKAGE):
            length = await body.number(2)
            if not 1 <= length <= MAX_ORIGIN:
                raise bad_upload("its origin is too long")
            origin = (await body.read(length)).decode()
            upload = Upload(origin, await body.number(8), await body.number(8), await body.read(await body.number(2)))
    except (UploadEnded, TimeoutError, UnicodeDecodeError) as error:
        raise bad_upload("its head breaks off") from error
    upload.check()
    return upload


async def take(body: UploadBody, copies: Copies) -> tuple[bytes, LogCopy, bool]:
    """Store an upload. Return the signature lines, the copy, and whether all entries are here.

    Raises `NotFound` (404), `UploadConflict` (409), `Malformed` (400) when not even one package is whole, and `Untrusted` (422).
    """
    upload = await read_head(body)
    copy = await asyncio.to_thread(copies.of, upload.origin)
    signed = copy.target(upload)
    for number, (start, end) in enumerate(upload.packages()):
        try:
            entries, proof = await _package(body, end - start)
        except UploadEnded as error:
            if not number:
                raise bad_upload("its first package breaks off") from error
            break
        copies.room.check(sum(map(len, entries)))
        await asyncio.to_thread(copy.store, start, entries, proof, signed)
    if copy.edge.size < upload.end:
        return b"", copy, False
    return await asyncio.to_thread(copy.finish, signed, copies.cosign), copy, True


async def _package(body: UploadBody, count: int) -> tuple[list[bytes], list[bytes]]:
    try:
        async with asyncio.timeout(_PACKAGE):
            entries = [await body.read(await body.number(2)) for _ in range(count)]
            hashes = await body.number(1)
            if hashes > MAX_PROOF:
                raise bad_upload(f"a proof has more than {MAX_PROOF} hashes")
            return entries, [await body.read(HASH_SIZE) for _ in range(hashes)]
    except TimeoutError as error:
        raise UploadEnded from error
