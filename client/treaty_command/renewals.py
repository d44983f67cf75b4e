"""`treaty vote --check`: tell the owner of votes whether its use renews them."""

from __future__ import annotations

import msgspec
from rich.markup import escape

from treaty_client.audit.renewal import Renewal, left, renewal, sentences
from treaty_client.protocols.fetch import Fetcher
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.replies import VotingInfo
from treaty_consensus.codes import TopicCode
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import escaped
from treaty_consensus.protocol import is_topic

from .context import Options, run
from .standing import own_weightless


def check_votes(topic: str, options: Options) -> None:
    """Say whether the use of this agent renews its votes. `topic`: one, or "" for all with a ballot."""
    if topic and not is_topic(topic):
        raise Refused(TopicCode.NAME, f"{topic[:120]!r} is not a topic.", fix="A topic is lower-case names joined by '/'.")

    async def work() -> tuple[VotingInfo, list[str]]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            client, did = fetcher.client(options.trusted().name.origin), options.identity().did
            return await client.voting(did, topic), await own_weightless(client, did)

    voting, notes = run(work())
    renewals = [(vote, renewal(vote, voting)) for vote in voting.votes]
    value = msgspec.to_builtins(voting)
    for entry, (vote, case) in zip(value["votes"], renewals, strict=True):
        entry |= {"case": case.value, "left_percent": left(vote, voting), "advice": [*sentences(vote, voting)]}
    lines = []
    for vote, case in renewals:
        mark = "[green]✓[/]" if case is Renewal.RENEWED else "[yellow]•[/]"
        lines.append(f"{mark} [bold]{escape(escaped(vote.topic))}[/]: {case.value}")
        lines += [f"    {escape(sentence)}" for sentence in sentences(vote, voting)]
    options.output.result(value, *(lines or ["You have no ballot. Vote: treaty vote TOPIC URI none"]), *notes)


async def keeping(client: RegistryClient, topic: str) -> list[str]:
    """Return how long a new ballot counts, as lines to show."""
    try:
        is_open = (await client.log()).electorate == "open"
    except TreatyError:
        is_open = True  # the ballot is logged, and this is advice only
    fading = (
        "A new ranking counts half at first. The vote fades: half of it is gone after `horizon_epochs` epochs, all after eight "
        "times as many. Using what you voted for renews it; use of something else that begins later replaces it."
    )
    sentence = fading if is_open else "In a development electorate a vote does not fade, and use that began later replaces it."
    return [sentence, f"See later whether your use renews the vote: treaty vote {escape(topic)} --check"]
