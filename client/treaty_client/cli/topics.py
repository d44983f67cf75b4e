"""`treaty topics`: the topics of a registry."""

from __future__ import annotations

import msgspec
from rich.markup import escape
from rich.table import Column, Table

from treaty_consensus.printable import printable, short

from ..registries.api import RegistryClient
from ..registries.replies import TopicPage
from .context import Options, run

_MAX_SHOWN = 160


def topics(*, after: str = "", options: Options = Options()) -> None:
    """List the topics of a registry by name, each with its consensus, by its registry's account.

    Parameters
    ----------
    after
        The `next` of the page before.
    """

    async def work() -> TopicPage:
        async with RegistryClient(options.sources(), options.network) as client:
            return await client.topics(after)

    found = run(work())
    table = Table(Column("topic", overflow="fold"), "protocols", "consensus", "decided in epoch", box=None)
    for topic in found.topics:
        consensus = short(printable(topic.consensus, _MAX_SHOWN)) if topic.consensus else "–"
        decided = "–" if topic.epoch is None else str(topic.epoch)
        table.add_row(escape(printable(topic.topic, _MAX_SHOWN)), str(topic.protocols), escape(consensus), decided)
    more = [f"More: treaty topics --after {escape(printable(found.next, _MAX_SHOWN))}"] if found.next else []
    options.output.result(msgspec.to_builtins(found), *([table] if found.topics else ["No topic has a protocol."]), *more)
