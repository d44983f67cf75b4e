"""Project reports, ballots and decisions for readers. Decisions are computed from the log, never from these tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from treaty_consensus.election.states import FORMER
from treaty_consensus.kinds import Body, Decision, Report, Withdrawal

from ..log.entry import Entry
from .columns import insert, statement_id, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection

_FORGET_USE = """
update protocols set pairs = 0
where topic = $1 and document in (select document from elections where topic = $1) and pairs > 0
"""
# A later publication of the same document waits for the next decision, however leaves are batched.
_COUNT_USE = """
update protocols set pairs = used.pairs from unnest($3::bytea[], $4::bigint[]) as used (document, pairs)
where protocols.topic = $1 and protocols.index < $2 and protocols.document = used.document
"""
_WITHDRAW_USE = """
update protocols set pairs = 0 where pairs > 0 and topic in (
  select topic from decisions d where transcript = any($1)
  and not exists (select from decisions later where later.topic = d.topic and later.index > d.index)
)
"""


class _Candidate(msgspec.Struct):
    """The part of a candidate of a transcript that a search orders by."""

    hash: str
    pairs: int = 0


class _Transcript(msgspec.Struct):
    candidates: list[_Candidate]


async def _reports(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    agreed: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        body = cast(Report, statement_of(entry).body)
        agreed[body.topic, body.document] += body.outcome == "agreed"
    await insert(
        connection,
        "insert into tallies select * from unnest($1::text[], $2::bytea[], $3::bigint[]) "
        "on conflict (topic, document) do update set agreed = tallies.agreed + excluded.agreed",
        [(topic, bytes.fromhex(document), number) for (topic, document), number in agreed.items()],
    )


async def _decisions(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Decision, statement_of(entry).body)
        transcript, parameters = bytes.fromhex(body.transcript.sha256), bytes.fromhex(body.parameters)
        consensus = bytes.fromhex(body.consensus) if body.consensus else None
        rows.append((body.topic, entry.index, statement_id(entry), body.epoch, transcript, parameters, consensus))
    await insert(
        connection,
        "insert into decisions select * from unnest"
        "($1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bytea[], $7::bytea[])",
        rows,
    )
    for entry in entries:  # one by one, because each decision of a topic starts from the state after the one before
        body = cast(Decision, statement_of(entry).body)
        await connection.execute(_FORGET_USE, body.topic)
        await _elections(connection, body, statement_id(entry))
        await _use(connection, entry, body)


async def _elections(connection: AnyConnection, body: Decision, decision: bytes) -> None:
    """Update the states of a topic's documents from a decision.

    A decision names its candidates and the documents that stopped being candidates. A former consensus keeps its state until it
    is named again.
    """
    # Documents that this decision no longer names are no candidates any more. Only former consensuses keep their
    # state.
    await connection.execute("delete from elections where topic = $1 and state <> all($2)", body.topic, sorted(FORMER))
    states = [(body.topic, bytes.fromhex(document), state, body.epoch, decision) for document, state in body.states]
    await connection.execute(
        "delete from elections where topic = $1 and document = any($2)", body.topic, [document for _, document, *_ in states]
    )
    await insert(
        connection,
        "insert into elections select * from unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[], $5::bytea[])",
        [row for row in states if row[2] != "published"],
    )


async def _use(connection: AnyConnection, entry: Entry, body: Decision) -> None:
    """Write how many pairs proved the use of each candidate, as the transcript says. A withdrawn transcript says nothing."""
    transcript = await entry.blobs.get(body.transcript.sha256)
    try:
        candidates = msgspec.json.decode(transcript, type=_Transcript).candidates if transcript else []
    except msgspec.DecodeError:  # of another release
        candidates = []
    named = {document for document, state in body.states if state != "published"}
    used = [candidate for candidate in candidates if candidate.hash in named and candidate.pairs > 0]
    documents, pairs = [bytes.fromhex(candidate.hash) for candidate in used], [candidate.pairs for candidate in used]
    if used:
        await connection.execute(_COUNT_USE, body.topic, entry.index, documents, pairs)


async def _withdrawals(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    digests = [bytes.fromhex(cast(Withdrawal, statement_of(entry).body).sha256) for entry in entries]
    await connection.execute(_WITHDRAW_USE, digests)


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {
    Report: _reports,
    Decision: _decisions,
    Withdrawal: _withdrawals,
}
