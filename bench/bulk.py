"""Fill a registry with many protocols and leaves, for measurements of growth.

Statements are real and signed, with few keys. They go through the sequencer of a registry that is open in this process, in large
batches: every rule, table, tile and checkpoint is the product's own. Only admission is left out, because the statements are made
here: signatures are not verified again, and blobs are written to the store without upload, sync and check.

A protocol has a document and a card of its own. Its words are drawn from a vocabulary in which word N is N times as rare as the
first; every card has the word `protocol`. One protocol of eight is in the same topic, and there is another topic for every
`TOPIC_SHARE` protocols. Each protocol comes in two versions. Of the other leaves nine of ten are ballots in these topics, the
rest are grants and statuses. The seed is fixed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from treaty_consensus.canonical import hex_digest
from treaty_consensus.kinds import NONE, Ballot, Blob, Body, Grant, Publish, Status
from treaty_consensus.protocol import Card
from treaty_consensus.statement import Verified
from treaty_io.identity import Identity
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings

from .publishing import Voter, acquaint, make_voters, resolving

TOPIC_SHARE = 50
"""Protocols for each topic."""
CROWDED = "bulk/crowded"
AUTHORS, VOTERS = 64, 256
VOCABULARY = 20_000
_WORDS = 6  # of a title and a summary each
_BATCH = 2_048


@dataclass(frozen=True)
class Small:
    """A protocol of the bulk: where it is, its words, and the hash of its document."""

    path: str
    topic: str
    words: tuple[str, ...]
    hash: str


@dataclass(frozen=True)
class _Draft:
    """A statement to be signed, and the blobs that it names."""

    by: Identity
    body: Body
    blobs: tuple[bytes, ...] = ()


@lru_cache(maxsize=VOCABULARY)
def word(number: int) -> str:
    """Return the word with this number of the vocabulary: letters that begin many other words too."""
    letters = "bdfgklmnprst"
    text = ""
    number += len(letters)
    while number:
        number, rest = divmod(number, len(letters))
        text += letters[rest] + "aeiou"[rest % 5]
    return text


@lru_cache(maxsize=1)
def _weights() -> Sequence[float]:
    return [*itertools.accumulate(1 / (number + 1) for number in range(VOCABULARY))]


class Bulk:
    """What a registry is filled with, from the first protocol on. `fill` may be called several times, with growing numbers."""

    def __init__(self, data: Path, origin: str, database: str | None = None, voters: int = VOTERS) -> None:
        """Fill the registry in the directory `data`. `database`: the URL of its PostgreSQL, if it is not the embedded one."""
        self._data, self._origin, self._database = data, origin, database
        self.authors = [Identity.create() for _ in range(AUTHORS)]
        self.voters: list[Voter] = make_voters(voters)
        self.protocols = self.leaves = 0
        self._numbers = itertools.count()
        self._random = random.Random(7)

    def protocol(self, number: int) -> Small:
        """Return the protocol with this number, from 0."""
        drawn = random.Random(number // 2)  # both versions have the same words
        words = drawn.choices(range(VOCABULARY), cum_weights=_weights(), k=2 * _WORDS)
        namespace = self.authors[number // 2 % AUTHORS].parsed.namespace
        path = f"/protocols/{namespace}/p-{number // 2}/{1 + number % 2}.0"
        topic = CROWDED if number // 2 % 8 == 7 else f"bulk/t-{number // TOPIC_SHARE}"
        return Small(path, topic, tuple(map(word, words)), hex_digest(_document(path)))

    async def fill(self, protocols: int, leaves: int, tell: Callable[[int], None] = lambda _: None) -> None:
        """Grow the registry to so many protocols and leaves of the bulk. The registry must not run. `tell` gets the leaves."""
        new = not (self._data / "keys").exists()
        settings = Settings(self._data, new=new, origin=self._origin, database=self._database)
        async with Registry.open(settings, resolve=resolving(self.voters)) as opened:
            if not self.leaves:
                await acquaint(opened, self.voters)
            ready: list[Verified] = []
            while ready or self.protocols < protocols or self.leaves < leaves:
                # The next statements are made while PostgreSQL writes these.
                async with asyncio.TaskGroup() as group:
                    group.create_task(_log(opened, ready))
                    note, now = opened.head.note.decode(), int(opened.clock().timestamp())
                    made = group.create_task(asyncio.to_thread(self._make, protocols, leaves, note, now))
                tell(self.leaves - len(made.result()))
                ready = made.result()

    def _batch(self, protocols: int, leaves: int) -> list[_Draft]:
        """Return the next statements: publishes and other leaves in the proportion of what is still missing."""
        others = max(0, leaves - max(0, protocols))
        number = min(_BATCH, protocols + others)
        if number <= 0:
            return []
        publishes = min(protocols, -(-number * protocols // (protocols + others)))
        drafts = [self._publish(self.protocols + place) for place in range(publishes)]
        self.protocols += publishes
        drafts += [self._other() for _ in range(number - publishes)]
        self.leaves += len(drafts)
        return drafts

    def _publish(self, number: int) -> _Draft:
        small = self.protocol(number)
        title, summary = " ".join(small.words[:_WORDS]), " ".join(small.words[_WORDS:])
        document, card = _document(small.path), Card(title, f"A protocol: {summary}.", small.words[:2], "Apache-2.0").encode()
        body = Publish(f"https://{self._origin}{small.path}", small.topic, _blob(document), _blob(card), "negotiated")
        return _Draft(self._author(number), body, (document, card))

    def _other(self) -> _Draft:
        lot, number = self._random.random(), self._random.randrange(self.protocols)
        if lot < 0.9:
            voter, topic = self._random.choice(self.voters), self.protocol(number).topic
            first = number // TOPIC_SHARE * TOPIC_SHARE
            chosen = {self.protocol(first + self._random.randrange(TOPIC_SHARE)).hash for _ in range(2)}
            ballot = Ballot(topic, voter.cast[topic], (*((choice,) for choice in sorted(chosen)), (NONE,)), "")
            voter.cast[topic] += 1
            return _Draft(voter.identity, ballot)
        author = self._author(number)
        if lot < 0.95:
            return _Draft(author, Grant(author.did, f"did:wba:friend-{next(self._numbers)}.example"))
        successor = f"https://{self._origin}/protocols/{author.parsed.namespace}/next-{next(self._numbers)}/1.0"
        return _Draft(author, Status(f"https://{self._origin}{self.protocol(number).path}", "deprecated", successor=successor))

    def _author(self, number: int) -> Identity:
        return self.authors[number // 2 % AUTHORS]

    def _make(self, protocols: int, leaves: int, note: str, now: int) -> list[Verified]:
        drafts = self._batch(protocols - self.protocols, leaves - self.leaves)
        self._store(drafts)
        signed = []
        for draft in drafts:
            body = replace(draft.body, seen_checkpoint=note) if isinstance(draft.body, Ballot) else draft.body
            made = draft.by.statement(body, log=self._origin, issued=now)
            signed.append(Verified(made, (draft.by.private_key.public_key().public_bytes_raw(),)))
        return signed

    def _store(self, drafts: Sequence[_Draft]) -> None:
        # Without the store's sync: what a crash would lose here is made anew.
        for data in itertools.chain.from_iterable(draft.blobs for draft in drafts):
            digest = hex_digest(data)
            folder = self._data / "blobs" / "sha256" / digest[:2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / digest).write_bytes(data)


async def _log(opened: Registry, signed: Sequence[Verified]) -> None:
    if signed:
        async with opened.sequencer.exclusive() as writer:
            await writer.append(signed)


def _document(path: str) -> bytes:
    return f"# A protocol\n\nThis is {path}. The client asks, and the server answers.\n".encode()


def _blob(data: bytes) -> Blob:
    return Blob(hex_digest(data), len(data))
