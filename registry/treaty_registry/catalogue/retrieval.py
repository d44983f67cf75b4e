"""Search in bounded time, for any number of protocols and any query.

A protocol has a posting under each word of its card (`search`), under each topic that contains it and under each of its `facets`
(`postings`, best place first, then newest). A query has terms: its words, its filters and its topic. A protocol matches that has
any of the words, all filters and the topic. The term with the fewest postings *leads*.

Where the query has one word that leads, or none, the postings of the lead are read in order, and the protocols that match all
other terms are returned. So a page costs as much as its results and the postings that are skipped. Several words are ranked
(`ranking`).

A page reads at most `MAX_WALK` postings. If these contain fewer results than a page, the page is short or even empty, and `next`
continues after them. Following `next` until it is null finds every protocol that was there at the first page, each once; of
several words, the best candidates.

Another order than the best first, `Query.sort`, has no leading word. If some term has at most `MAX_WALK` postings, all of these
are read and put in order. Otherwise an index gives all protocols in this order, and a page reads at most `MAX_WALK` of them.

A word also stands for the words that begin with it. Such a group can lead when it has at most `MAX_LEADS` words, whose postings
are merged, or at most `MAX_WALK` postings in all, which are all read. Otherwise another term leads: another word, a filter, the
topic, or all protocols, newest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed
from treaty_consensus.protocol import is_topic

from ..codes import SearchCode
from . import facets, search
from .queries import SUMMARY, result
from .ranking import BEFORE_ALL, GAINS, MAX_WALK, Ranking
from .resources import Page, SearchResult
from .search import Term

if TYPE_CHECKING:
    from asyncpg import Pool

Sort: TypeAlias = Literal["use", "newest", "name"]

MAX_PAGE = 100
_MAX_TERMS = search.MAX_QUERY_TERMS + facets.MAX_FACETS
MAX_COMPLETIONS = 128  # words looked up for one prefix
# Each leading word is one more index scan of the query.
MAX_LEADS = 16
# Postings read beyond a page, so that a few that do not match cost no second query.
_SPARE = 12
# The greatest character: a prefix followed by it sorts after all words that begin with the prefix.
_LAST = "\U0010ffff"
# Places are 0 to 3, and postings are read in descending order.
_BEFORE_BEST = (4, 0)
_RANKED = "s"  # begins the cursor of a ranked page
_WEIGHTS = ("", "A", "AB", "ABC")  # of the places better than 3, 2, 1 and 0

_USES = """
select asked.number, known.word, known.uses
from unnest($1::text[], $2::text[]) with ordinality as asked (first, last, number)
cross join lateral (select * from words where word >= asked.first and word <= asked.last order by word limit $3) known
"""
# With its own order and limit, so that each word's postings are read in index order.
_POSTED = """(
  select place, index from postings where word = ${} and (place, index) < ($1, $2) order by place desc, index desc limit $3
)"""
# All postings of a group with few of them, each protocol at its best place.
_POSTED_FEW = """
select max(place) as place, index from postings where word = any($9::text[]) group by index having (max(place), index) < ($1, $2)
"""
# The limit of one makes the planner look up each protocol by its index. Without it the planner may read all of them.
_PAGE = f"""
select walk.place as at_place, walk.index as at_index, found.*
from (select place, index from ({{postings}}) posted order by place desc, index desc limit $3) walk
left join lateral (
  {SUMMARY} where p.index = walk.index and p.state = any($7::text[]) and p.facets @> $8::text[]
  and ($4::tsquery is null or p.terms @@ $4::tsquery)
  and ($5::text is null or p.topic = $5::text or p.topic ^@ ($5::text || '/'))
  and ($6::text[] is null or walk.place = 3 or not p.terms @@ (($6::text[])[3 - walk.place])::tsquery)
  limit 1
) found on true
order by walk.place desc, walk.index desc
"""  # noqa: S608 (numbers and names of our own)


# The order of each `Query.sort`, and the condition of the rows that follow the protocol of index $5.
SORTS: Mapping[Sort, tuple[str, str]] = {
    "newest": ("index desc", "index < $5"),
    "use": ("pairs desc, index desc", "(pairs, index) < (select pairs, index from protocols where index = $5)"),
    "name": (
        "name, namespace, index",
        "(name, namespace, index) > (select name, namespace, index from protocols where index = $5)",
    ),
}
_AMONG = "index = any(array(select index from postings where word = any($7::text[])))"
_SORTED = f"""
select walk.index as at_index, found.*
from (select index, pairs, name, namespace from protocols where {{after}} and {{among}} order by {{order}} limit $6) walk
left join lateral (
  {SUMMARY} where p.index = walk.index and p.state = any($3::text[]) and p.facets @> $4::text[]
  and ($1::tsquery is null or p.terms @@ $1::tsquery)
  and ($2::text is null or p.topic = $2::text or p.topic ^@ ($2::text || '/'))
  limit 1
) found on true
order by {{order}}
"""  # noqa: S608 (numbers and names of our own)


@dataclass(frozen=True)
class Query:
    """A search for protocols that have any word of `text`, are in `topic` or below it, and have all of `filters`.

    `filters`: facets and their values (`facets.VALUES`), each facet once. `limit`: results per page. `cursor`: the `next` of the
    previous page. `sort`: the order; without it the best match of the words comes first.
    """

    text: str = ""
    topic: str | None = None
    limit: int = 20
    cursor: str | None = None
    filters: tuple[tuple[str, str], ...] = ()
    sort: Sort | None = None

    def parts(self) -> Iterator[tuple[str, Query]]:
        """Yield the name of each part of the query, and the first page of the query without it."""
        first = replace(self, cursor=None)
        if self.text.strip():
            yield "q", replace(first, text="")
        if self.topic is not None:
            yield "topic", replace(first, topic=None)
        for facet, _ in self.filters:
            yield facet, replace(first, filters=tuple(item for item in self.filters if item[0] != facet))


Uses: TypeAlias = dict[Term, dict[str, int]]
"""For each term the words that it stands for, with the number of postings of each."""


class Retrieval:
    """Answers queries. Safe for concurrent use on one event loop; raises `Unavailable` when PostgreSQL is down."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def page(self, query: Query, cache: Uses | None = None) -> Page:
        """Return a page of the protocols found, without yanked and revoked ones. Raises `Malformed`.

        `cache`: terms that need no look-up. The others are added, so the next page of the same terms need not look them up.
        """
        if query.topic is not None and not is_topic(query.topic):
            raise Malformed(SearchCode.QUERY, "A topic is one to four lower-case names joined by '/'.")
        words, facet_words = search.terms(query.text), facets.words(query.filters)
        terms = [*words, *(Term(word, False) for word in facet_words), Term(f"/{query.topic or ''}", False)]
        number, at = (None, _BEFORE_BEST) if query.cursor is None or query.sort else _parse_cursor(query.cursor, len(terms) - 1)
        # A text of signs only. Without terms the query would match all protocols.
        if query.text.strip() and not words:
            return Page([], None)
        uses = await self._uses(terms, {} if cache is None else cache)
        live = [term for term, its in zip(words, uses, strict=False) if its]
        if not all(uses[len(words) :]) or (words and not live):
            return Page([], None)
        if query.sort is not None:
            # Any word is enough, so the words lead together.
            groups = [
                *([{word: count for its in uses[: len(words)] for word, count in its.items()}] if words else []),
                *uses[len(words) :],
            ]
            return await self._sorted(query, query.sort, live, min(groups, key=_postings))
        first = self._lead(query, uses)
        if number == len(terms) or (number is None and live and (len(live) > 1 or first >= len(words))):
            return await self._ranked(query, dict(zip(terms, uses, strict=True)), live, first, at if number else BEFORE_ALL)
        # The client may change a cursor, and a word that led may be gone.
        number = first if number is None or not uses[number] else number
        leads = uses[number]
        if not _can_lead(leads):  # it could lead at the previous page: continue with its most used words
            leads = dict(sorted(leads.items(), key=lambda word: -word[1])[:MAX_LEADS])
        results, following = await self._walk(query, live, number, list(leads), at)
        at_most = len(results) if query.cursor is None and following is None else min(_postings(its) for its in uses if its)
        return Page(results, following, "words" if number < len(words) else "newest", at_most)

    async def culprits(self, query: Query, cache: Uses) -> list[str]:
        """Return the parts of a query without results (`Query.parts`), each of which alone keeps it from having some.

        `cache`: of the `page` without results.
        """
        # A few searches of one result. There are no more parts than facets and two.
        return [name for name, rest in query.parts() if (await self.page(replace(rest, limit=1), cache)).protocols]

    def _lead(self, query: Query, uses: Sequence[Mapping[str, int]]) -> int:
        """Return the number of the term that leads the first page."""
        able = [number for number, words in enumerate(uses) if words and _can_lead(words)]  # the topic can always lead
        if query.topic is None and len(able) > 1:
            able.pop()  # prefer another term to all protocols, whose order is not by relevance
        return min(able, key=lambda number: _postings(uses[number]))

    async def _ranked(
        self, query: Query, uses: Mapping[Term, Mapping[str, int]], words: Sequence[Term], lead: int, at: tuple[int, int]
    ) -> Page:
        """Return the results with any of `words` that follow the position `at`. `lead`: the number of the rarest term."""
        names = list(uses)
        is_filter = names[lead] not in words
        ranking = Ranking({term: uses[term] for term in words}, list(uses[names[lead]]), is_filter, _postings(uses[names[-1]]))
        states, facet_words = facets.states(query.filters), facets.words(query.filters)
        rows = await ranking.rows(self._pool, query.topic, states, facet_words, at, query.limit + 1)
        results = [result(row, row["score"]) for row in rows[: query.limit]]
        more = len(rows) > query.limit
        following = f"{_RANKED}-{rows[query.limit - 1]['score']}-{rows[query.limit - 1]['at_index']}" if more else None
        at_most = min(_postings(its) for term, its in uses.items() if term not in words)
        at_most = min(at_most, sum(_postings(uses[term]) for term in words))
        return Page(results, following, "words", len(results) if query.cursor is None and not more else at_most)

    async def _sorted(self, query: Query, sort: Sort, terms: Sequence[Term], rarest: Mapping[str, int]) -> Page:
        """Return a page in another order. `terms`: the words, of which any is enough. `rarest`: the words
        with the fewest postings that lead to all results."""
        after = None if query.cursor is None else _parse_index(query.cursor)
        # A prefix may stand for more words than were looked up, and so for more postings.
        is_few = len(rarest) < MAX_COMPLETIONS and _postings(rarest) <= MAX_WALK
        order, following = SORTS[sort]
        statement = _SORTED.format(
            after=following if after is not None else "$5::bigint is null",
            among=_AMONG if is_few else "$7::text[] is not null",
            order=order,
        )
        any_word = " | ".join(search.query([term]) for term in terms)
        allowed, facet_words = facets.states(query.filters), facets.words(query.filters)
        rows = await self._pool.fetch(
            statement, any_word or None, query.topic, allowed, facet_words, after, MAX_WALK, list(rarest)
        )
        matches = [row for row in rows if row["uri"] is not None]
        last = matches[query.limit - 1]["at_index"] if len(matches) > query.limit else rows[-1]["at_index"] if rows else None
        is_all = len(matches) <= query.limit and len(rows) < MAX_WALK
        results = [result(row, None) for row in matches[: query.limit]]
        at_most = len(results) if is_all and after is None else _postings(rarest)
        return Page(results, None if is_all else str(last), sort, at_most)

    async def _uses(self, terms: Sequence[Term], cache: Uses) -> list[dict[str, int]]:
        missing = [term for term in dict.fromkeys(terms) if term not in cache]
        if missing:
            lasts = [term.text + _LAST if term.prefix else term.text for term in missing]
            cache.update((term, {}) for term in missing)
            for row in await self._pool.fetch(_USES, [term.text for term in missing], lasts, MAX_COMPLETIONS):
                cache[missing[row["number"] - 1]][row["word"]] = row["uses"]
        return [cache[term] for term in terms]

    async def _walk(
        self, query: Query, terms: Sequence[Term], number: int, leads: Sequence[str], at: tuple[int, int]
    ) -> tuple[list[SearchResult], str | None]:
        """Return the results that follow the position `at` in the postings of `leads`, and the cursor after them."""
        better, words = None, list[object](leads)
        if len(leads) > MAX_LEADS:
            postings, words = _POSTED_FEW, [leads]
        else:
            postings = " union all ".join(_POSTED.format(9 + lead) for lead in range(len(leads)))
        if 1 < len(leads) <= MAX_LEADS:  # a protocol with several postings counts once, at its best place
            better = [" | ".join(search.query([Term(word, False)], weights) for word in leads) for weights in _WEIGHTS[1:]]
        results: list[SearchResult] = []
        ends: list[tuple[int, int]] = []
        allowed, facet_words = facets.states(query.filters), facets.words(query.filters)
        for most in (query.limit + _SPARE, MAX_WALK):  # the first limit is enough when most postings match
            rows = await self._pool.fetch(
                _PAGE.format(postings=postings),
                *(*at, most, search.query(terms) or None, query.topic, better, allowed, facet_words, *words),
            )
            for row in rows:
                at = row["at_place"], row["at_index"]
                if row["uri"] is not None and (not ends or ends[-1] != at):
                    # Only one of the words leads, so its place is the whole score.
                    results.append(result(row, GAINS[at[0]] * 100 // GAINS[3] if terms else None))
                    ends.append(at)
            if len(results) > query.limit:
                return results[: query.limit], _cursor(number, ends[query.limit - 1])
            if len(rows) < most:
                return results, None
        return results, _cursor(number, at)


def parse_sort(name: str) -> Sort | None:
    """Return the order of this name; None for an empty one, as a form sends it. Raises `Malformed`."""
    for sort in SORTS:
        if name == sort:
            return sort
    if name:
        raise Malformed(SearchCode.QUERY, f"`sort` is one of {', '.join(SORTS)}.")
    return None


def _postings(uses: Mapping[str, int]) -> int:
    return sum(uses.values())


def _can_lead(uses: Mapping[str, int]) -> bool:
    return len(uses) <= MAX_LEADS or (len(uses) < MAX_COMPLETIONS and _postings(uses) <= MAX_WALK)


def _cursor(number: int, at: tuple[int, int]) -> str:
    return f"{number}-{at[0]}-{at[1]}"


def _parse_index(cursor: str) -> int:
    """Return the index after which a page of another order goes on. Raises `Malformed`."""
    try:
        return canonical.parse_decimal(cursor, limit=canonical.MAX_INTEGER)
    except Malformed as error:
        raise Malformed(SearchCode.QUERY, "A cursor is the `next` of the page before.") from error


def _parse_cursor(cursor: str, last: int) -> tuple[int, tuple[int, int]]:
    """Return the number of the leading term (the topic's is `last`, a ranked page has the one after it) and the posting, or the
    score and protocol, to continue after. Raises `Malformed`."""
    kind, *parts = cursor.split("-")
    try:
        if kind == _RANKED:
            score, index = (
                canonical.parse_decimal(part, limit=limit)
                for part, limit in zip(parts, (100, canonical.MAX_INTEGER), strict=True)
            )
            return last + 1, (score, index)
        number, place, index = (
            canonical.parse_decimal(part, limit=limit)
            for part, limit in zip((kind, *parts), (_MAX_TERMS, 3, canonical.MAX_INTEGER), strict=True)
        )
    except (Malformed, ValueError) as error:
        raise Malformed(SearchCode.QUERY, "A cursor is the `next` of the page before.") from error
    # The client may change a cursor. A number beyond the terms means the topic, which can always lead.
    return min(number, last), (place, index)
