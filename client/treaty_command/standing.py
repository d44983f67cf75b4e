"""`treaty standing`, `treaty speakers`: show the standing of an agent, and the speakers of a protocol."""

from __future__ import annotations

import re

import msgspec
from rich.markup import escape
from rich.table import Table

from treaty_client.protocols.fetch import Fetcher
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.replies import Speakers, Standing
from treaty_consensus.canonical import parse_decimal
from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.printable import escaped, short

from .context import Options, run
from .elected import names_topic
from .values import AgentDid, Name

# The unit of standing in the log: a full credit is 2^32 (election.md, section 9).
_FULL = 2**32
_MAX_AMOUNT = 2**63 - 1
_MAX_PAGES = 1_000
_HASH = re.compile(r"[0-9a-f]{64}")


def standing(did: AgentDid = None, /, *, options: Options = Options()) -> None:
    """Show the standing of an agent and explain all its credits, newest first, by its registry's account.

    An agent earns standing by reports that independent pairs confirm. Standing fades. It enlarges quotas and ranks speakers; it
    has no weight in an election. `treaty audit` recomputes it."""
    subject = did or options.identity().did

    async def work() -> Standing:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            return await _whole(fetcher.client(options.trusted().name.origin), subject)

    page = run(work())
    table = Table("now", "earned", "epoch", "report", "topic", "document", "why", box=None)
    for credit in page.credits:
        amounts = _shown(credit.now), _shown(credit.amount)
        about = _text(credit.topic), short(_text(credit.hash)), _text(credit.why)
        table.add_row(*amounts, str(credit.epoch), f"leaf {credit.index}", *about)
    principal = f", speaking for {_text(page.principal)}" if page.principal not in (None, subject) else ""
    when = "no epoch is decided yet" if page.epoch is None else f"at the end of epoch {page.epoch}"
    head = f"[bold]{_shown(page.standing)}[/] full credits  {_text(subject)}{principal}  [dim]{when}[/]"
    note = weightless(page)
    notes = [note] if note else []
    options.output.result(msgspec.to_builtins(page), head, *notes, *([table] if page.credits else ["No credits."]))


def weightless(standing: Standing) -> str | None:
    """Return why the statements of an agent weigh nothing at present, and how to change that; None where they weigh something, or
    where that is not known before the first decision.

    By its registry's account, so no decision may rest on it.
    """
    if parse_decimal(standing.weight, limit=_MAX_AMOUNT):
        return None
    if standing.did.startswith("did:key:") and standing.principal in (None, standing.did):
        return (
            f"[yellow]•[/] {_text(standing.did)} weighs nothing: a did:key costs nothing, so it has no vote. Take part with the "
            "DID of a domain (treaty identity new DOMAIN), or, in an open electorate, let a domain grant its namespace "
            "to this DID."
        )
    if standing.epoch is None:
        return None  # unknown: the weights of domains follow from the first decision
    name = _text(standing.principal or standing.did)
    if standing.electorate == "open":
        return (
            f"[yellow]•[/] {name} weighs nothing: no trust reaches it. A member with trust has to vouch for it (treaty vouch "
            f"{_text(standing.did)}), and a vouch counts after both agreed in reports of several epochs. Only the root DID of a "
            "registrable domain, or a DID with its grant, can have weight. See docs/guides/electorate.md."
        )
    return (
        f"[yellow]•[/] {name} weighs nothing at the end of epoch {standing.epoch}: it had no logged identity then, or it "
        "contradicted itself in two reports. A DID with a domain weighs from the epoch of its first statement on."
    )


async def own_weightless(client: RegistryClient, did: str) -> list[str]:
    """Return `weightless` of an agent that just made a statement, as lines to show; none where the registry does not answer."""
    try:
        note = weightless(await client.standing(did))
    except TreatyError:
        return []  # the statement is logged; this is advice only
    return [note] if note else []


def speakers(name: Name, /, *, cursor: str = "", options: Options = Options()) -> None:
    """List the speakers of a protocol: higher standing first, then newer reports.

    The list comes from co-signed reports, which both sides allowed. An agent that is not listed may still speak the protocol.

    Parameters
    ----------
    name
        A document's hash, a protocol's URI or another name of it, or a topic such as commerce/product-info.
    cursor
        The `next` of the page before.
    """

    async def work() -> Speakers:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            client = fetcher.client(options.trusted().name.origin)
            if names_topic(name):
                return await client.speakers(topic=name, cursor=cursor)
            return await client.speakers(document=await _hash_of(client, name), cursor=cursor)

    page = run(work())
    table = Table("agent", "standing", "reports", "newest", "topic", "document", box=None)
    for speaker in page.speakers:
        newest = f"epoch {speaker.epoch}, leaf {speaker.index}"
        about = _text(speaker.topic), short(_text(speaker.hash))
        table.add_row(_text(speaker.did), _shown(speaker.standing), str(speaker.reports), newest, *about)
    parts = [table] if page.speakers else [f"No agent has reported {_text(name)} here."]
    more = [f"More: treaty speakers {_text(name)} --cursor {_text(page.next)}"] if page.next else []
    options.output.result(msgspec.to_builtins(page), *parts, *more)


async def _whole(client: RegistryClient, did: str) -> Standing:
    """Return the standing with all pages of its credits."""
    page = await client.standing(did)
    pages = [page]
    # The cap ends a list that a faulty registry never ends.
    while page.next and len(pages) < _MAX_PAGES:
        page = await client.standing(did, cursor=page.next)
        pages.append(page)
    return msgspec.structs.replace(pages[0], credits=tuple(credit for page in pages for credit in page.credits), next=page.next)


async def _hash_of(client: RegistryClient, name: str) -> str:
    if _HASH.fullmatch(name):
        return name
    for match in await client.resolve(name):
        if match.verified:
            return match.hash
    raise NotFound(ProtocolCode.UNKNOWN, f"The registry knows no protocol with the name {name[:200]}.")


def _shown(amount: str) -> str:
    return f"{parse_decimal(amount, limit=_MAX_AMOUNT) / _FULL:.3f}"


def _text(foreign: str) -> str:
    return escape(escaped(foreign))
