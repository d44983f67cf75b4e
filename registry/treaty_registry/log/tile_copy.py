"""Copy the log to one object store, as C2SP tlog-tiles has it, so that a bucket or a CDN serves readers without this process.
`static_site` writes the rest of the read side beside it, at the heads that were copied.

    checkpoint                        the newest published checkpoint; everything below it is there before it
    tile/<L>/<N>[.p/<W>], tile/entries/<N>[.p/<W>]

The leader does this. The checkpoint is replaced only by a write that depends on the version that was read. So a leader that was
replaced does no harm, and a crash leaves the older checkpoint and some newer tiles. A copy continues from the checkpoint in the
store. Partial tiles are deleted once the full tile is there.

Tiles below the checkpoint never change. A tile beyond it may be of a commit that was lost before its head was signed: the disk
of the database went between the two. Then other leaves take the place, and the tile is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.tiles import TILE_HEIGHT, TILE_WIDTH, Bundle, Tile, TreeEdge, width_at

from ..cache_control import IMMUTABLE, SHARED
from ..codes import RegistryLogCode
from ..storage.objects import shown
from ..storage.public_store import Condition, PublicStore
from .checkpoints import Head
from .reader import LogReader

_AT_ONCE = 8  # writes, which bounds memory and the load on the store
_MAX_CHECKPOINT = 256 * 1024
_FOR_EVER = {"Cache-Control": IMMUTABLE, "Content-Type": "application/octet-stream"}
_FOR_SECONDS = {"Cache-Control": SHARED, "Content-Type": "text/plain; charset=utf-8"}


class TileCopy:
    """The copy in the store at `url`. For one event loop."""

    def __init__(self, url: str, keys: Callable[[], LogKeys], reader: LogReader) -> None:
        """Raises `Malformed` (`settings.value`) when the URL names no store."""
        self.store = PublicStore(url)
        self.place = shown(url)
        self.published: Head | None = None
        """The newest head whose checkpoint this process has copied: every proof in its tree can be made from the copy alone."""
        self.time = 0
        """The time of that head; 0 for none yet."""
        self._keys = keys
        self._reader = reader
        self._size = 0
        """Leaves whose tiles are there. At least those of the checkpoint in the store, once it was read."""
        self._lock = asyncio.Lock()
        self._begun = False
        self._wanted = TreeEdge()
        self._growth: asyncio.Task[None] | None = None

    def follow(self, edge: TreeEdge, *, begins: bool = False) -> asyncio.Task[None]:
        """Hold the tree of `edge`. Returns the task that ends when that is done, also for the trees asked for meanwhile.

        `begins`: this process has begun to lead, so a tile that another one left is replaced. Otherwise it is an error.

        The task raises `Untrusted` (`log.damaged`) when the checkpoint in the store has more leaves, `Unavailable`
        (`log.not-leading`) for a tile of other leaves, and as `publish`.
        """
        self._wanted, self._begun = edge, self._begun and not begins
        # One task: a store that is slow skips the trees in between, and does not gather work.
        if self._growth is None or self._growth.done():
            self._growth = asyncio.create_task(self._reach(), name="tile copy")
            # Nobody may wait for the slowest store. Its error comes again.
            self._growth.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._growth

    def end(self) -> None:
        """Write no more for `follow`: this process does not lead any longer."""
        if self._growth is not None:
            self._growth.cancel()

    async def publish(self, head: Head) -> None:
        """Copy the tree of a signed head, then its checkpoint.

        Raises `Untrusted` (`log.other`) for another log in the store, and obstore's errors.
        """
        size, condition = await self._checkpoint()
        # Another leader has copied a later head.
        if size > head.size:
            return
        self._size = max(self._size, size)
        await self._grow(head.edge, replace=True)
        # Last: a reader of the checkpoint finds everything below it. False: another leader was quicker.
        if await self.store.put("checkpoint", head.note, _FOR_SECONDS, condition):
            self.published, self.time = head, head.time

    async def _reach(self) -> None:
        while not self._begun or self._size < self._wanted.size:
            if self._begun:
                await self._grow(self._wanted, replace=False)
                continue
            self._begun, edge = True, self._wanted
            try:
                await self._begin(edge)
            except BaseException:
                self._begun = False
                raise

    async def _begin(self, edge: TreeEdge) -> None:
        size, _ = await self._checkpoint()
        if size > edge.size:
            raise Untrusted(
                LogCode.DAMAGED,
                f"The database holds {edge.size} leaves, and the copy in {self.place} a signed checkpoint of {size}.",
                fix="An old backup was restored, or this is not the database of this log. `restore --mirror` completes it.",
            )
        # Back to what was signed: tiles beyond it may be of a commit that was lost, also when this process wrote them.
        self._size = size
        await self._grow(edge, replace=True)

    async def _grow(self, edge: TreeEdge, *, replace: bool) -> None:
        # One at a time: each writes the tiles that the one before did not.
        async with self._lock:
            limit = asyncio.Semaphore(_AT_ONCE)
            try:
                async with asyncio.TaskGroup() as group:
                    for tile in _tiles(self._size, edge.size):
                        await limit.acquire()
                        group.create_task(self._create(tile, edge, replace)).add_done_callback(lambda _: limit.release())
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
            self._size = max(self._size, edge.size)

    async def _checkpoint(self) -> tuple[int, Condition]:
        """Return the size of the checkpoint in the store, and the condition under which it may be replaced."""
        note, condition = await self.store.get("checkpoint", _MAX_CHECKPOINT)
        if note is None:
            if condition != "create":
                raise self._foreign()
            return 0, condition
        try:
            return self._keys().open(note).checkpoint.size, condition
        except TreatyError as error:
            raise self._foreign() from error

    async def _create(self, tile: Tile | Bundle, edge: TreeEdge, replace: bool) -> None:
        data = await self._reader.tile(tile.path, edge)
        assert data is not None, "the tree has it"
        key = tile.path[1:]
        # There already: of a copy that did not reach its end, or of a commit that was lost.
        if not await self.store.put(key, data, _FOR_EVER, "create") and (await self.store.get(key, len(data)))[0] != data:
            # Another process may have written it and signed it. Whoever takes over learns that from the record.
            if not replace:
                raise Unavailable(RegistryLogCode.NOT_LEADING, f"The copy in {self.place} holds other leaves.")
            await self.store.put(key, data, _FOR_EVER)
        if tile.width == TILE_WIDTH:
            # obstore lists by whole names of folders, and `.p` is one.
            for partial in await self.store.names(f"{key}.p"):
                await self.store.delete(partial)

    def _foreign(self) -> Untrusted:
        return Untrusted(
            LogCode.OTHER,
            "The store of tiles holds something else than a copy of this log.",
            fix="Give each log an empty bucket or path of its own (--tiles).",
        )


def _tiles(old: int, new: int) -> Iterator[Tile | Bundle]:
    """Yield the tiles and bundles of a tree of `new` leaves that a tree of `old` leaves does not have in the same width."""
    level = 0
    while new > old and new >> TILE_HEIGHT * level:
        count = new >> TILE_HEIGHT * level
        for index in range((old >> TILE_HEIGHT * level) // TILE_WIDTH, (count + TILE_WIDTH - 1) // TILE_WIDTH):
            width = width_at(Tile(level, index), new)
            if width != width_at(Tile(level, index), old):
                if level == 0:
                    yield Bundle(index, width)
                yield Tile(level, index, width)
        level += 1
