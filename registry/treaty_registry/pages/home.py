"""The first page: search, topics, news, and numbers. Every list reads a bounded number of rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from treaty_client.audit.reasons import share
from treaty_consensus.kinds import NEGATIVE_STATES

from ..catalogue.dates import published
from ..catalogue.queries import SUMMARY, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treaty_client.registries.replies import TopicSummary

    from ..serving.history import EpochApprovals, TopicHistory
    from ..serving.views import Views

MAX_NEWEST = 6
MAX_TOPICS = 12
MAX_ELECTED = 64
"""The newest elected protocols, of whose topics those with the most use are shown."""
MAX_PUBLISHED = 64
"""The newest publications. The newest usable one of each publisher is shown: a publisher may publish many at once."""
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


async def context(views: Views, history: TopicHistory) -> Mapping[str, object]:
    """Return the values that the first page shows."""
    pool = views.registry.pool
    numbers, log, newest, elected, warnings, (shown_topics, turnouts) = await asyncio.gather(
        pool.fetchrow(_NUMBERS),
        views.elections.log(views.registry.head),
        pool.fetch(_NEWEST, MAX_PUBLISHED),
        pool.fetch(_ELECTED, MAX_DECISIONS, MAX_NEWEST),
        pool.fetch(_WARNINGS, MAX_STATUSES, MAX_NEWEST),
        topics(views, history),
    )
    assert numbers is not None, "a count has one row"
    first = {row["publisher"]: row for row in reversed(newest) if row["state"] not in NEGATIVE_STATES}
    latest = sorted(first.values(), key=lambda row: -row["index"])[:MAX_NEWEST]
    return {
        "protocols": numbers["protocols"],
        "elected_protocols": numbers["elected"],
        "log": log,
        "share": share,
        "newest": [summary(row) for row in latest],
        "dates": await published(pool, [row["uri"] for row in latest]),
        "elected": elected,
        "warnings": warnings,
        "topics": shown_topics,
        # Five agents in a topic of their own elect a consensus too, so their number stands beside it.
        "turnouts": turnouts,
    }


async def topics(views: Views, history: TopicHistory) -> tuple[list[TopicSummary], Mapping[str, EpochApprovals]]:
    """Return the topics to show, the elected ones with the most use first, and the votes of these."""
    decided, page = await asyncio.gather(views.elections.elected(MAX_ELECTED), views.elections.topics("", MAX_TOPICS))
    turnouts = await history.newest([topic.topic for topic in decided])

    def pairs(topic: TopicSummary) -> int:
        votes = turnouts.get(topic.topic)
        return votes.pairs.get(topic.consensus or "", 0) if votes else 0

    # By use that is proved: the pairs of principals whose co-signed reports count.
    decided.sort(key=pairs, reverse=True)
    undecided = [topic for topic in page.topics if topic.consensus is None]
    return [*decided, *undecided][:MAX_TOPICS], turnouts
