"""What follows from leaves alone: the rules of the log, and every table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import Any

from treaty_consensus.audit import Replay
from treaty_consensus.facts import encode
from treaty_consensus.kinds import Handler
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.tiles import TreeEdge
from treaty_consensus.statement import Statement
from treaty_registry import projection
from treaty_registry.catalogue.handler_facts import HandlerFacts, read_facts
from treaty_registry.log import tables as log_tables
from treaty_registry.log.entry import Entry

from .blobs import Blobs
from .meanings import meaning
from .tables import Tables, View


class _Transaction:
    """The statements of one transaction, run at once."""

    def __init__(self, tables: Tables) -> None:
        self._view = View(tables)

    async def fetch(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        return meaning(sql)(self._view, *arguments)

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        rows = await self.fetch(sql, *arguments)
        return next(iter(rows[0].values())) if rows else None

    async def execute(self, sql: str, *arguments: Any) -> None:
        await self.fetch(sql, *arguments)

    def commit(self) -> None:
        self._view.commit()


class Rebuilt:
    """A log from its beginning, leaf by leaf. `edge`: the right edge of its tree. `roots`: the root of each size."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs: Any = blobs
        self._tables = Tables.new()
        self._replay = Replay(blobs.read)
        self.edge = TreeEdge()
        self.roots = {0: self.edge.root()}

    @property
    def tables(self) -> Tables:
        """Return all tables."""
        self._tables.rows["facts"] = {(key,): {"key": key, "fact": encode(fact)} for key, fact in self._replay.facts.items()}
        return self._tables

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Append leaves. Raises `TreatyError` when one breaks a rule."""
        _real_loop().run_until_complete(self._extend(leaves))

    async def _extend(self, leaves: Iterable[bytes]) -> None:
        for leaf in leaves:
            parsed = self._replay.append(leaf)
            stated = parsed if isinstance(parsed, Statement) else None
            facts = None
            if stated is not None and isinstance(body := stated.body, Handler):
                facts = _facts(body, self._blobs.read(body.wheel.sha256), self._blobs.read(body.bundle.sha256))
            entry, before = Entry(self.edge.size, leaf, stated, self._blobs, facts), self.edge
            self.edge, tiles = before.appended([leaf_hash(leaf)])
            self.roots[self.edge.size] = self.edge.root()
            database: Any = _Transaction(self._tables)
            await log_tables.append(database, before, self.edge, [entry], {}, tiles)
            await projection.apply(database, [entry])
            database.commit()


@cache
def _facts(body: Handler, wheel: bytes, bundle: bytes) -> HandlerFacts:
    return read_facts(body, wheel, bundle)


@cache
def _real_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()
