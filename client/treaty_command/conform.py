"""`treaty conform`: play the other roles of a protocol against a foreign agent, and print item by item which rules hold.

The items are beside their protocols: `treaty_aip.conform`, `treaty_handoff.conform`, `treaty_routing.conform`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from cyclopts import App
from rich.markup import escape
from rich.table import Table

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed
from treaty_consensus.printable import printable
from treaty_io.conformance import ItemResult, Items, PeerUnderTest
from treaty_io.identity import Identity

from .context import Options, run
from .failures import REFUSED

app = App(name="conform", help="Check a foreign agent against the rules of a protocol, in both roles.")
_SIGNS = {"holds": "[green]✓[/]", "fails": "[bold red]✗[/]", "not tried": "[dim]·[/]"}
_SHOWN = 300
"""Characters of the evidence in the table; the report of `--json` has all."""


class ConformanceReport:
    """The results of a run."""

    def __init__(self, protocol: str, options: Options) -> None:
        self._protocol, self._output = protocol, options.output
        self._results: list[tuple[str, ItemResult]] = []

    def tell(self, line: str) -> None:
        """Say on standard error what the foreign side has to know or do."""
        self._output.errors.print(f"[bold]→[/] {escape(line)}")

    async def check(self, role: str, items: Items, peer: PeerUnderTest, seconds: float) -> None:
        """Try the items of a role of the foreign agent, and show how far they are."""
        with self._output.errors.status(escape(f"{role}: {items.ids[0]}")) as status:
            async for result in items.check(peer, seconds=seconds):
                self._results.append((role, result))
                status.update(escape(f"{role}: {len(self._results)} items, {result.id}"))

    def end(self) -> None:
        """Print the report. Exit with 1 unless an item holds and none fails."""
        counts = Counter(result.outcome for _, result in self._results)
        value = {
            "protocol": self._protocol,
            "holds": counts["holds"],
            "fails": counts["fails"],
            "notTried": counts["not tried"],
            "items": [{"role": role, **dataclasses.asdict(result)} for role, result in self._results],
        }
        tables = {role: Table("", "item", "rule", title=role, title_justify="left", box=None) for role, _ in self._results}
        for role, result in self._results:
            rule = f"{escape(result.rule)} [dim]{escape(result.section)}[/]"
            tables[role].add_row(_SIGNS[result.outcome], escape(result.id), rule)
        summary = f"{counts['holds']} hold, {counts['fails']} fail, {counts['not tried']} were not tried."
        details = [line for _, result in self._results if result.outcome != "holds" for line in _details(result)]
        self._output.result(value, *tables.values(), *details, summary)
        if counts["fails"] or not counts["holds"]:
            sys.exit(REFUSED)


def _details(result: ItemResult) -> list[str]:
    if result.outcome == "not tried":
        return [f"[dim]· {escape(result.id)}: {escape(result.why)}[/]"]
    evidence = [f"  {name} {escape(text[:_SHOWN])}" for name, text in (("sent", result.sent), ("came", result.came)) if text]
    return [f"[bold red]✗ {escape(result.id)}[/] {escape(result.why)}", *evidence, f"  [bold]→[/] {escape(result.fix)}"]


def _identity(options: Options) -> Identity:
    return options.identity() if options.identity_file.exists() else Identity.create()


def _endpoint(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise Malformed(SystemCode.USAGE, f"{printable(text, 80)} is no HOST:PORT.", fix="Write for example 127.0.0.1:0")
    return host, int(port)


@app.command
def handoff(
    url: str = "",
    /,
    *,
    uri: str = "",
    broker: bool = False,
    recipient: str = "",
    sender: str = "",
    sample: Path | None = None,
    listen: str = "",
    seconds: float = 10,
    wait: float = 60,
    options: Options = Options(),
) -> None:
    """Check an agent that speaks handoff over HTTP, in a session or by queues; or with --listen one that hands messages off.

    Parameters
    ----------
    url
        The address of the agent: http, before /handoffs; ws for sessions; that of a RabbitMQ or PostgreSQL for its queue there.
    uri
        The URI of the protocol that the agent provides in a session.
    broker
        The agent is a broker: join it as its members.
    recipient
        The name of the agent: the recipient_id of the messages.
    sender
        The sender_id of the messages. Default: the DID of this home, or of an identity that is made for the run.
    sample
        A file with a handoff message that the agent can work on. Default: a TASK_TRANSFER.
    listen
        HOST:PORT where the agent shall hand a message to, as a sender; ws://HOST:PORT for a session. Port 0 chooses a free one.
    seconds
        The time for an item.
    wait
        The time for the agent to send to --listen.
    """
    from treaty_handoff.conform import RECEIVER, receiver_at
    from treaty_handoff.messages import read

    _need(url or listen, "Name the agent's URL, or --listen for an agent that sends.")
    _need(recipient or broker or not url, "Name the recipient_id of the agent: --recipient; or --broker for a broker.")
    identity, report = _identity(options), ConformanceReport("handoff", options)
    message = None if sample is None else read(sample.read_bytes())
    more: dict[str, Any] = {"uri": uri, "seconds": seconds, "sender": sender, "sample": message}

    async def work() -> None:
        if url and broker:
            await _check_broker(report, url, uri, seconds)
        elif url:
            report.tell(f"Admit the sender {sender or identity.did} with the DID {identity.did}, for all types.")
            async with receiver_at(options.network, url, recipient, identity, **more) as peer:
                await report.check("receiver", RECEIVER, peer, seconds)
        if listen:
            await _check_sender(report, identity, options, listen, wait, seconds)

    run(work())
    report.end()


async def _check_sender(
    report: ConformanceReport, identity: Identity, options: Options, listen: str, wait: float, seconds: float
) -> None:
    from treaty_handoff.conform import SENDER, Listener, SessionListener

    listener = (SessionListener if listen.startswith("ws://") else Listener)(identity, options.network)
    async with listener.serving(*_endpoint(listen.removeprefix("ws://"))) as url:
        report.tell(f"Hand one message to {url} within {wait:g} seconds. At first it has no answer, or 503.")
        await _within(wait, listener.delivery(0))
        await report.check("sender", SENDER, listener, max(seconds, wait))


async def _check_broker(report: ConformanceReport, url: str, uri: str, seconds: float) -> None:
    from treaty_handoff.conform_broker import BROKER, Members

    async with contextlib.AsyncExitStack() as stack:
        await report.check("broker", BROKER, Members(url, uri, stack), seconds)


@app.command
def aip(
    address: str = "",
    /,
    *,
    uri: str = "",
    agent: str = "",
    tool: str = "",
    argument: tuple[str, ...] = (),
    listen: str = "127.0.0.1:0",
    wait: float = 0,
    seconds: float = 10,
    options: Options = Options(),
) -> None:
    """Check a gateway, an agent or a tool of AIP; or, with --wait, a node that registers at a gateway of this command.

    Parameters
    ----------
    address
        HOST:PORT of the gateway, the agent or the tool over gRPC; ws for an agent or a tool in a session. Without it only --wait
        is tried.
    uri
        The URI of the protocol that the agent or the tool provides in a session.
    agent
        The id of the agent at the address.
    tool
        The id of the tool at the address.
    argument
        An argument for the tool: NAME=VALUE. May be repeated.
    listen
        HOST:PORT of the gateway, agent and tool of this command, which a foreign gateway calls. Port 0 chooses a free one.
    wait
        The time for a node to register at --listen, and to call the agent and the tool there, in seconds.
    seconds
        The time for an item.
    """
    from treaty_aip import conform, conform_desk  # gRPC is slow to import

    _need(address or wait, "Name the HOST:PORT of the peer, or --wait for a node that registers here.")
    report, (host, port) = ConformanceReport("aip", options), _endpoint(listen)
    arguments = {name: value for name, _, value in (each.partition("=") for each in argument)}

    async def work() -> None:
        async with conform_desk.Desk(host).serving(port) as desk:
            if address:
                async with conform.roles_at(address, desk, agent, tool, arguments, seconds, uri=uri) as roles:
                    _need(roles, "The peer is no gateway. Name the agent or the tool at the address: --agent, --tool")
                    for role, items, peer in roles:
                        await report.check(role, items, peer, seconds)
            if wait:
                report.tell(f"Register your node at {desk.address} within {wait:g} seconds.")
                report.tell(f"Let it begin a session with {conform_desk.DESK_AGENT}, and call the tool {conform_desk.DESK_TOOL}.")
                await _within(wait, desk.until(lambda: desk.agents or desk.tools))
                await report.check("node", conform.NODE, desk, max(seconds, 2 * conform_desk.HEARTBEAT))

    run(work())
    report.end()


@app.command
def routing(
    url: str = "",
    /,
    *,
    uri: str = "",
    listen: str = "",
    wait: float = 60,
    seconds: float = 10,
    options: Options = Options(),
) -> None:
    """Check an environment of message routing, or with --listen a member, in sessions of the Hello profile.

    Parameters
    ----------
    url
        The address of the environment, ws://HOST:PORT. Without it only --listen is tried.
    uri
        The URI of the protocol that the environment provides.
    listen
        HOST:PORT of an environment of this command, where a member shall join. Port 0 chooses a free one.
    wait
        The time for the member to join, in seconds.
    seconds
        The time for an item.
    """
    from treaty_routing.conform import ENVIRONMENT, MEMBER, Host, Members

    _need(url or listen, "Name the ws:// URL of the environment, or --listen for a member.")
    _need(uri or not url, "Name the URI under which the environment provides the protocol: --uri")
    report = ConformanceReport("message-routing", options)

    async def work() -> None:
        if url:
            report.tell("Let the environment run rounds while messages wait for its members.")
            async with contextlib.AsyncExitStack() as stack:
                await report.check("environment", ENVIRONMENT, Members(url, uri, stack), seconds)
        if listen:
            (host, port), environment = _endpoint(listen), Host()
            async with environment.serving(host, port) as bound:
                report.tell(
                    f"Let a member join at ws://{host}:{bound} within {wait:g} seconds, and publish for each of its news."
                )
                await _within(wait, environment.joined.wait())
                await report.check("member", MEMBER, environment, seconds)

    run(work())
    report.end()


def _need(condition: object, fault: str) -> None:
    if not condition:
        raise Malformed(SystemCode.USAGE, fault, fix="See `treaty conform --help`.")


async def _within(seconds: float, coming: Any) -> None:
    """Wait for the foreign side to begin. Its items tell if it does not."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await coming
