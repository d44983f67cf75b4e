"""The first page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..catalogue.queries import SUMMARY, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..serving.views import Views

MAX_NEWEST = 6
MAX_TOPICS = 12

# Each protocol has a posting under the topic of all topics, so this word counts them without a scan.
_NUMBERS = """
select coalesce((select uses from words where word = '/'), 0) as protocols,
       (select count(*) from elections where state = 'consensus') as elected
"""
_ELECTED = f"{SUMMARY} where e.state in ('consensus', 'provisional') order by e.epoch desc, p.topic limit $1"


async def context(views: Views) -> Mapping[str, object]:
    """Return what the first page shows."""
    pool = views.registry.pool
    (numbers,) = await pool.fetch(_NUMBERS)
    newest = await pool.fetch(f"{SUMMARY} order by p.index desc limit $1", MAX_NEWEST)
    elected = await pool.fetch(_ELECTED, MAX_NEWEST)
    return {
        "protocols": numbers["protocols"],
        "elected_topics": numbers["elected"],
        "log": await views.elections.log(views.registry.head),
        "newest": [summary(row) for row in newest],
        "elected": [summary(row) for row in elected],
        "topics": (await views.elections.topics("")).topics[:MAX_TOPICS],
    }
