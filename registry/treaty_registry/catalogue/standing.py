"""Query the speakers of a protocol, and the standing and credits of a DID.

The tables are `projection.speakers` and `projection.rolls`. In a development electorate a DID speaks for the principal that it
is itself. In an open electorate it speaks for the domain whose root DID it is, or for that of its first grant in force.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from treaty_client.registries.replies import Speaker, Speakers
from treaty_consensus import statement
from treaty_consensus.canonical import parse_decimal
from treaty_consensus.did import parse_did
from treaty_consensus.election.arithmetic import ONE, decay, part
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import Parameters
from treaty_consensus.protocol import is_topic

from ..codes import HttpCode
from ..storage.stored_leaf import restored
from .resources import CreditView, StandingView

if TYPE_CHECKING:
    from asyncpg import Pool
    from asyncpg import Record as Row

Fields: TypeAlias = "Row | Mapping[str, Any]"
"""A row, from PostgreSQL or from JSON (`gathering`)."""
MAX_SPEAKERS = 100
# Ranking needs all rows of a document or topic. Their number is not bounded, so only the newest are ranked.
MAX_RANKED = 10_000
MAX_CREDITS = 500
_MAX_PLACE = 2**63 - 1
_FADED = 8  # horizons after which a credit counts no more (`treaty_consensus.election.credit`)

# The order of `place` is the order of the election: the DID itself, then the domain whose root DID it is, then the
# first grant that is in force.
NAMED = """
select named.principal, p.cluster, p.weight, p.standing from (
  select {did}::text as principal, 0 as place
  union all select substring({did}::text from '^did:(?:wba|web):([^:%]+)$'), 1
  union all select namespace, 2 + index from grants where grantee = {did} and ended is null
) named left join principals p using (principal)
"""
"""The names that the DID `did`, an SQL expression, may speak for, and their amounts in the newest roll."""
ROLL = "select epoch, encode(roll, 'hex') as roll, encode(parameters, 'hex') as parameters from rolls order by epoch desc limit 1"
"""The newest roll."""
PRINCIPAL = f"""
{NAMED.format(did="$1")}
where p.principal is not null or exists (select from credits c where c.principal = named.principal)
order by p.principal is null, place limit 1
"""
"""The name of the principal of a DID, and its amounts in the newest roll."""
ENTRY = f"""
{NAMED.format(did="$1").replace("p.cluster, p.weight, p.standing", "p.cluster, p.trust, p.weight, p.age")}
where p.principal is not null order by place limit 1
"""
"""The rows of `Principal`: of a DID, in the newest roll."""
_SPEAKERS = """
select did, topic, encode(document, 'hex') as hash, principal, standing::text as standing, reports, epoch, index from (
  select s.*, p.principal, coalesce(p.standing, 0) as standing
  from (select * from speakers where {by} = $1 order by index desc limit $6) s
  left join lateral ({named} where p.principal is not null order by place limit 1) p on true
) ranked where $2::bigint is null or (standing, index, did) < ($2, $3::bigint, $4::text)
order by ranked.standing desc, ranked.index desc, ranked.did desc limit $5
"""
_CREDIT = """
select c.epoch, c.place, c.amount, c.reason, c.topic, encode(c.document, 'hex') as hash, c.corroborator, c.index, c.shared,
  c.earlier, encode(r.parameters, 'hex') as parameters
from credits c join rolls r using (epoch)
"""
_CREDITS = f"""{_CREDIT}
where c.principal = $1 and c.epoch > $2 and ($3::bigint is null or (c.epoch, c.place) < ($3, $4::bigint))
order by c.epoch desc, c.place desc limit $5
"""
CREDITS = f"""{_CREDIT}
where c.principal = (select principal from ({PRINCIPAL}) found) order by c.epoch desc, c.place desc limit $2
"""  # noqa: S608 (constants)
"""The newest credits of the principal of a DID, at most so many."""
_STATED = "select statement, leaf from leaves where statement = any($1)"


class Principal(msgspec.Struct, frozen=True, rename={"name": "principal"}):
    """A principal in the newest roll. Trust and weight are in units of 2^-32."""

    name: str
    cluster: str
    trust: int
    weight: int
    age: int


class StandingQueries:
    """Reads speakers and credits. Safe for concurrent use on one event loop; raises `Unavailable` when PostgreSQL is down."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # Never emptied: only the operator can log parameters, and each is small.
        self._parameters: dict[str, Parameters] = {}

    async def speakers(self, document: str | None, topic: str | None, cursor: str | None) -> Speakers:
        """Return the reporters of a document (64 hexadecimal digits), or of all documents in a topic.

        Of the `MAX_RANKED` newest, those with more standing come first, then those with newer reports. `cursor`: the `next` of
        the previous page. Raises `Malformed`.
        """
        if (document is None) == (topic is None) or (topic is not None and not is_topic(topic)):
            raise Malformed(HttpCode.REQUEST, "Ask for the speakers of one `hash`, or of one `topic`.")
        at = (None, None, None) if cursor is None else _parse_place(cursor)
        query, subject = (speakers_by("topic"), topic) if document is None else (speakers_by("document"), bytes.fromhex(document))
        rows = await self._pool.fetch(query, subject, *at, MAX_SPEAKERS + 1, MAX_RANKED)
        page = [Speaker(**row) for row in rows[:MAX_SPEAKERS]]
        last = page[-1] if len(rows) > MAX_SPEAKERS else None
        return Speakers(page, f"{last.standing}-{last.index}-{last.did}" if last else None)

    async def standing(self, did: str, cursor: str | None) -> StandingView:
        """Return the standing of the principal of a DID, and its credits that still count, newest first.

        `cursor`: the `next` of the previous page. Raises `Malformed`.
        """
        parse_did(did)
        at = (None, None) if cursor is None else _parse_pair(cursor)
        roll = await self._pool.fetchrow(ROLL)
        row = await self._pool.fetchrow(PRINCIPAL, did)
        rows: Sequence[Fields] = ()
        if roll is not None and row is not None:
            parameters = await self.parameters(roll["parameters"])
            since = roll["epoch"] - _FADED * parameters.horizon_epochs
            rows = await self._pool.fetch(_CREDITS, row["principal"], since, *at, MAX_CREDITS + 1)
        return await self.view(did, roll, row, rows, MAX_CREDITS)

    async def view(self, did: str, roll: Fields | None, values: Fields | None, rows: Sequence[Fields], most: int) -> StandingView:
        """Return the standing of `did` in rows of `ROLL`, `PRINCIPAL` and `CREDITS`, with at most `most` credits."""
        if roll is None:
            return StandingView(did, None, None, None, None, "0", "0", [], None)
        epoch, parameters = roll["epoch"], await self.parameters(roll["parameters"])
        named = epoch, roll["roll"], parameters.electorate
        if values is None:
            return StandingView(did, None, *named, "0", "0", [], None)
        horizon = parameters.horizon_epochs
        unfaded = [row for row in rows if row["epoch"] > epoch - _FADED * horizon]
        terms = await self._load_parameters([row["parameters"] for row in unfaded])
        credits = [_credit(row, terms[row["parameters"]], decay(epoch - row["epoch"], horizon)) for row in unfaded[:most]]
        following = f"{credits[-1].epoch}-{unfaded[most - 1]['place']}" if len(unfaded) > most else None
        amounts = str(values["weight"] or 0), str(values["standing"] or 0)
        return StandingView(did, values["principal"], *named, *amounts, credits, following)

    async def parameters(self, statement: str) -> Parameters:
        """Return the parameters in a logged statement."""
        return (await self._load_parameters([statement]))[statement]

    async def _load_parameters(self, ids: list[str]) -> Mapping[str, Parameters]:
        """Return the parameters in these statements, cached because they never change."""
        missing = [bytes.fromhex(id_) for id_ in set(ids) if id_ not in self._parameters]
        for row in await self._pool.fetch(_STATED, missing) if missing else ():
            body = statement.understand(restored(row["leaf"])).body
            assert isinstance(body, Parameters), "a decision names the parameters in force"
            self._parameters[row["statement"].hex()] = body
        return self._parameters


def speakers_by(column: str) -> str:
    """Return the query of the rows of `Speaker` with a value of `column`.

    Its parameters: the value, three of the place to continue after, and the most rows and reports.
    """
    return _SPEAKERS.format(by=column, named=NAMED.format(did="(s.did)"))


def _credit(row: Fields, parameters: Parameters, fading: int) -> CreditView:
    terms, reported = parameters.credit, row["reason"] == "reported"
    whole = ONE // terms.report_share if reported else ONE >> row["earlier"]
    why = f"1/{terms.report_share} of a full credit: an independent pair with {row['corroborator']} reported it too"
    if not reported:
        why = f"1/2^{row['earlier']} of a full credit: it was elected, and {row['earlier']} clusters had reported it earlier"
    if row["shared"]:
        share = f"{terms.pairs}/{terms.pairs + row['shared']}"
        why += f"; {share} of that, as {row['shared']} earlier credits were shared with {row['corroborator']}"
    return CreditView(
        epoch=row["epoch"],
        reason=row["reason"],
        topic=row["topic"],
        hash=row["hash"],
        index=row["index"],
        corroborator=row["corroborator"],
        whole=str(whole),
        shared=row["shared"],
        earlier=row["earlier"],
        amount=str(row["amount"]),
        decay=str(fading),
        now=str(part(row["amount"], fading)),
        why=why,
    )


def _parse_pair(cursor: str) -> tuple[int, int]:
    first, _, second = cursor.partition("-")
    try:
        return parse_decimal(first, limit=_MAX_PLACE), parse_decimal(second, limit=_MAX_PLACE)
    except Malformed as error:
        raise _no_cursor() from error


def _parse_place(cursor: str) -> tuple[int, int, str]:
    numbers, _, did = cursor.partition("-did:")
    try:
        return *_parse_pair(numbers), parse_did(f"did:{did}").text
    except Malformed as error:
        raise _no_cursor() from error


def _no_cursor() -> Malformed:
    return Malformed(HttpCode.REQUEST, "A cursor is the `next` of the page before.")
