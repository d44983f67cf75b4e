"""Project the electoral rolls: weights and standings at the end of the newest epoch, and every credit.

A roll is a blob that the decisions of an epoch name (`treaty_consensus.election.roll`). It is read at the first of them. A
withdrawn or damaged roll counts as empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, cast

import msgspec

from treaty_consensus.canonical import hex_digest
from treaty_consensus.kinds import Body, Decision, Withdrawal

from ..log.entry import Entry
from .columns import insert, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection


class _Credit(msgspec.Struct, rename={"corroborator": "with"}):
    principal: str
    amount: str
    reason: str
    topic: str
    document: str
    corroborator: str
    index: int
    shared: int
    earlier: int


class _Reach(msgspec.Struct):
    able: str
    pairs: str


class _Roll(msgspec.Struct):
    principals: list[tuple[str, str, str, str, int, str]]
    credits: list[_Credit]
    reach: _Reach | None = None


_decoder = msgspec.json.Decoder(_Roll)


async def _decisions(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    newest = await connection.fetchval("select coalesce(max(epoch), -1) from rolls")
    for entry in entries:
        body = cast(Decision, statement_of(entry).body)
        # All decisions of an epoch name the same roll, so it is read once.
        if body.epoch > newest:
            newest = body.epoch
            await _write(connection, entry, body)


async def _write(connection: AnyConnection, entry: Entry, body: Decision) -> None:
    digest, parameters = bytes.fromhex(body.roll.sha256), bytes.fromhex(body.parameters)
    # The table has the newest roll only: weights and standings of earlier epochs are in their blobs.
    await connection.execute("delete from principals")
    data = await entry.blobs.get(body.roll.sha256)
    # A damaged blob must not stop the log. The roll counts as empty, and an audit reports the blob.
    if data is not None and await asyncio.to_thread(hex_digest, data) != body.roll.sha256:
        data = None
    roll = _Roll([], []) if data is None else _decoder.decode(data)
    reach = (None, None) if roll.reach is None else (Decimal(roll.reach.able), Decimal(roll.reach.pairs))
    named = body.epoch, entry.index, digest, parameters
    await connection.execute("insert into rolls values ($1, $2, $3, $4, $5, $6)", *named, *reach)
    await insert(
        connection,
        "insert into principals select * from unnest"
        "($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])",
        [
            (principal, cluster, int(trust), int(weight), age, int(standing))
            for principal, cluster, trust, weight, age, standing in roll.principals
        ],
    )
    await insert(
        connection,
        "insert into credits select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], "
        "$7::bytea[], $8::text[], $9::bigint[], $10::bigint[], $11::bigint[])",
        [(body.epoch, place, *_columns(credit)) for place, credit in enumerate(roll.credits)],
    )


def _columns(credit: _Credit) -> tuple[object, ...]:
    about = credit.reason, credit.topic, bytes.fromhex(credit.document), credit.corroborator
    return credit.principal, int(credit.amount), *about, credit.index, credit.shared, credit.earlier


async def _withdrawals(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    digests = [bytes.fromhex(cast(Withdrawal, statement_of(entry).body).sha256) for entry in entries]
    await connection.execute("delete from credits using rolls where credits.epoch = rolls.epoch and roll = any($1)", digests)
    await connection.execute("update rolls set able = null, pairs = null where roll = any($1)", digests)
    newest = "(select roll from rolls order by epoch desc limit 1)"
    # Only if the withdrawn roll is the one that the table shows.
    await connection.execute(f"delete from principals where {newest} = any($1)", digests)  # noqa: S608 (words of ours)


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {
    Decision: _decisions,
    Withdrawal: _withdrawals,
}
