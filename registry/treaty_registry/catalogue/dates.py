"""Query when protocols were published: the time that stands in the statement, which its publisher signed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from treaty_consensus.canonical import b64decode
from treaty_consensus.statement import MAX_LEAF

from ..storage.stored_leaf import restored

if TYPE_CHECKING:
    from asyncpg import Pool

_LEAVES = "select p.uri, l.leaf from protocols p join leaves l using (index) where p.uri = any($1::text[])"
_MAX_READ = 4_096


class _Envelope(msgspec.Struct):
    payload: str


class _Payload(msgspec.Struct):
    issued: int


async def published(pool: Pool, uris: Iterable[str]) -> Mapping[str, int]:
    """Return URI → Unix seconds, for those of these protocols that are published. Read one page of a list at a time."""
    return {row["uri"]: _issued(row["leaf"]) for row in await pool.fetch(_LEAVES, list(uris))}


# A stored leaf never changes, and pages show the same ones again.
@lru_cache(maxsize=_MAX_READ)
def _issued(leaf: bytes) -> int:
    # Not `understand`, which checks the whole statement: it was checked when it was logged.
    payload = msgspec.json.decode(restored(leaf), type=_Envelope).payload
    return msgspec.json.decode(b64decode(payload, limit=MAX_LEAF), type=_Payload).issued
