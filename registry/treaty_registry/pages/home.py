"""The first page: search, topics, news, and numbers. Every list reads a bounded number of rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from treaty_client.audit.reasons import share

from ..catalogue.queries import SUMMARY, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..catalogue.agents import AgentQueries
    from ..serving.history import TopicHistory
    from ..serving.views import Views

MAX_NEWEST = 6
MAX_TOPICS = 12
# Most decisions change no consensus, and a publisher may take a warning back: so many are looked at.
MAX_DECISIONS = 256
MAX_STATUSES = 64

# Each protocol has a posting under the topic of all topics and under its facets, so these words count them without a scan.
_NUMBERS = """
select coalesce((select uses from words where word = '/'), 0) as protocols,
       coalesce((select uses from words where word = '=state/consensus'), 0) as elected
"""
_NEWEST = f"{SUMMARY} order by p.index desc limit $1"
_ELECTED = """
select changed.topic, changed.epoch, elected.uri, elected.title, former.uri as former_uri, former.title as former_title
from (
  select d.topic, d.epoch, d.index, d.consensus, before.consensus as former
  from (select * from decisions order by index desc limit $1) d
  left join lateral (
    select consensus from decisions where topic = d.topic and index < d.index order by index desc limit 1
  ) before on true
  where d.consensus is distinct from before.consensus order by d.index desc limit $2
) changed
left join lateral (
  select uri, title from protocols where topic = changed.topic and document = changed.consensus order by index limit 1
) elected on true
left join lateral (
  select uri, title from protocols where topic = changed.topic and document = changed.former order by index limit 1
) former on true
order by changed.index desc
"""
_WARNINGS = """
select s.uri, s.state, s.wheel is not null as is_of_handler, s.publisher, p.title, p.topic
from (select * from statuses order by index desc limit $1) s join protocols p using (uri)
where s.state <> 'active' order by s.index desc limit $2
"""


async def context(views: Views, agents: AgentQueries, history: TopicHistory) -> Mapping[str, object]:
    """Return the values that the first page shows."""
    pool = views.registry.pool
    numbers, log, newest, elected, warnings, topics = await asyncio.gather(
        pool.fetchrow(_NUMBERS),
        views.elections.log(views.registry.head),
        pool.fetch(_NEWEST, MAX_NEWEST),
        pool.fetch(_ELECTED, MAX_DECISIONS, MAX_NEWEST),
        pool.fetch(_WARNINGS, MAX_STATUSES, MAX_NEWEST),
        views.elections.topics("", MAX_TOPICS),
    )
    assert numbers is not None, "a count has one row"
    return {
        "protocols": numbers["protocols"],
        "elected_protocols": numbers["elected"],
        "log": log,
        "share": share,
        "newest": [summary(row) for row in newest],
        "elected": elected,
        "warnings": warnings,
        # The elected ones first: they answer the question of the page.
        "topics": sorted(topics.topics, key=lambda topic: topic.consensus is None),
        # Five agents in a topic of their own elect a consensus too, so their number stands beside it.
        "turnouts": await history.newest([topic.topic for topic in topics.topics if topic.consensus]),
    }
