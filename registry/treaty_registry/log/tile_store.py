"""Copy the log to an object store, as C2SP tlog-tiles has it, so that a bucket or a CDN serves readers without this process.
`static_site` writes the rest of the read side beside it, at the heads that were copied.

    checkpoint                        the newest published checkpoint; everything below it is there before it
    tile/<L>/<N>[.p/<W>], tile/entries/<N>[.p/<W>]

The leader does this. Tiles are created and never replaced; the checkpoint is replaced only by a write that depends on the version
that was read. So a leader that was replaced does no harm, and a crash leaves the older checkpoint and some newer tiles. A copy
continues from the checkpoint in the store. Partial tiles are deleted once the full tile is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog
from obstore.exceptions import BaseError

from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.tiles import TILE_HEIGHT, TILE_WIDTH, Bundle, Tile, width_at

from ..cache_control import IMMUTABLE, SHARED
from ..codes import RegistryLogCode
from ..storage.postgres import DATABASE_ERRORS
from ..storage.public_store import Condition, PublicStore
from .checkpoints import Head
from .leader import Leader
from .reader import LogReader

_PERIOD = 2.0  # seconds between two copies: the partial tiles of heads in between are never made
_AT_ONCE = 8  # writes, which bounds memory and the load on the store
_MAX_CHECKPOINT = 256 * 1024
_FOR_EVER = {"Cache-Control": IMMUTABLE, "Content-Type": "application/octet-stream"}
_FOR_SECONDS = {"Cache-Control": SHARED, "Content-Type": "text/plain; charset=utf-8"}

_log = structlog.get_logger(__name__)


class TileStore:
    """The copy in the store at `url`. For one event loop."""

    def __init__(self, url: str, keys: Callable[[], LogKeys], leader: Leader, reader: LogReader) -> None:
        """Raises `Malformed` (`settings.blobs`) when the URL names no store."""
        self.store = PublicStore(url)
        self.copied: Head | None = None
        """The newest head that this process has copied: every proof in its tree can be made from the copy alone."""
        self._keys = keys
        self._leader = leader
        self._reader = reader
        self.time = 0
        """The time of the newest head that this process has copied, or found copied by another one; 0 for none yet."""

    async def run(self) -> None:
        """Copy every published head while this process leads, until cancelled. Failures are logged once and tried again."""
        copied, reported = b"", ""
        while True:
            await asyncio.sleep(_PERIOD)
            head = self._leader.head
            if head is None or not self._leader.leads or head.published.note == copied:
                continue
            try:
                await self.copy(head.published)
                copied, reported, self.time = head.published.note, "", head.published.time
            # The log does not depend on its copy, so nothing here may end this task.
            except Exception as error:
                if reported != (reported := f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"):
                    known = isinstance(error, (TreatyError, BaseError, *DATABASE_ERRORS))
                    _log.error("the log was not copied", error=reported, exc_info=None if known else error)

    async def copy(self, head: Head) -> None:
        """Copy the tree of `head`, then its checkpoint. Raises `Untrusted` for another log in the store, and obstore's errors."""
        size, condition = await self._size()
        # Another leader has copied a later head.
        if size > head.size:
            return
        limit = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for tile in _tiles(size, head.size):
                await limit.acquire()
                group.create_task(self._create(tile, head)).add_done_callback(lambda _: limit.release())
        # Last: a reader of the checkpoint finds everything below it. False: another leader was quicker.
        if await self.store.put("checkpoint", head.note, _FOR_SECONDS, condition):
            self.copied = head

    async def _size(self) -> tuple[int, Condition]:
        """Return the size of the copy, and the condition under which its checkpoint may be replaced."""
        note, condition = await self.store.get("checkpoint", _MAX_CHECKPOINT)
        if note is None:
            if condition != "create":
                raise self._foreign()
            return 0, condition
        try:
            return self._keys().open(note).checkpoint.size, condition
        except TreatyError as error:
            raise self._foreign() from error

    async def _create(self, tile: Tile | Bundle, head: Head) -> None:
        data = await self._reader.tile(tile.path, head)
        assert data is not None, "the head has it"
        key = tile.path[1:]
        # Written by a copy that did not reach its end. It never changes, so it must be the same.
        if not await self.store.put(key, data, _FOR_EVER, "create") and (await self.store.get(key, len(data)))[0] != data:
            raise self._foreign()
        if tile.width == TILE_WIDTH:
            # obstore lists by whole names of folders, and `.p` is one.
            for partial in await self.store.names(f"{key}.p"):
                await self.store.delete(partial)

    def _foreign(self) -> Untrusted:
        return Untrusted(
            RegistryLogCode.OTHER,
            "The store of tiles holds something else than a copy of this log.",
            fix="Give each log an empty bucket or path of its own (--tiles).",
        )


def _tiles(old: int, new: int) -> Iterator[Tile | Bundle]:
    """Yield the tiles and bundles of a tree of `new` leaves that a tree of `old` leaves does not have in the same width."""
    level = 0
    while new >> TILE_HEIGHT * level:
        count = new >> TILE_HEIGHT * level
        for index in range((old >> TILE_HEIGHT * level) // TILE_WIDTH, (count + TILE_WIDTH - 1) // TILE_WIDTH):
            width = width_at(Tile(level, index), new)
            if width != width_at(Tile(level, index), old):
                if level == 0:
                    yield Bundle(index, width)
                yield Tile(level, index, width)
        level += 1
