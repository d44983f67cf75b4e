"""The judgement of a history, when it has ended: what must be true of any, whatever failed in it."""

from __future__ import annotations

from treaty_consensus.errors import TreatyError
from treaty_consensus.log.proof import Receipt

from .clients import Clients
from .operators import operator
from .processes import World
from .rebuilding import Rebuilt
from .tables import Tables

_DERIVED = [name for name in Tables.new().rows if name not in ("leadership", "pending_blobs")]


def judge(world: World, clients: Clients) -> None:
    """Add a finding to the world for each rule that the history broke."""
    _check_log(world)
    _check_receipts(world, clients)
    for broken in world.server.broken_constraints:
        world.found(f"The write path met a constraint of the database: {broken}")
    for process in (*world.processes, *world.ended):
        for error in process.loop.errors:
            world.found(f"{process.name}: {error}")


def _check_log(world: World) -> None:
    """Compare what was signed, and all tables, with what follows from the leaves alone, and the leaves with the log's rules."""
    rebuilt = Rebuilt(world.blobs)
    try:
        rebuilt.extend(world.server.leaves)
    except TreatyError as error:
        world.found(f"A leaf breaks a rule of the log: {error}")
        return
    if world.server.head != (rebuilt.edge.size, rebuilt.edge.root()):
        world.found("The head of the database is not that of its leaves.")
    for process, checkpoint, _ in world.signed:
        if rebuilt.roots.get(checkpoint.size) != checkpoint.root:
            world.found(f"{process.name} signed {checkpoint.size} leaves that are not a prefix of the log.")
    tables = rebuilt.tables
    for name in _DERIVED:
        if tables.rows[name] != world.server.tables.rows[name]:
            world.found(f"The table {name} does not follow from the leaves.")


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
