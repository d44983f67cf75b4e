"""`treaty grant`, `ungrant`, `grants`: let others publish in the own namespace. `treaty vouch`, `vouches`: vouch for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Column, Table

from treaty_client.protocols.fetch import Fetcher
from treaty_client.registries.replies import Grants, Vouches
from treaty_client.statements.grant import LoggedGrant
from treaty_client.statements.grant import grant as make_grant
from treaty_client.statements.vote import Vouched
from treaty_client.statements.vote import vouch as vouch_for
from treaty_consensus.printable import escaped

from .context import Options, run
from .delivery import shown
from .standing import own_weightless
from .values import AgentDid, DidText, Via


def grant(did: DidText, /, *, options: Options = Options()) -> None:
    """Let another agent publish in your namespace, and vote for it. The grant is public.

    It ends when you take it back (`treaty ungrant`), and when one of the two domains gets another owner.

    Parameters
    ----------
    did
        The agent that may publish.
    """
    _make(did, False, options)


def ungrant(did: DidText, /, *, options: Options = Options()) -> None:
    """Take a grant back: the agent publishes nothing more in your namespace. Its earlier protocols stay, with a warning.

    Parameters
    ----------
    did
        The agent that had the grant.
    """
    _make(did, True, options)


def grants(did: AgentDid = None, /, *, options: Options = Options()) -> None:
    """List the grants in force of an agent's namespace, and to the agent, newest first, by its registry's account."""
    owner = did or options.identity().did

    async def work() -> Grants:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            return await fetcher.client(options.trusted().name.origin).grants(owner)

    entries = run(work()).grants
    table = Table(Column("namespace", overflow="fold"), Column("to", overflow="fold"), "leaf", box=None)
    for entry in entries:
        table.add_row(escape(escaped(entry.namespace)), escape(escaped(entry.to)), str(entry.index))
    rows = [
        {"namespace": entry.namespace, "to": entry.to, "by": entry.by, "statement": entry.statement, "index": entry.index}
        for entry in entries
    ]
    options.output.result({"did": owner, "grants": rows}, table if rows else f"No grant by or to {escape(owner)} is in force.")


def _make(did: str, withdrawn: bool, options: Options) -> None:
    async def work() -> LoggedGrant:
        identity = options.identity()
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            origin = options.trusted().name.origin
            client, head, now = fetcher.client(origin), fetcher.head(origin), int(time.time())
            return await make_grant(client, head, identity, did, withdrawn=withdrawn, origin=origin, now=now)

    done = run(work())
    namespace = done.grant.namespace
    value = {
        "namespace": namespace,
        "to": did,
        "withdrawn": withdrawn,
        "statement": done.statement.id,
        "index": done.receipt.index,
    }
    effect_text = "may no longer publish" if withdrawn else "may publish"
    head = f"[green]✓[/] [bold]{escape(did)}[/] {effect_text} in {escape(namespace)}."
    options.output.result(value, head, f"leaf {done.receipt.index}")


def vouch(did: DidText, /, *, via: Via = (), options: Options = Options()) -> None:
    """Vouch for another agent. Trust flows only along vouches. A vouch is public for ever.

    It counts after both agents agreed in a few different epochs. It fades: vouch again to renew it. `treaty withdraw vouch` takes
    it back.

    Parameters
    ----------
    did
        The agent to vouch for.
    """
    make_vouch(did, withdrawn=False, via=via, options=options)


def make_vouch(did: str, *, withdrawn: bool, via: Sequence[str], options: Options) -> None:
    """Vouch for an agent, or withdraw the vouch."""

    async def work() -> tuple[Vouched, list[str]]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            origin = options.trusted().name.origin
            client, head = fetcher.client(origin), fetcher.head(origin)
            now = int(time.time())
            identity = options.identity()
            stamping = fetcher.stamping(origin, via)
            vouched = await vouch_for(client, head, identity, did, withdrawn=withdrawn, origin=origin, now=now, stamping=stamping)
            return vouched, await own_weightless(client, identity.did)

    done, notes = run(work())
    sent, lines = shown(done.delivery, done.epoch)
    value = {
        "to": did,
        "withdrawn": withdrawn,
        "statement": done.statement.id,
        "seq": done.vouch.seq,
        **sent,
        "weightless": bool(notes),
    }
    sentence = "You no longer vouch for" if withdrawn else "You vouch for"
    head = f"[green]✓[/] {sentence} [bold]{escape(did)}[/]"
    options.output.result(value, head, *lines, *notes)


def vouches(did: AgentDid = None, /, *, options: Options = Options()) -> None:
    """List the agents that an agent vouches for, newest first, by its registry's account."""
    author = did or options.identity().did

    async def work() -> Vouches:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            return await fetcher.client(options.trusted().name.origin).vouches(author)

    page = run(work())
    table = Table("for", "since epoch", "leaf", box=None)
    for entry in page.vouches:
        table.add_row(escape(entry.to), str(entry.epoch), str(entry.index))
    rows = [{"to": entry.to, "epoch": entry.epoch, "statement": entry.statement, "index": entry.index} for entry in page.vouches]
    none = f"{escape(author)} vouches for no agent."
    options.output.result({"did": author, "epoch": page.epoch, "vouches": rows}, table if rows else none)
