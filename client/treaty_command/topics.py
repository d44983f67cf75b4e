"""`treaty topics`: the topics of a registry."""

from __future__ import annotations

import msgspec
from rich.markup import escape
from rich.table import Column, Table

from treaty_client.audit.reasons import share
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.replies import Reach, TopicPage
from treaty_consensus.canonical import parse_decimal
from treaty_consensus.errors import TreatyError
from treaty_consensus.printable import printable, short

from .context import Options, run

_MAX_SHOWN = 160
_MAX_SUM = 2**128 - 1


def topics(*, after: str = "", options: Options = Options()) -> None:
    """List the topics of a registry by name, each with its consensus, by its registry's account.

    The last line says how well the network understands itself: the share of the pairs that report that could speak at once.

    Parameters
    ----------
    after
        The `next` of the page before.
    """

    async def work() -> tuple[TopicPage, tuple[Reach, ...]]:
        async with RegistryClient(options.sources(), options.network) as client:
            return await client.topics(after), await _reach(client)

    found, reach = run(work())
    table = Table(Column("topic", overflow="fold"), "protocols", "consensus", "decided in epoch", box=None)
    for topic in found.topics:
        consensus = short(printable(topic.consensus, _MAX_SHOWN)) if topic.consensus else "–"
        decided = "–" if topic.epoch is None else str(topic.epoch)
        table.add_row(escape(printable(topic.topic, _MAX_SHOWN)), str(topic.protocols), escape(consensus), decided)
    more = [f"More: treaty topics --after {escape(printable(found.next, _MAX_SHOWN))}"] if found.next else []
    value = msgspec.to_builtins(found) | {"reach": [{"epoch": at.epoch, "able": _able(at)} for at in reach]}
    told = [f"{_able(at)} of the pairs that report could speak at once at the end of epoch {at.epoch}." for at in reach[:1]]
    options.output.result(value, *([table] if found.topics else ["No topic has a protocol."]), *more, *told)


async def _reach(client: RegistryClient) -> tuple[Reach, ...]:
    """Return the reach of the newest epochs; none where the registry does not tell it."""
    try:
        return (await client.log()).reach
    except TreatyError:
        return ()  # the topics are the answer; this is one more line


def _able(reach: Reach) -> str:
    able, pairs = (parse_decimal(part, limit=_MAX_SUM) for part in (reach.able, reach.pairs))
    return share(able, pairs)
