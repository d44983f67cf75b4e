"""`treaty discover`: find agents and the protocols that they list."""

from __future__ import annotations

import dataclasses

from rich.markup import escape
from rich.table import Column, Table

from ..network.discovery.client import Discoverer, Problem
from ..network.discovery.parsing import AgentDescription
from .context import Options, run
from .output import short


def discover(name: str, /, *, options: Options = Options()) -> None:
    """Find the agents of a domain, a DID or a URL, and the protocols that they list. Nothing is verified: use `treaty verify`.

    Parameters
    ----------
    name
        A domain (shop.example), a DID (did:wba:shop.example), or the https URL of an agent description or A2A card.
    """
    found = run(Discoverer(options.network).discover(name))
    value = {
        "agents": [dataclasses.asdict(agent) for agent in found.agents],
        "problems": [{"url": p.url, "code": p.error.code, "message": p.error.message} for p in found.problems],
    }
    lines = [line for agent in found.agents for line in _lines(agent)]
    options.output.result(value, *lines, *map(_warning, found.problems))


def _lines(agent: AgentDescription) -> list[object]:
    table = Table(Column("protocol", overflow="fold"), "version", "digest", box=None, padding=(0, 2))
    for protocol in agent.protocols:
        digest = short(protocol.digest) if protocol.digest else "–"
        table.add_row(escape(protocol.uri), escape(protocol.version or "–"), digest)
    where = ", ".join(map(escape, agent.addresses)) or "no address at which Hellos are answered"
    head = f"[bold]{escape(agent.name)}[/]  [dim]{escape(agent.did or 'no DID')}[/]"
    about = [f"  {escape(agent.description)}"] if agent.description else []
    return [head, *about, f"  {where}", table if agent.protocols else "  no protocols"]


def _warning(problem: Problem) -> str:
    return f"[yellow]![/] {escape(problem.url)}: {escape(problem.error.message)}  [dim]{problem.error.code}[/]"
