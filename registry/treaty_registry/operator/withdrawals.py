"""Take content down: list the bytes that a URI, a DID or a digest stands for, log their withdrawals, delete them.

The leaf of a withdrawal comes first. From then on this registry, its nodes and its mirrors serve none of the bytes. Its commit
also makes them an upload that has expired (`log.tables`), and they are deleted at once, or by the next sweep where a store does
not answer. Title, summary, tags and licence follow from the card, so they end with it. The leaves remain, with all names in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from treaty_consensus.canonical import parse_digest
from treaty_consensus.codes import WithdrawalCode
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError
from treaty_consensus.facts import needed_key
from treaty_consensus.kinds import Withdrawal
from treaty_consensus.protocol import parse_protocol_uri

from ..admission.uploads import Uploads
from ..codes import RegistryBlobCode
from ..keys import Operator
from ..log.proposals import Proposal
from ..log.sequencer import MAX_BATCH, Sequencer
from ..storage.postgres import Connection, connect

Reason = Literal["illegal", "personal", "malicious"]
MAX_BLOBS = 4096
"""Blobs of one withdrawal, so that a list can be read and an answer fits. A repeated command takes the next ones."""
_NO_URI = "//"  # no URI begins with it
_SLASHES = 5  # of the URI of a protocol without its version

# `$1` is a URI or a DID, `$2` the beginning of URIs, `$3` a digest.
_VERSIONS = """
select uri, title, summary, tags, publisher, document, card, index from protocols
where uri = $1 or publisher = $1 or starts_with(uri, $2) or document = $3 or card = $3 order by index
"""
# All bytes of these versions, the handlers of others too, and those that a DID attached to the versions of others.
_BLOBS = """
with versions as (
  select uri, publisher, document, card from protocols where uri = $1 or publisher = $1 or starts_with(uri, $2)
), named as (
  select 'document' as part, document as sha256, uri as of from versions
  union all select 'card', card, uri from versions
  union all select 'wheel', wheel, uri from handlers where publisher = $1 or uri in (select uri from versions)
  union all select 'bundle', bundle, uri from handlers where publisher = $1 or uri in (select uri from versions)
  union all select 'DID document', document, did from identities where did = $1
)
select distinct on (blobs.index, sha256) named.part, named.of, encode(sha256, 'hex') as sha256, size,
       (select count(*) from protocols
        where (document = sha256 or card = sha256) and uri not in (select uri from versions)) as others
from named join blobs using (sha256) where withdrawn is null order by blobs.index, sha256, named.part limit $3
"""
_DIGEST = """
select coalesce(
    (select 'document' from protocols where document = $1 limit 1), (select 'card' from protocols where card = $1 limit 1),
    (select 'wheel' from handlers where wheel = $1 limit 1), (select 'bundle' from handlers where bundle = $1 limit 1),
    (select 'DID document' from identities where document = $1 limit 1),
    (select 'transcript' from decisions where transcript = $1 limit 1), (select 'roll' from rolls where roll = $1 limit 1), 'blob'
  ) as part,
  coalesce(
    (select uri from protocols where document = $1 or card = $1 order by index limit 1),
    (select uri from handlers where wheel = $1 or bundle = $1 order by index limit 1),
    (select did from identities where document = $1 order by index limit 1), ''
  ) as of,
  encode(sha256, 'hex') as sha256, size,
  greatest(0, (select count(*) - 1 from protocols where document = $1 or card = $1)) as others
from blobs where sha256 = $1 and withdrawn is null
"""


@dataclass(frozen=True)
class ShownVersion:
    """A version whose card is read by people: the texts that end with the card."""

    uri: str
    title: str
    summary: str
    tags: list[str]
    publisher: str


@dataclass(frozen=True)
class ServedBlob:
    """Bytes that are served. `part`: what they are. `of`: the URI or DID that they are of. `others`: versions beyond the listed
    ones that name the same bytes, and lose them too."""

    sha256: str
    size: int
    part: str
    of: str
    others: int


@dataclass(frozen=True)
class Takedown:
    """What a withdrawal takes. `more`: there are more bytes than one withdrawal takes; repeat it. `urls`: where a cache may have
    it."""

    target: str
    versions: list[ShownVersion]
    blobs: list[ServedBlob]
    more: bool
    urls: list[str]


@dataclass(frozen=True)
class Withdrawn:
    """What was withdrawn: the leaves, and the digests whose bytes are not deleted yet because a store did not answer."""

    leaves: list[int]
    left: list[str]


class Withdrawals:
    """The operator's withdrawals. Safe for concurrent use."""

    def __init__(
        self,
        base_url: str,
        database: str,
        uploads: Uploads,
        operator: Operator,
        sequencer: Sequencer,
        clock: Callable[[], datetime],
    ) -> None:
        self._base_url = base_url
        self._database = database
        self._uploads = uploads
        self._operator = operator
        self._sequencer = sequencer
        self._clock = clock

    async def plan(self, target: str) -> Takedown:
        """Return what a withdrawal of a URI (with or without its version), a DID or a digest takes. Changes nothing.

        Raises `Malformed` for another text, `NotFound` (`blob.unknown`) when nothing of it is served, and `Refused`
        (`withdrawal.needed`).
        """
        # Not from the pool, whose statements have a limit: the tables have no index for each of these questions.
        async with connect(self._database) as connection:
            if "://" in target or target.startswith("did:"):
                prefix = _prefix(target)
                versions = await connection.fetch(_VERSIONS, target, prefix, b"")
                rows = await connection.fetch(_BLOBS, target, prefix, MAX_BLOBS + 1)
            else:
                digest = await _digest(connection, target)
                versions = await connection.fetch(_VERSIONS, "", _NO_URI, digest)
                rows = await connection.fetch(_DIGEST, digest)
        blobs = [ServedBlob(**row) for row in rows[:MAX_BLOBS]]
        if not blobs:
            raise NotFound(
                RegistryBlobCode.UNKNOWN,
                f"Nothing that is served here is of {target}.",
                fix="It may be withdrawn already, or be in leaves alone, which cannot be withdrawn.",
            )
        names = ("uri", "title", "summary", "tags", "publisher")
        listed = [ShownVersion(**{name: row[name] for name in names}) for row in versions[:MAX_BLOBS]]
        return Takedown(target, listed, blobs, len(rows) > MAX_BLOBS, self._urls(listed, blobs))

    async def withdraw(self, digests: Sequence[str], reason: Reason) -> Withdrawn:
        """Log a withdrawal of each of these blobs, and delete their bytes. A blob that was withdrawn before gets no second leaf.

        Raises the errors of admission; those before it in `digests` are withdrawn then, and a repeated call goes on.
        """
        leaves: list[int] = []
        async with connect(self._database) as connection:
            served = await connection.fetch(
                "select encode(sha256, 'hex') as sha256 from blobs where sha256 = any($1::bytea[]) and withdrawn is null",
                [bytes.fromhex(parse_digest(digest)) for digest in digests],
            )
        wheels = [row["sha256"] for row in served]
        for begin in range(0, len(wheels), MAX_BATCH):
            leaves += await self._log(wheels[begin : begin + MAX_BATCH], reason)
        return Withdrawn(leaves, await self._left(digests))

    def _urls(self, versions: Sequence[ShownVersion], blobs: Sequence[ServedBlob]) -> list[str]:
        paths = [f"/blobs/sha256/{blob.sha256}" for blob in blobs]
        uris = {version.uri for version in versions} | {blob.of for blob in blobs if blob.of and not blob.of.startswith("did:")}
        stems = [parse_protocol_uri(uri).path for uri in sorted(uris)]
        paths += [f"{stem}{form}" for stem in stems for form in ("", ".json", ".md", ".bundle")]
        paths += sorted({stem.rpartition("/")[0] for stem in stems})
        return [f"{self._base_url}{path}" for path in paths]

    async def _log(self, digests: Iterable[str], reason: Reason) -> list[int]:
        issued = self._clock()
        bodies = [Withdrawal(digest, reason) for digest in digests]
        # In a thread: a signature for each of them.
        signed = await asyncio.to_thread(lambda: [self._operator.state(body, issued=issued) for body in bodies])
        outcomes = await self._sequencer.submit([Proposal(each.statement.leaf, each) for each in signed])
        leaves = []
        for outcome in outcomes:
            if isinstance(outcome, TreatyError):
                raise outcome
            leaves.append(outcome.index)
        return leaves

    async def _left(self, digests: Sequence[str]) -> list[str]:
        """Delete the bytes; return the digests that a store did not delete. The next sweep tries again."""
        # What is left is shown below.
        with suppress(TreatyError):
            await self._uploads.expire()
        async with connect(self._database) as connection:
            rows = await connection.fetch(
                "select encode(sha256, 'hex') as sha256 from pending_blobs where sha256 = any($1::bytea[]) order by sha256",
                [*map(bytes.fromhex, digests)],
            )
        return [row["sha256"] for row in rows]


async def _digest(connection: Connection, text: str) -> bytes:
    try:
        sha256 = parse_digest(text)
    except Malformed as error:
        fix = "Name the URI of a protocol (https://…), a DID, or the SHA-256 of a blob."
        raise Malformed(error.code, error.message, fix=fix) from error
    if await connection.fetchval("select true from facts where key = $1", needed_key(sha256)):
        raise Refused(
            WithdrawalCode.NEEDED,
            f"Decisions of this log need the suffix list {sha256} to be recomputed.",
            fix="It is a public list without personal data; nothing else here can be withdrawn in its place.",
        )
    return bytes.fromhex(sha256)


def _prefix(target: str) -> str:
    """Return the beginning of the URIs that a name stands for. Raises `Malformed` unless it is a DID or the URI of a protocol."""
    if target.startswith("did:"):
        parse_did(target)
        return _NO_URI
    if target.count("/") == _SLASHES:
        parse_protocol_uri(f"{target}/1")  # all versions of the name; any version makes the URI complete
        return f"{target}/"
    parse_protocol_uri(target)
    return _NO_URI
