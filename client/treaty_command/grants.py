"""`treaty grant`, `ungrant`, `grants`: let other agents publish in the own namespace."""

from __future__ import annotations

import time

from rich.markup import escape
from rich.table import Column, Table

from treaty_client.protocols.fetch import Fetcher
from treaty_client.registries.replies import Grants
from treaty_client.statements.grant import LoggedGrant
from treaty_client.statements.grant import grant as make_grant
from treaty_consensus.printable import escaped

from .context import Options, run


def grant(did: str, /, *, options: Options = Options()) -> None:
    """Let another agent publish in your namespace, and vote for it. The grant is public.

    It ends when you take it back (`treaty ungrant`), and when one of the two domains gets another owner.

    Parameters
    ----------
    did
        The agent that may publish.
    """
    _make(did, False, options)


def ungrant(did: str, /, *, options: Options = Options()) -> None:
    """Take a grant back: the agent publishes nothing more in your namespace. Its earlier protocols stay, with a warning.

    Parameters
    ----------
    did
        The agent that had the grant.
    """
    _make(did, True, options)


def grants(did: str | None = None, /, *, options: Options = Options()) -> None:
    """List the grants in force of an agent's namespace, and to the agent, newest first, by its registry's account.

    Parameters
    ----------
    did
        The agent. Default: this one.
    """
    asked = did or options.identity().did

    async def work() -> Grants:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            return await fetcher.client(options.trusted().name.origin).grants(asked)

    found = run(work()).grants
    table = Table(Column("namespace", overflow="fold"), Column("to", overflow="fold"), "leaf", box=None)
    for made in found:
        table.add_row(escape(escaped(made.namespace)), escape(escaped(made.to)), str(made.index))
    rows = [
        {"namespace": made.namespace, "to": made.to, "by": made.by, "statement": made.statement, "index": made.index}
        for made in found
    ]
    options.output.result({"did": asked, "grants": rows}, table if rows else f"No grant by or to {escape(asked)} is in force.")


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
    said = "may no longer publish" if withdrawn else "may publish"
    head = f"[green]✓[/] [bold]{escape(did)}[/] {said} in {escape(namespace)}."
    options.output.result(value, head, f"leaf {done.receipt.index}")
