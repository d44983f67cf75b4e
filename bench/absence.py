"""What a map of the newest statement of each place would cost: the size of a proof, and what a commit takes more.

    .venv/bin/python -m bench absence                 # two minutes

The map is a compressed binary prefix tree over SHA-256 of a place (`publish/URI`, `status/URI/DID`, `identity/DID`,
`decision/TOPIC`); its root would stand in each checkpoint. Nothing of it is built; `docs/decisions/proof-of-absence.md` says
why. Proofs are of a real tree. For a commit the product's own registry runs with an embedded database, and in the transaction of
each commit the rows of the tree that it changes are written too: of each place three chunks of eight levels.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from treaty_consensus.facts import Fact
from treaty_consensus.log.tiles import Tile, TreeEdge
from treaty_registry.log import tables
from treaty_registry.log.entry import Entry, Logged
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings
from treaty_registry.storage.postgres import Connection

from . import RESULTS
from .nodes import ORIGIN, Writer
from .servers import workspace

SIZES = (10_000, 100_000, 1_000_000)
PROOFS = 2_000
COMMITS = 150
BATCH = 64
ROUNDS = 4
RESULT, TABLE = RESULTS / "absence.json", RESULTS / "absence.md"
_ENTRY = 32 + 1
"""Bytes of a sibling in a proof: its hash, and the bit at which the two part."""
_END = 32 + 32 + 8 + 8
"""The place at the end of the path, the hash of its leaf, its index, and the number of places."""
_UPSERT = """
insert into absence_chunks (prefix, content) select * from unnest($1::bytea[], $2::bytea[])
on conflict (prefix) do update set content = excluded.content
"""


def siblings(keys: Sequence[bytes], asked: Sequence[bytes]) -> list[int]:
    """The number of siblings on the path to each asked key: the inner nodes of a compressed prefix tree above it."""
    ordered = sorted(int.from_bytes(key) for key in keys)
    found = []
    for key in (int.from_bytes(each) for each in asked):
        low, high, depth, count = 0, len(ordered), 255, 0
        while high - low > 1:
            # All keys of this range have the bits above; an inner node is where both bits occur.
            middle = _first_with_bit(ordered, low, high, depth)
            if low < middle < high:
                count += 1
            if key >> depth & 1:
                low = middle if middle < high else low
            else:
                high = middle if middle > low else high
            depth -= 1
        found.append(count)
    return found


def _first_with_bit(ordered: Sequence[int], low: int, high: int, depth: int) -> int:
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] >> depth & 1:
            high = middle
        else:
            low = middle + 1
    return low


def proofs() -> dict[str, dict[str, int]]:
    """Bytes of a proof that a place has its newest statement, or none, at each size."""
    chance = random.Random(1)
    sizes: dict[str, dict[str, int]] = {}
    for count in SIZES:
        keys = [chance.randbytes(32) for _ in range(count)]
        # Half of them are places that the tree does not have.
        asked = [*keys[: PROOFS // 2], *(chance.randbytes(32) for _ in range(PROOFS // 2))]
        found = sorted(_END + _ENTRY * number for number in siblings(keys, asked))
        sizes[str(count)] = {"median": found[len(found) // 2], "longest": found[-1]}
    return sizes


def chunks(places: int, chance: random.Random) -> dict[bytes, bytes]:
    """The rows that `places` new statements change in a tree of a million places: two chunks of 256 hashes and a bucket each."""
    rows = {}
    for _ in range(places):
        key = hashlib.sha256(chance.randbytes(8)).digest()
        # Eight levels of a chunk are hashed again.
        for level in range(24):
            key = hashlib.sha256(bytes([level]) + key + key).digest()
        for prefix, size in ((b"", 8192), (key[:1], 8192), (key[:2], 16 * 72)):
            rows[prefix] = chance.randbytes(size)
    return rows


async def commits(folder: Path) -> dict[str, dict[str, float]]:
    """Milliseconds of a commit of one statement and of 64, without the map and with it."""
    settings = Settings(data=folder / "registry", origin=ORIGIN, new=True)
    async with Registry.open(settings) as registry:
        connection: Any = await asyncpg.connect(registry.database)
        await connection.execute("create table absence_chunks (prefix bytea primary key, content bytea not null)")
        await connection.close()
        plain, chance = tables.append, random.Random(2)

        async def with_map(
            connection: Connection,
            before: TreeEdge,
            after: TreeEdge,
            entries: Sequence[Entry],
            facts: Mapping[str, Fact],
            tiles: Mapping[Tile, bytes],
            addition: tables.Addition | None = None,
        ) -> bool:
            rows = chunks(len(entries), chance)
            async with connection.transaction():
                await connection.execute(_UPSERT, [*rows], [*rows.values()])
                return await plain(connection, before, after, entries, facts, tiles, addition)

        times: dict[tuple[int, bool], list[float]] = {(size, mapped): [] for size in (1, BATCH) for mapped in (False, True)}
        for turn in range(2 * ROUNDS):
            mapped = turn % 2 == 1
            tables.append = with_map if mapped else plain  # as the leader finds it
            for size in (1, BATCH):
                writer = Writer()
                for _ in range(COMMITS if size == 1 else COMMITS // 10):
                    leaves = [writer.leaf() for _ in range(size)]
                    began = time.perf_counter()
                    outcomes = await registry.submit(leaves)
                    times[size, mapped].append(time.perf_counter() - began)
                    assert all(isinstance(outcome, Logged) for outcome in outcomes), outcomes[0]
        tables.append = plain
    middle = {key: 1000 * statistics.median(values) for key, values in times.items()}
    return {
        str(size): {
            "plain_ms": round(middle[size, False], 2),
            "map_ms": round(middle[size, True], 2),
            "more": round(middle[size, True] / middle[size, False] - 1, 2),
        }
        for size in (1, BATCH)
    }


def main(arguments: Sequence[str]) -> int:
    """Measure, and write the results."""
    argparse.ArgumentParser(prog="python -m bench absence", description=__doc__).parse_args(arguments)
    found: dict[str, Any] = {"processors": os.cpu_count(), "proofs": proofs()}
    with workspace() as folder:
        found["commits"] = asyncio.run(commits(folder))
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    TABLE.write_text(_table(found))
    print(json.dumps(found))
    return 0


def _table(found: dict[str, Any]) -> str:
    sizes = "".join(
        f"| {int(count):,} places | {size['median']} bytes | {size['longest']} bytes |\n"
        for count, size in found["proofs"].items()
    )
    rows = "".join(
        f"| {size} | {item['plain_ms']} ms | {item['map_ms']} ms | {item['more']:+.0%} |\n"
        for size, item in found["commits"].items()
    )
    return f"""# Proof of absence

`.venv/bin/python -m bench absence`, on {found["processors"]} processors.

| a proof of one of | median | longest |
|---|---|---|
{sizes}
| statements in a commit | today | with the map of a million places | more |
|---|---|---|---|
{rows}
A commit is from the statements to their receipts, in the process.
"""
