"""Project the catalogue: protocols, handlers, their statuses, and withdrawals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.kinds import Body, Handler, Publish, Status, Withdrawal
from treaty_consensus.protocol import Card, ProtocolUri, agora_digest, parse_card, parse_protocol_uri

from ..catalogue import search
from ..catalogue.handler_facts import HandlerFacts, read_facts
from ..log.entry import Entry
from .columns import insert, statement_id, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection

_NO_CARD = Card("", "")


# Under which words a protocol is found; the migration 0005 says the same.
_FOUND_UNDER = """
select term.lexeme as word, ascii('D') - ascii((select min(weight) from unnest(term.weights) as weight)) as place, protocols.index
from protocols cross join lateral unnest(protocols.terms) as term
where protocols.index = any($1) and term.positions[1] <= 1024
union all
select '/' || array_to_string((string_to_array(protocols.topic, '/'))[1:depth], '/'), 0, protocols.index
from protocols cross join generate_series(0, array_length(string_to_array(protocols.topic, '/'), 1)) as depth
where protocols.index = any($1)
"""
_POST = f"""
with added as (insert into postings {_FOUND_UNDER} returning word)
insert into words select word, count(*) from added group by word
on conflict (word) do update set uses = words.uses + excluded.uses
"""  # noqa: S608 (constants)
_COUNT = """
insert into topics select topic, count(*) from unnest($1::text[]) as published (topic) group by topic
on conflict (topic) do update set protocols = topics.protocols + excluded.protocols
"""
_UNPOST = f"""
with found as ({_FOUND_UNDER}), removed as (
  delete from postings p using found
  where (p.word, p.place, p.index) = (found.word, found.place, found.index) returning p.word
)
update words set uses = words.uses - removed.uses
from (select word, count(*) as uses from removed group by word) removed where words.word = removed.word
"""  # noqa: S608 (constants)


async def _protocols(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    await insert(
        connection,
        """
        insert into protocols
          (uri, namespace, name, version, topic, origin, document, size, card, base, aliases, publisher, statement, index,
           title, summary, tags, licence, agora, terms)
        select uri, namespace, name, version, topic, origin, document, size, card, base, string_to_array(aliases, ' '), publisher,
               statement, index, title, summary, string_to_array(tags, ' '), licence, agora, terms::tsvector
        from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::bigint[],
                    $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bytea[], $14::bigint[], $15::text[], $16::text[],
                    $17::text[], $18::text[], $19::bytea[], $20::text[])
          as entry (uri, namespace, name, version, topic, origin, document, size, card, base, aliases, publisher, statement,
                    index, title, summary, tags, licence, agora, terms)
        """,
        await asyncio.gather(*map(_protocol_row, entries)),
    )
    await connection.execute(_POST, [entry.index for entry in entries])
    await connection.execute(_COUNT, [cast(Publish, statement_of(entry).body).topic for entry in entries])


async def _protocol_row(entry: Entry) -> tuple[object, ...]:
    body = cast(Publish, statement_of(entry).body)
    uri = parse_protocol_uri(body.uri)
    # Both blobs exist when the statement is logged. A rebuild after a withdrawal reads None.
    card_bytes, document = await asyncio.gather(entry.blobs.get(body.card.sha256), entry.blobs.get(body.document.sha256))
    card = _card(card_bytes)
    return (
        body.uri,
        uri.namespace,
        uri.name,
        uri.version,
        body.topic,
        body.origin,
        bytes.fromhex(body.document.sha256),
        body.document.size,
        bytes.fromhex(body.card.sha256),
        body.base.uri if body.base else None,
        " ".join(body.aliases),  # an alias has no spaces, nor has a tag
        statement_of(entry).author.text,
        statement_id(entry),
        entry.index,
        card.title,
        card.summary,
        " ".join(card.tags),
        card.licence,
        None if document is None else agora_digest(document),
        _terms(uri, body.topic, card),
    )


async def _handlers(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Handler, statement_of(entry).body)
        wheel, bundle = bytes.fromhex(body.wheel.sha256), bytes.fromhex(body.bundle.sha256)
        author = statement_of(entry).author.text
        facts = entry.handler or await _read_facts(entry, body)
        names = body.uri, author, wheel, body.filename, body.wheel.size, body.entry_point
        package = facts.package
        metadata = bytes.fromhex(package.metadata) if package else None
        said = facts.signer, facts.coverage, metadata, package.requires_python if package else None
        rows.append((*names, bundle, statement_id(entry), entry.index, *said))
    await insert(
        connection,
        # Admission may have read bytes that were withdrawn before the statement was logged. A rebuild cannot read them.
        """
        with gone as (select sha256 from blobs where sha256 = any($3::bytea[] || $7::bytea[]) and withdrawn is not null)
        insert into handlers
          (uri, publisher, wheel, filename, size, entry_point, bundle, statement, index, signer, coverage, metadata,
           requires_python)
        select uri, publisher, wheel, filename, size, entry_point, bundle, statement, index,
          case when bundle in (select sha256 from gone) then null else signer end,
          case when wheel in (select sha256 from gone) then null else coverage end,
          case when wheel in (select sha256 from gone) then null else metadata end,
          case when wheel in (select sha256 from gone) then null else requires_python end
        from unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::bigint[], $6::text[], $7::bytea[], $8::bytea[],
                    $9::bigint[], $10::text[], $11::text[], $12::bytea[], $13::text[])
          as entry (uri, publisher, wheel, filename, size, entry_point, bundle, statement, index, signer, coverage, metadata,
                    requires_python)
        """,
        rows,
    )


async def _read_facts(entry: Entry, body: Handler) -> HandlerFacts:
    """Return the facts of a handler that admission did not read: in a rebuild."""
    wheel, bundle = await asyncio.gather(entry.blobs.get(body.wheel.sha256), entry.blobs.get(body.bundle.sha256))
    # In a thread, because a wheel has megabytes.
    return await asyncio.to_thread(read_facts, body, wheel, bundle)


async def _statuses(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Status, statement_of(entry).body)
        wheel = bytes.fromhex(body.wheel) if body.wheel else None
        rows.append((entry.index, body.uri, statement_of(entry).author.text, wheel, body.state, body.successor))
    await insert(
        connection,
        "insert into statuses select * from unnest($1::bigint[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[])",
        rows,
    )
    first = entries[0].index  # the last of several statuses in one batch is in force
    await connection.execute(
        """
        update protocols set state = newest.state, successor = newest.successor
        from (select distinct on (uri) uri, state, successor from statuses where index >= $1 and wheel is null
              order by uri, index desc) newest
        where protocols.uri = newest.uri
        """,
        first,
    )
    await connection.execute(
        """
        update handlers set state = newest.state
        from (select distinct on (uri, publisher, wheel) uri, publisher, wheel, state from statuses
              where index >= $1 and wheel is not null order by uri, publisher, wheel, index desc) newest
        where (handlers.uri, handlers.publisher, handlers.wheel) = (newest.uri, newest.publisher, newest.wheel)
        """,
        first,
    )


async def _withdrawals(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Withdrawal, statement_of(entry).body)
        rows.append((entry.index, bytes.fromhex(body.sha256), body.reason))
    await insert(connection, "insert into withdrawals select * from unnest($1::bigint[], $2::bytea[], $3::text[])", rows)
    digests = [row[1] for row in rows]
    # The SHA-1 came from the withdrawn bytes, so it goes with them.
    await connection.execute("update protocols set agora = null where document = any($1)", digests)
    # So do these, which a rebuild could not read any more.
    await connection.execute(
        "update handlers set coverage = null, metadata = null, requires_python = null where wheel = any($1)", digests
    )
    await connection.execute("update handlers set signer = null where bundle = any($1)", digests)
    cleared = await connection.fetch("select uri, topic, index from protocols where card = any($1)", digests)
    indexes = [row["index"] for row in cleared]
    # Before the terms change: the postings to remove are found by the old terms.
    await connection.execute(_UNPOST, indexes)
    await insert(
        connection,
        "update protocols set title = '', summary = '', tags = '{}', licence = '', terms = cleared.terms::tsvector "
        "from unnest($1::text[], $2::text[]) as cleared (uri, terms) where protocols.uri = cleared.uri",
        [(row["uri"], _terms(parse_protocol_uri(row["uri"]), row["topic"], _NO_CARD)) for row in cleared],
    )
    await connection.execute(_POST, indexes)
    # Otherwise a withdrawn word would still be offered as a completion.
    await connection.execute("delete from words where uses = 0")


def _card(data: bytes | None) -> Card:
    """Return the card of a publish. It is empty when the card was withdrawn or is invalid, which harms only its publisher."""
    try:
        return _NO_CARD if data is None else parse_card(data)
    except (Malformed, TooLarge):
        return _NO_CARD


def _terms(uri: ProtocolUri, topic: str, card: Card) -> str:
    return search.vector(
        [
            ("A", card.title),
            ("A", uri.name),
            ("B", " ".join(card.tags)),
            ("B", topic),
            ("C", card.summary),
            ("D", uri.namespace),
        ]
    )


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {
    Publish: _protocols,
    Handler: _handlers,
    Status: _statuses,
    Withdrawal: _withdrawals,
}
