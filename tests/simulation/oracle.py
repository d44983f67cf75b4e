"""The judgement of a history, when it has ended: what must be true of any, whatever failed in it."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from treaty_consensus.audit import Replay
from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import encode
from treaty_consensus.kinds import Handler
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.proof import Receipt
from treaty_consensus.log.tiles import TreeEdge
from treaty_consensus.statement import Statement
from treaty_registry import projection
from treaty_registry.catalogue.handler_facts import HandlerFacts, read_facts
from treaty_registry.log import tables as log_tables
from treaty_registry.log.entry import Entry

from .clients import Clients
from .processes import World
from .operators import operator
from .meanings import meaning
from .tables import Tables, View

_DERIVED = [name for name in Tables.new().rows if name not in ("leadership", "pending_blobs")]


def judge(world: World, clients: Clients) -> None:
    """Add a finding to the world for each rule that the history broke."""
    _check_chain(world)
    _check_receipts(world, clients)
    _check_tables(world)
    for broken in world.server.broken_constraints:
        world.found(f"The write path met a constraint of the database: {broken}")
    for process in (*world.processes, *world.ended):
        for error in process.loop.errors:
            world.found(f"{process.name}: {error}")


def _check_chain(world: World) -> None:
    edge, roots = TreeEdge(), {}
    roots[0] = edge.root()
    for leaf in world.server.leaves:
        edge, _ = edge.appended([leaf_hash(leaf)])
        roots[edge.size] = edge.root()
    if world.server.head != (edge.size, edge.root()):
        world.found("The head of the database is not that of its leaves.")
    for process, checkpoint, _ in world.signed:
        if roots.get(checkpoint.size) != checkpoint.root:
            world.found(f"{process.name} signed {checkpoint.size} leaves that are not a prefix of the log.")


def _check_receipts(world: World, clients: Clients) -> None:
    leaves = world.server.leaves
    keys = operator().log_key.verifier, operator().clock_key.verifier
    for wish in clients.wishes:
        logged = [index for index, leaf in enumerate(leaves) if leaf == wish.leaf]
        if wish.index is not None and logged != [wish.index]:
            world.found(f"{wish.name} has a receipt for leaf {wish.index}, and is in the log at {logged}.")
        for receipt in wish.receipts:
            try:
                Receipt.parse(receipt).verify(wish.leaf, *keys)
            except TreatyError as error:
                world.found(f"The receipt of {wish.name} does not verify: {error}")


class _Database:
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


def _check_tables(world: World) -> None:
    """Compare all tables with those that follow from the leaves alone, and the leaves with the rules of the log."""
    rebuilt, replay, edge = Tables.new(), Replay(world.blobs.read), TreeEdge()
    for index, leaf in enumerate(world.server.leaves):
        try:
            parsed = replay.append(leaf)
        except TreatyError as error:
            world.found(f"Leaf {index} breaks a rule of the log: {error}")
            return
        before = edge
        edge, tiles = before.appended([leaf_hash(leaf)])
        _real_loop().run_until_complete(_project(world, rebuilt, before, edge, tiles, index, leaf, parsed))
    rebuilt.rows["facts"] = {(key,): {"key": key, "fact": encode(fact)} for key, fact in replay.facts.items()}
    for name in _DERIVED:
        if rebuilt.rows[name] != world.server.tables.rows[name]:
            world.found(f"The table {name} does not follow from the leaves.")


async def _project(world: World, rebuilt: Tables, *edges: Any) -> None:
    before, edge, tiles, index, leaf, parsed = edges
    facts = None
    if isinstance(parsed, Statement) and isinstance(parsed.body, Handler):
        facts = _facts(parsed.body, *(world.blobs.read(blob.sha256) for blob in (parsed.body.wheel, parsed.body.bundle)))
    blobs: Any = world.blobs
    entry = Entry(index, leaf, parsed if isinstance(parsed, Statement) else None, blobs, facts)
    database: Any = _Database(rebuilt)
    await log_tables.append(database, before, edge, [entry], {}, tiles)
    await projection.apply(database, [entry])
    database.commit()


@cache
def _facts(body: Handler, wheel: bytes, bundle: bytes) -> HandlerFacts:
    return read_facts(body, wheel, bundle)


@cache
def _real_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()
