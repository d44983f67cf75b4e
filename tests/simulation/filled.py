"""A log that has leaves already when a history begins, so that the history fills tiles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from random import Random
from typing import NamedTuple

from signers import NOW, ORIGIN, domain_signer, identity_body

from treaty_consensus import kinds
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_registry.log.clock import SignedTime

from .blobs import Blobs
from .operators import operator
from .processes import World
from .rebuilding import Rebuilt
from .tables import Tables

EDGES = (250, 253, 255, 256, 508)
"""Sizes shortly before a tile is full, or at its end."""
_BEFORE = 10
"""Seconds before the history in which the log was signed last."""


class _Filled(NamedTuple):
    tables: Tables
    record: Checkpoint


def fill(world: World, rng: Random, sizes: tuple[int, ...] = EDGES) -> None:
    """Let the log of a history have leaves, which its machines have signed."""
    filled = _filled(rng.choice(sizes))
    world.begun = filled.record
    world.server.begin(filled.tables)
    world.scheduler.note(f"the log has {filled.record.size} leaves")
    if world.store is not None:
        world.store.put("head", filled.record.format().encode(), "create")


@cache
def _filled(size: int) -> _Filled:
    rebuilt = Rebuilt(Blobs())
    rebuilt.extend(_leaves(size))
    time = SignedTime(NOW - _BEFORE)
    return _Filled(rebuilt.tables, Checkpoint(ORIGIN, size, rebuilt.edge.root(), (time.format(),)))


def _leaves(size: int) -> Iterator[bytes]:
    at = datetime.fromtimestamp(NOW - _BEFORE, UTC)
    author = domain_signer("dora.example")
    for body in (operator().genesis(), development_parameters(), identity_body(author)):
        yield operator().state(body, issued=at).statement.leaf
    for number in range(size - 3):
        yield author.statement(kinds.Grant("dora.example", f"did:wba:friend-{number}.example")).leaf
