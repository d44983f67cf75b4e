"""Search in bounded time, however many protocols there are and whatever is asked.

A protocol is posted under each word of its card (`search`) and under each topic that it is in (`postings`, best place first,
then newest). Of what a query asks for, the words and the topic, the one that fewest protocols are posted under *leads*: its
postings are walked in their order, and those protocols are taken that have everything else too. So a page costs what it holds
and what it passes over, and nothing is counted, sorted or ranked.

Bounds: a page looks at `MAX_WALK` postings at most. When these hold less than a page, it is short, or even empty, and `next` goes
on from there: following it until it is null finds everything that was there at the first page, each protocol once.

A word also stands for the words that begin with it. It can lead where these are `MAX_LEADS` at most, whose postings are merged,
or where there are `MAX_WALK` postings under all of them together, which are read. Otherwise it is common enough for something
else to lead: another word, the topic, or all protocols, newest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed
from treaty_consensus.protocol import is_topic

from . import search
from .queries import SUMMARY, summary
from .resources import Page, Summary
from .search import Term

if TYPE_CHECKING:
    from asyncpg import Pool

MAX_PAGE = 100
MAX_WALK = 512
MAX_COMPLETIONS = 128
MAX_LEADS = 16
_SPARE = 12
_LAST = "\U0010ffff"
_BEFORE_ALL = (4, 0)
_WEIGHTS = ("", "A", "AB", "ABC")  # of the places better than 3, 2, 1 and 0

_USES = """
select asked.number, known.word, known.uses
from unnest($1::text[], $2::text[]) with ordinality as asked (first, last, number)
cross join lateral (select * from words where word >= asked.first and word <= asked.last order by word limit $3) known
"""
# With an order and a limit of its own, so that each word's postings are read in the order they are kept in.
_POSTED = """(
  select place, index from postings where word = ${} and (place, index) < ($1, $2) order by place desc, index desc limit $3
)"""
# Of a few postings: all of them, each protocol at its best place.
_POSTED_FEW = """
select max(place) as place, index from postings where word = any($7::text[]) group by index having (max(place), index) < ($1, $2)
"""
# The limit of one keeps each protocol's look-up by its index: without it a planner may read them all.
_PAGE = f"""
select walk.place as at_place, walk.index as at_index, found.*
from (select place, index from ({{postings}}) posted order by place desc, index desc limit $3) walk
left join lateral (
  {SUMMARY} where p.index = walk.index and p.state in ('active', 'deprecated')
  and ($4::tsquery is null or p.terms @@ $4::tsquery)
  and ($5::text is null or p.topic = $5::text or p.topic ^@ ($5::text || '/'))
  and ($6::text[] is null or walk.place = 3 or not p.terms @@ (($6::text[])[3 - walk.place])::tsquery)
  limit 1
) found on true
order by walk.place desc, walk.index desc
"""  # noqa: S608 (numbers and names of our own)


@dataclass(frozen=True)
class Query:
    """Protocols that have all of `text` and are in `topic` or below it: the page of at most `limit` after `cursor`, which is the
    `next` of the page before."""

    text: str = ""
    topic: str | None = None
    limit: int = 20
    cursor: str | None = None


class Retrieval:
    """Answers queries. Safe for concurrent use on one event loop; raises what asyncpg raises when PostgreSQL is away."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def page(self, query: Query) -> Page:
        """The protocols found; yanked and revoked ones are left out. Raises `Malformed`."""
        if query.topic is not None and not is_topic(query.topic):
            raise Malformed("search.topic", "A topic is one to four lower-case names joined by '/'.")
        terms = search.terms(query.text)
        number, at = (None, _BEFORE_ALL) if query.cursor is None else _parse_cursor(query.cursor, len(terms))
        if query.text.strip() and not terms:
            return Page([], None)
        uses = await self._uses([*terms, Term(f"/{query.topic or ''}", False)])
        if not all(uses):
            return Page([], None)
        if number is None:
            able = [number for number, words in enumerate(uses) if _can_lead(words)]  # the topic always can
            if query.topic is None and len(able) > 1:
                able.pop()  # all protocols lead where nothing better does: their order says nothing
            number = min(able, key=lambda number: sum(uses[number].values()))
        leads = uses[number]
        if not _can_lead(leads):  # not any more, since the page before: its most used words go on
            leads = dict(sorted(leads.items(), key=lambda word: -word[1])[:MAX_LEADS])
        return await self._walk(query, terms, number, list(leads), at)

    async def _uses(self, terms: Sequence[Term]) -> list[dict[str, int]]:
        """For each term the words it stands for, and how many protocols are posted under each."""
        uses: list[dict[str, int]] = [{} for _ in terms]
        lasts = [term.text + _LAST if term.prefix else term.text for term in terms]
        for row in await self._pool.fetch(_USES, [term.text for term in terms], lasts, MAX_COMPLETIONS):
            uses[row["number"] - 1][row["word"]] = row["uses"]
        return uses

    async def _walk(self, query: Query, terms: Sequence[Term], number: int, leads: Sequence[str], at: tuple[int, int]) -> Page:
        """The page that follows the place `at` in the postings of `leads`."""
        better, words = None, list[object](leads)
        if len(leads) > MAX_LEADS:
            postings, words = _POSTED_FEW, [leads]
        else:
            postings = " union all ".join(_POSTED.format(7 + lead) for lead in range(len(leads)))
        if 1 < len(leads) <= MAX_LEADS:  # what is posted under several of them counts at its best place only
            better = [" | ".join(search.query([Term(word, False)], weights) for word in leads) for weights in _WEIGHTS[1:]]
        found: list[Summary] = []
        ends: list[tuple[int, int]] = []
        for most in (query.limit + _SPARE, MAX_WALK):  # the first is enough where nearly all that is walked is taken
            rows = await self._pool.fetch(
                _PAGE.format(postings=postings), *at, most, search.query(terms) or None, query.topic, better, *words
            )
            for row in rows:
                at = row["at_place"], row["at_index"]
                if row["uri"] is not None and (not ends or ends[-1] != at):
                    found.append(summary(row))
                    ends.append(at)
            if len(found) > query.limit:
                return Page(found[: query.limit], _cursor(number, ends[query.limit - 1]))
            if len(rows) < most:
                return Page(found, None)
        return Page(found, _cursor(number, at))


def _can_lead(uses: Mapping[str, int]) -> bool:
    return len(uses) <= MAX_LEADS or (len(uses) < MAX_COMPLETIONS and sum(uses.values()) <= MAX_WALK)


def _cursor(number: int, at: tuple[int, int]) -> str:
    return f"{number}-{at[0]}-{at[1]}"


def _parse_cursor(cursor: str, terms: int) -> tuple[int, tuple[int, int]]:
    """Which term leads, or from `terms` on the topic, and after which posting to go on. Raises `Malformed`."""
    parts = cursor.split("-")
    try:
        number, place, index = (
            canonical.parse_decimal(part, limit=limit)
            for part, limit in zip(parts, (search.MAX_QUERY_TERMS, 3, canonical.MAX_INTEGER), strict=True)
        )
    except (Malformed, ValueError) as error:
        raise Malformed("search.cursor", "A cursor is the `next` of the page before.") from error
    return min(number, terms), (place, index)
