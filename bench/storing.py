"""What a small statement costs in PostgreSQL: bytes of each table and each index, for grants, ballots, reports and vouches.

    .venv/bin/python -m bench storing                 # a minute

Statements are signed, and go through the sequencer of a registry in this process, as in `bulk`. Each kind is in a registry of its
own. 256 agents write in an order that is drawn: a `did:key` grants its namespace to others; an agent with a domain votes in 16
topics, vouches for an acquaintance, or reports with one on one of four protocols of a topic. `report again` is a second report of
the same pairs on the same protocols. Ballots and reports have a checkpoint in them. The growth of a table or an index is divided
by the statements, after a vacuum. Sizes do not depend on the load of the machine. The seed is fixed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from treaty_consensus.canonical import hex_digest
from treaty_consensus.kinds import NONE, Ballot, Body, Grant, Report, Vouch
from treaty_consensus.statement import Verified, draft
from treaty_io.identity import Identity
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings
from treaty_registry.storage.postgres import Connection, connect

from . import RESULTS, report
from .publishing import Voter, acquaint, make_voters, resolving
from .servers import workspace

RESULT, TABLE = RESULTS / "storing.json", RESULTS / "storing.md"
ORIGIN = "storing.example"
AGENTS, TOPICS, ACQUAINTANCES = 256, 16, 32
_BATCH = 256
_KINDS = ("grant", "ballot", "vouch", "report", "report again")
_SIZES = """
select relname, pg_table_size(oid) as bytes from pg_class
where relnamespace = 'public'::regnamespace and relkind in ('r', 'i')
"""


class Figure(msgspec.Struct, frozen=True):
    """Of one kind: its statements, the mean bytes of a leaf, and the bytes of one statement in each table and index that grew."""

    statements: int
    leaf: float
    relations: Mapping[str, float]

    @property
    def total(self) -> float:
        """All bytes for one statement."""
        return sum(self.relations.values())


class Agents:
    """Agents with a domain, and what they sign of each kind."""

    def __init__(self) -> None:
        self.voters: list[Voter] = make_voters(AGENTS)
        self._keys = [Identity.create() for _ in range(AGENTS)]
        self._random = random.Random(11)
        self._topics = [f"commerce/topic-{number:02d}" for number in range(TOPICS)]

    def statements(self, kind: str, note: str, statements: int) -> Iterator[Verified]:
        """Yield so many statements of a kind that have seen the checkpoint `note`."""
        bodies = {"grant": self._grants, "ballot": self._ballots, "report": self._reports, "vouch": self._vouches}
        self._random.seed(11)  # a second time the same agents do the same
        for identities, body in bodies[kind](note, statements):
            keys = {identity.key_id: identity for identity in identities}
            drawn = draft(body, log=ORIGIN, by=tuple(keys), issued=int(time.time()))
            signed = drawn.seal({key_id: identity.sign(drawn.signing_input) for key_id, identity in keys.items()})
            yield Verified(signed, tuple(keys[key_id].public_key for key_id in signed.by))

    def _grants(self, _note: str, number: int) -> Iterator[tuple[Sequence[Identity], Body]]:
        for count in range(number):
            author = self._random.choice(self._keys)
            yield (author,), Grant(author.parsed.namespace, f"did:wba:friend-{count}.example")

    def _ballots(self, note: str, number: int) -> Iterator[tuple[Sequence[Identity], Body]]:
        places = [(author, topic) for author in range(AGENTS) for topic in self._topics]
        self._random.shuffle(places)
        for count in range(number):
            author, topic = places[count % len(places)]
            yield (self._agent(author),), Ballot(topic, count // len(places), ((self._document(topic),), (NONE,)), note)

    def _reports(self, note: str, number: int) -> Iterator[tuple[Sequence[Identity], Body]]:
        for count in range(number):
            author, topic = self._random.randrange(AGENTS), self._random.choice(self._topics)
            nid = hex_digest(f"negotiation {count} {note}".encode())
            yield (self._agent(author), self._acquaintance(author)), Report(topic, nid, self._document(topic), "agreed", 0, note)

    def _vouches(self, _note: str, number: int) -> Iterator[tuple[Sequence[Identity], Body]]:
        written = [0] * AGENTS
        for _ in range(number):
            author = self._random.randrange(AGENTS)
            yield (self._agent(author),), Vouch(self._acquaintance(author).did, written[author])
            written[author] += 1

    def _document(self, topic: str) -> str:
        return hex_digest(f"{topic} {self._random.randrange(4)}".encode())

    def _agent(self, number: int) -> Identity:
        return self.voters[number % AGENTS].identity

    def _acquaintance(self, author: int) -> Identity:
        return self._agent(author + self._random.randint(1, ACQUAINTANCES))


async def sizes(connection: Connection) -> dict[str, int]:
    """Return the bytes of each table and index, without rows that no transaction sees any more."""
    await connection.execute("vacuum")
    return {row["relname"]: row["bytes"] for row in await connection.fetch(_SIZES)}


async def write(opened: Registry, ready: Sequence[Verified]) -> None:
    """Log statements, in batches."""
    for first in range(0, len(ready), _BATCH):
        async with opened.sequencer.exclusive() as writer:
            await writer.append(ready[first : first + _BATCH])


async def measure(folder: Path, kind: str, statements: int) -> Figure:
    """Return the figures of a kind, in a registry of its own: a page has room for a small leaf beside large ones."""
    agents, kind, again = Agents(), kind.partition(" ")[0], kind.endswith(" again")
    settings = Settings(folder / "registry", new=True, origin=ORIGIN)
    async with Registry.open(settings, resolve=resolving(agents.voters)) as opened:
        await acquaint(opened, agents.voters)
        async with connect(f"postgresql://postgres@/postgres?host={folder / 'registry' / 'postgres'}") as connection:
            if again:
                await write(opened, [*agents.statements(kind, opened.head.note.decode(), statements)])
            before = await sizes(connection)
            ready = [*agents.statements(kind, opened.head.note.decode(), statements)]
            await write(opened, ready)
            after = await sizes(connection)
    grown = {name: round((size - before[name]) / statements, 1) for name, size in sorted(after.items())}
    leaf = sum(len(each.statement.leaf) for each in ready) / statements
    return Figure(statements, round(leaf), {name: size for name, size in grown.items() if size > 0})


def table(figures: Mapping[str, Figure]) -> str:
    """Return the figures in Markdown, those of a table above those of its indexes."""
    names = sorted({name for figure in figures.values() for name in figure.relations})
    lines = [f"| bytes of | {' | '.join(figures)} |", "|---|" + "---:|" * len(figures)]
    lines += [f"| `{name}` | {' | '.join(f'{f.relations.get(name, 0):.0f}' for f in figures.values())} |" for name in names]
    lines.append(f"| **all** | {' | '.join(f'**{figure.total:,.0f}**' for figure in figures.values())} |")
    lines.append(f"| a leaf | {' | '.join(f'{figure.leaf:,.0f}' for figure in figures.values())} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure, show the table and keep it."""
    parser = argparse.ArgumentParser(prog="python -m bench storing", description=__doc__)
    parser.add_argument("--statements", type=int, default=8_192, help="of each kind (default: 8192)")
    parser.add_argument("--dry", action="store_true", help="keep nothing")
    chosen = parser.parse_args(arguments)
    with workspace() as folder:
        figures = {kind: asyncio.run(measure(folder / kind.replace(" ", "-"), kind, chosen.statements)) for kind in _KINDS}
    text = table(figures)
    if not chosen.dry:
        RESULT.write_text(json.dumps({"machine": report.machine(), **msgspec.to_builtins(figures)}, indent=1) + "\n")
        TABLE.write_text(f"# Bytes of a statement in PostgreSQL\n\n{text}\n")
    print(text)
    return 0
