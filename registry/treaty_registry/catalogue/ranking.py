"""Rank the protocols that have any word of a text, in bounded time.

A protocol's score is 1 to 100: the weights of the words of the text that its card has, each times the gain of the place of the
word, as a part of the weights of all words. A rare word weighs more than a frequent one. A word that no card has does not count.

The candidates are the best `MAX_CANDIDATES` postings of all words together, and as many of the protocols that match most among
the `MAX_WALK` first postings of the rarest term. So a text of frequent words has an end, and rarer words find the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from . import search
from .queries import SUMMARY
from .search import Term

if TYPE_CHECKING:
    from asyncpg import Pool, Record

GAINS: Final = (8, 12, 16, 20)
"""Of the places of a word in a card: namespace, summary, tags and topic, title and name."""
MAX_WALK = 512
MAX_CANDIDATES = 128
# Each is compared with each candidate. The rarest of a sentence say what it is about.
MAX_RANKED = 16
# Words whose postings are read for all terms together. Each is an index scan of the query.
_MAX_WORDS = 64
BEFORE_ALL = (101, 0)
_MARKS = ("A", "AB", "ABC", "")  # the weights that a tsquery takes: of places 3, 2 and better, 1 and better, all

# Limits inside the lateral joins, so that each word's postings are read in index order.
_RANKED = f"""
with candidates as (
  select posted.index from unnest($1::text[]) as asked (word) cross join lateral (
    select index from postings where word = asked.word order by place desc, index desc limit $2) posted
  union
  (select walk.index from unnest($3::text[]) as lead (word) cross join lateral (
    select place, index from postings where word = lead.word order by place desc, index desc limit $4) walk
   join protocols p on p.index = walk.index where p.terms @@ $5::tsquery
   order by walk.place desc, walk.index desc limit $6)
), ranked as materialized (
  select p.index, (
    select sum(term.weight * case when not p.terms @@ term.anywhere then 0
      when p.terms @@ term.a then {GAINS[3]} when p.terms @@ term.ab then {GAINS[2]} when p.terms @@ term.abc then {GAINS[1]}
      else {GAINS[0]} end)
    from unnest($7::int[], $8::text[]::tsquery[], $9::text[]::tsquery[], $10::text[]::tsquery[], $11::text[]::tsquery[])
      as term (weight, a, ab, abc, anywhere)
  ) as points
  from protocols p where p.index in (select index from candidates)
  and p.state = any($12::text[]) and p.facets @> $13::text[]
  and ($14::text is null or p.topic = $14::text or p.topic ^@ ($14::text || '/'))
), scored as (
  -- Rounded up, so that each result has a score above 0.
  select index, ((points * 100 + $15::int - 1) / $15::int)::int as score from ranked where points > 0
)
select best.score, best.index as at_index, found.* from (
  select score, index from scored where (score, index) < ($16::int, $17::bigint) order by score desc, index desc limit $18
) best cross join lateral ({SUMMARY} where p.index = best.index limit 1) found order by best.score desc, best.index desc
"""  # noqa: S608 (numbers and names of our own)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The words of a text that some card has.

    `words`: term → the words that it stands for, with the number of postings of each. `leads`: of the rarest term, filters and
    topic included. `is_filter`: the rarest term is none of the words. `total`: the number of protocols in the topic.
    """

    words: Mapping[Term, Mapping[str, int]]
    leads: Sequence[str]
    is_filter: bool
    total: int

    async def rows(
        self, pool: Pool, topic: str | None, states: Sequence[str], facets: Sequence[str], at: tuple[int, int], most: int
    ) -> list[Record]:
        """Return the rows of `SUMMARY` of the best protocols after the position `at` (score, index), each with its `score`."""
        terms = sorted(self.words, key=lambda term: sum(self.words[term].values()))[:MAX_RANKED]
        share = max(1, _MAX_WORDS // len(terms))
        # The word itself first, then its most used continuations.
        asked = [
            word
            for term in terms
            for word in sorted(self.words[term], key=lambda word: (word != term.text, -self.words[term][word]))[:share]
        ]
        weights = [self._weight(term) for term in terms]
        queries = ([search.query([term], marks) for term in terms] for marks in _MARKS)
        # A filter leads to protocols that may have none of the words, a word to those that have it.
        both = (" | " if self.is_filter else " & ").join(search.query([term]) for term in terms)
        rows: list[Record] = await pool.fetch(
            _RANKED,
            asked,
            max(4, MAX_CANDIDATES // len(asked)),
            self.leads,
            max(1, MAX_WALK // len(self.leads)),
            both,
            MAX_CANDIDATES,
            weights,
            *queries,
            states,
            facets,
            topic,
            GAINS[3] * sum(weights),
            *at,
            most,
        )
        return rows

    def _weight(self, term: Term) -> int:
        # Half as many protocols, one more: integers, so that each machine has the same scores.
        return 1 + (self.total // sum(self.words[term].values())).bit_length()
