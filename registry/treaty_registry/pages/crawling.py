"""What programs ask every site for: robots.txt, sitemap.xml, llms.txt; and badges, which other sites show."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from treaty_consensus.kinds import NEGATIVE_STATES

from ..catalogue.resources import Record
from . import filters, home

if TYPE_CHECKING:
    from ..serving.history import TopicHistory
    from ..serving.views import Views

MAX_PROTOCOLS = 1_000
"""The newest protocols that a sitemap lists. A crawler finds the others by the pages of topics."""
_NEWEST = "select uri from protocols where state in ('active', 'deprecated') order by index desc limit $1"
_COLOURS = {"consensus": "#067647", "provisional": "#175cd3", "candidate": "#175cd3", "yanked": "#b54708", "revoked": "#b42318"}
_OTHER_COLOUR = "#475467"
_CHARACTER = 7
"""Pixels of a character, at most: without a font nobody can measure."""


async def sitemap(views: Views) -> Mapping[str, object]:
    """Return the values of `sitemap.xml`: the pages that are not made for one question."""
    page, rows = await asyncio.gather(views.elections.topics(""), views.registry.pool.fetch(_NEWEST, MAX_PROTOCOLS))
    topics = [f"/topics/{topic.topic}" for topic in page.topics]
    return {
        "base": views.registry.base_url,
        "paths": ["/", "/protocols", "/topics", "/log", "/docs/", *topics, *(filters.path(row["uri"]) for row in rows)],
    }


async def llms(views: Views, history: TopicHistory) -> Mapping[str, object]:
    """Return the values of `llms.txt` (llmstxt.org). It has names alone: titles and summaries are foreign text, and a model reads
    this page."""
    topics, _ = await home.topics(views, history)
    topic_lines = [
        {"topic": topic.topic, "uri": topic.uri, "is_withdrawn": topic.status in NEGATIVE_STATES}
        for topic in topics
        if topic.consensus
    ]
    return {"base": views.registry.base_url, "topics": topic_lines}


async def badge(views: Views, history: TopicHistory, uri: str) -> Mapping[str, object]:
    """Return the values of a protocol's badge: its state, and the pairs of principals whose reports on it count. Raises
    `NotFound`, `Malformed`."""
    record = msgspec.json.decode((await views.catalogue.record(uri)).json, type=Record)
    text = state = record.election.state if record.election else "not elected"
    if record.status != "active":
        text = state = record.status
    elif record.election is not None:
        votes = (await history.newest([record.topic])).get(record.topic)
        if votes is not None and (pairs := votes.pairs.get(record.hash)):
            text = f"{state}, {filters.count(pairs)} {'pair' if pairs == 1 else 'pairs'}"
    widths = {"left": _CHARACTER * 8, "right": _CHARACTER * (len(text) + 2)}
    return {"text": text, "colour": _COLOURS.get(state, _OTHER_COLOUR), **widths}
