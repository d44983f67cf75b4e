"""Query the catalogue: published protocols, their other names, and their publishers.

Every method runs one or two statements on a pooled connection. Concurrent look-ups of single values share their queries
(`lookup`). Rows are as new as the newest commit, which may be newer than the caller's head. Proofs are made in `bundles`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from packaging.version import Version

from treaty_consensus import canonical
from treaty_consensus.codes import ProtocolCode
from treaty_consensus.did import Did, did_key_id, encode_multikey, parse_did, public_key_of
from treaty_consensus.errors import Malformed, NotFound, TooLarge
from treaty_consensus.protocol import MAX_URI, is_name, is_verified_alias, parse_namespace, parse_protocol_uri

from ..codes import RegistryIdentityCode
from .lookup import Lookup
from .resources import (
    CardView,
    Election,
    HandlerView,
    HashMatches,
    IdentityView,
    Match,
    Record,
    Resolution,
    SearchResult,
    Summary,
    Versions,
)

if TYPE_CHECKING:
    from asyncpg import Pool
    from asyncpg import Record as Row

    from ..storage.postgres import AnyConnection

# Any agent can attach handlers, publish a known document again, or claim an alias. These bounds keep answers and
# bundles readable.
MAX_HANDLERS = 64
MAX_MATCHES = 100
MAX_VERSIONS = 1_000
MAX_DERIVED = 32
"""Protocols that a record names as derived from it, as in the migration 0015: the oldest, which later ones cannot crowd out."""

ELECTED = "left join elections e on (e.topic, e.document) = (p.topic, p.document)"
SUMMARY = (
    "select p.uri, p.topic, p.title, p.summary, p.tags, p.document, p.publisher, p.state, p.index, p.pairs, e.state as elected "
    "from protocols p " + ELECTED
)
VERSIONS = f"{SUMMARY} where p.namespace = $1 and p.name = $2 order by p.index desc limit $3"
IDENTITY = """
select did, tenure, keys, encode(statement, 'hex') as statement, index from identities where did = $1 order by index desc limit 1
"""
"""The row of `IdentityView` of a DID."""
_RECORD = f"select p.*, e.state as elected, e.epoch, e.decision from protocols p {ELECTED} where p.uri = any($1)"  # noqa: S608
# The publisher's own handlers have places of their own, newest first. Others' come oldest first, so new ones cannot
# crowd out those that agents already use. Each half is a bounded index scan.
_HANDLERS = """
select h.*, h.publisher = p.publisher as own from protocols p cross join lateral (
  (select * from handlers where uri = p.uri and publisher = p.publisher and index < $2 order by index desc limit $3)
  union all
  (select * from handlers where uri = p.uri and publisher <> p.publisher and index < $2 order by index limit $3)
) h where p.uri = any($1)
"""
# The index of bases gives them in this order.
_DERIVED = """
select d.base, d.uri from unnest($1::text[]) as of (base)
cross join lateral (select base, uri from protocols where base = of.base order by index limit $2) d
"""
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_SHA1 = re.compile(r"[0-9a-f]{40}")


class StoredRecord(NamedTuple):
    """A version's record as it is served, and the hash of its document in hexadecimal."""

    document: str
    json: bytes


class Catalogue:
    """Reads the catalogue. Safe for concurrent use on one event loop; raises `Unavailable` when PostgreSQL is down."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._records = Lookup(pool, _stored_records)

    async def record(self, uri: str) -> StoredRecord:
        """Return a version's record by its URI. Raises `NotFound`, or `Malformed` when it is not a protocol's URI."""
        record = await self._records.get(uri)
        if record is None:
            # Only for a URI that was not found: a stored one was parsed when it was published.
            parse_protocol_uri(uri)
            raise unknown_protocol(uri)
        return record

    async def versions(self, namespace: str, name: str) -> Versions:
        """Return all versions of a protocol. Raises `NotFound`, or `Malformed` for an invalid name."""
        parse_namespace(namespace)
        if not is_name(name):
            raise Malformed(ProtocolCode.NAME, "A protocol's name is lower-case letters, digits and '-'.")
        rows = await self._pool.fetch(VERSIONS, namespace, name, MAX_VERSIONS)
        if not rows:
            raise NotFound(ProtocolCode.UNKNOWN, f"{namespace} has not published a protocol named {name} here.")
        return Versions(namespace, name, in_order([summary(row) for row in rows]))

    async def by_hash(self, digest: str) -> HashMatches:
        """Return the protocols with this document, in the order of publication. Raises `NotFound`."""
        rows = await self._pool.fetch(
            f"{SUMMARY} where p.document = $1 order by p.index limit $2", bytes.fromhex(digest), MAX_MATCHES
        )
        if not rows:
            raise NotFound(ProtocolCode.UNKNOWN, f"No protocol here has the hash {digest}.")
        return HashMatches(digest, [summary(row) for row in rows])

    async def resolve(self, name: str) -> Resolution:
        """Return every protocol that `name` may mean. Raises `Malformed`.

        `name` is a protocol's URI, a SHA-256 (alone or after `sha256:`), Agora's SHA-1 in hexadecimal or base64, or an alias
        that its publisher claims (a canonical URI elsewhere, an A2A extension URI, `anp:protocol:…`, a purl). An alias is
        verified only when its host is the publisher's domain.
        """
        if not 0 < len(name) <= MAX_URI:
            raise Malformed(ProtocolCode.NAME, f"A name to resolve has 1 to {MAX_URI} characters.")
        sha256 = _SHA256.fullmatch(name)
        rows = await self._pool.fetch(
            """
            select uri, document, publisher, index, 'uri' as by from protocols where uri = $1
            union all select uri, document, publisher, index, 'hash' from protocols where document = $2
            union all select uri, document, publisher, index, 'agora' from protocols where agora = $3
            union all select uri, document, publisher, index, 'alias' from protocols where aliases @> array[$1]
            order by index limit $4
            """,
            name,
            bytes.fromhex(sha256[1]) if sha256 else None,
            _agora_digest(name),
            MAX_MATCHES,
        )
        return Resolution(name, [_match(name, row) for row in rows])

    async def identity(self, did: str) -> IdentityView:
        """Return the newest identity of a DID. Raises `NotFound`, or `Malformed` when `did` is not a DID."""
        parsed = parse_did(did)
        if parsed.method == "key":
            return key_identity(parsed)
        row = await self._pool.fetchrow(IDENTITY, did)
        if row is None:
            raise unknown_did(did)
        return IdentityView(**{**row, "keys": msgspec.json.decode(row["keys"])}, validated=parsed.validated_by)


def key_identity(did: Did) -> IdentityView:
    """Return the identity of a did:key, which is its own key."""
    key = public_key_of(did)
    return IdentityView(did.text, 1, {did_key_id(key): encode_multikey(key)})


def unknown_protocol(uri: str) -> NotFound:
    """Return the error about a version that is not published."""
    return NotFound(ProtocolCode.UNKNOWN, f"{uri} is not published here.", fix="Search: treaty search WORDS")


def unknown_did(did: str) -> NotFound:
    """Return the error about a DID without an identity."""
    return NotFound(
        RegistryIdentityCode.UNKNOWN,
        f"This log does not know {did}.",
        fix="A registry learns of a DID when it receives the first statement that the DID signed.",
    )


async def _stored_records(connection: AnyConnection, uris: list[str]) -> Mapping[str, StoredRecord]:
    rows = await connection.fetch("select uri, document, record from records where uri = any($1)", uris)
    return {uri: StoredRecord(document.hex(), record) for uri, document, record in rows}


async def fetch_records(connection: AnyConnection, uris: list[str]) -> Mapping[str, Record]:
    """Return the records of the published ones among `uris`, made from the tables."""
    handlers: defaultdict[str, list[HandlerView]] = defaultdict(list)
    derived: defaultdict[str, list[str]] = defaultdict(list)
    rows = await connection.fetch(_RECORD, uris)
    for base, uri in await connection.fetch(_DERIVED, uris, MAX_DERIVED):
        derived[base].append(uri)
    for row in await fetch_handlers(connection, uris, canonical.MAX_INTEGER):
        handlers[row["uri"]].append(_handler(row))
    return {row["uri"]: _record(row, handlers[row["uri"]], derived[row["uri"]]) for row in rows}


async def fetch_handlers(connection: AnyConnection, uris: Sequence[str], size: int) -> list[Row]:
    """Return the rows of the handlers of `uris` among the first `size` leaves, in the order and number of `Record.handlers`."""
    rows = await connection.fetch(_HANDLERS, uris, size, MAX_HANDLERS)
    # The same order in the record and in the bundle, so that both name the same 64 handlers.
    rows.sort(key=lambda row: (not row["own"], -row["index"] if row["own"] else row["index"]))
    places: Counter[str] = Counter()
    handlers = []
    for row in rows:
        places[row["uri"]] += 1
        if places[row["uri"]] <= MAX_HANDLERS:
            handlers.append(row)
    return handlers


def _record(row: Row, handlers: list[HandlerView], derived: list[str]) -> Record:
    elected = Election(row["elected"], row["epoch"], row["decision"].hex()) if row["elected"] else None
    return Record(
        uri=row["uri"],
        namespace=row["namespace"],
        name=row["name"],
        version=row["version"],
        topic=row["topic"],
        origin=row["origin"],
        hash=row["document"].hex(),
        size=row["size"],
        publisher=row["publisher"],
        statement=row["statement"].hex(),
        index=row["index"],
        card=CardView(row["title"], row["summary"], row["tags"], row["licence"]),
        aliases=row["aliases"],
        status=row["state"],
        handlers=handlers,
        election=elected,
        successor=row["successor"],
        base=row["base"],
        derived=derived,
        validated=parse_did(row["publisher"]).validated_by,
    )


def _handler(row: Row) -> HandlerView:
    return HandlerView(
        by=row["publisher"],
        filename=row["filename"],
        wheel=row["wheel"].hex(),
        size=row["size"],
        entry_point=row["entry_point"],
        bundle=row["bundle"].hex(),
        statement=row["statement"].hex(),
        index=row["index"],
        status=row["state"],
    )


def summary(row: Row) -> Summary:
    """Return the summary in a row of `SUMMARY`."""
    return Summary(
        uri=row["uri"],
        topic=row["topic"],
        title=row["title"],
        summary=row["summary"],
        tags=row["tags"],
        hash=row["document"].hex(),
        publisher=row["publisher"],
        status=row["state"],
        election=row["elected"],
        pairs=row["pairs"],
    )


def result(row: Row, score: int | None) -> SearchResult:
    """Return the result of a search in a row of `SUMMARY`."""
    return SearchResult(**msgspec.structs.asdict(summary(row)), score=score)


def in_order(versions: Iterable[Summary]) -> list[Summary]:
    """Return the versions of a protocol, newest first. PostgreSQL does not know the order of PEP 440."""
    return sorted(versions, key=lambda version: Version(parse_protocol_uri(version.uri).version), reverse=True)


def _match(name: str, row: Row) -> Match:
    by = row["by"]
    # A SHA-1 is never verified, because collisions can be made. An alias is only a claim unless its host is the
    # publisher's domain.
    verified = by in ("uri", "hash") or (by == "alias" and is_verified_alias(name, parse_did(row["publisher"])))
    return Match(row["uri"], row["document"].hex(), by, verified, row["publisher"])


def _agora_digest(name: str) -> bytes | None:
    """Return the SHA-1 that `name` spells in hexadecimal (Agora's specification) or base64 (its reference client), or None."""
    if _SHA1.fullmatch(name):
        return bytes.fromhex(name)
    try:
        digest = canonical.b64decode(name, limit=20)
    except (Malformed, TooLarge):
        return None
    return digest if len(digest) == 20 else None
