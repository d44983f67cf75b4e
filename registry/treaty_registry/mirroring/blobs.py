"""Copy the blobs that logged statements name, each checked by its digest and size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from treaty_client.registries.api import RegistryClient
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Gone, NotFound, TooLarge, Unavailable
from treaty_consensus.kinds import MAX_ROLL, Blob
from treaty_io.codes import MirrorCode

from ..storage.blobs import BlobStore

_AT_ONCE = 8  # blobs fetched at once; it bounds memory and the load on the registry


class BlobCopier:
    """Copies blobs from a registry into the store of a mirror. For one event loop."""

    def __init__(self, client: RegistryClient, store: BlobStore) -> None:
        self._client = client
        self._store = store
        self._loop = asyncio.get_running_loop()

    async def copy(self, named: Iterable[Blob], withdrawn: Callable[[], frozenset[str]]) -> None:
        """Have all these blobs in the store, except those that the registry refuses and `withdrawn` names. Durable on return.

        `withdrawn`: returns the digests that the verified log withdraws; called only if the registry refuses one. Raises
        `Unavailable` (`mirror.behind`) when a blob is refused that is not withdrawn, or has other bytes.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(blob: Blob) -> None:
            async with turns:
                await self._copy(blob, withdrawn)

        try:
            async with asyncio.TaskGroup() as group:
                for blob in {blob.sha256: blob for blob in named}.values():
                    group.create_task(one(blob))
        # One reason is enough; the others were cancelled or failed alike.
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    def reader(self) -> Callable[[str], bytes]:
        """Return a function for threads that returns the bytes of a digest, from the store or else from the registry. It raises
        `NotFound` or `Unavailable`."""

        def read(sha256: str) -> bytes:
            return asyncio.run_coroutine_threadsafe(self._read(Blob(sha256, MAX_ROLL)), self._loop).result()

        return read

    async def _copy(self, blob: Blob, withdrawn: Callable[[], frozenset[str]]) -> None:
        data = await self._store.get(blob.sha256)
        # Hashed, because a crash may have left a damaged file.
        if data is not None and await asyncio.to_thread(hex_digest, data) == blob.sha256:
            return
        try:
            data = await self._client.blob(blob)
        except (NotFound, Gone) as error:
            if blob.sha256 in await asyncio.to_thread(withdrawn):
                return
            raise _refused(blob, "does not serve") from error
        except TooLarge as error:
            raise _refused(blob, "serves more bytes than the statement names of") from error
        if len(data) != blob.size or await asyncio.to_thread(hex_digest, data) != blob.sha256:
            raise _refused(blob, "serves other bytes than those of")
        await self._store.put(blob.sha256, data)

    async def _read(self, blob: Blob) -> bytes:
        data = await self._store.get(blob.sha256)
        if data is None or hex_digest(data) != blob.sha256:
            data = await self._client.blob(blob)
            if hex_digest(data) != blob.sha256:
                raise _refused(blob, "serves other bytes than those of")
            await self._store.put(blob.sha256, data)
        return data


def _refused(blob: Blob, how: str) -> Unavailable:
    return Unavailable(
        MirrorCode.BEHIND,
        f"The registry {how} the blob {blob.sha256}, which a logged statement names.",
        fix="The mirror asks again. If it remains, ask the operator of the registry.",
    )
