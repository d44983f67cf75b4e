"""`treaty mcp`: tools for hosts of MCP, and a guard before the servers of others."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.markup import escape

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, NotFound
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import RpcCode
from treaty_io.extras import naming_extras
from treaty_mcp.guard.pins import Pin

from .context import Options, run
from .info import read_package, read_published
from .values import Uri

if TYPE_CHECKING:
    from treaty_mcp.guard.published import PublishedInterface
    from treaty_mcp.guard.tool_list import ToolChange, ToolList
    from treaty_mcp.guard.upstream import EndpointUpstream, ProcessUpstream

app = App(name="mcp", help="Serve tools to a host of MCP, and guard the servers of others.", result_action="return_value")
Target = Annotated[str, Parameter(allow_leading_hyphen=True)]


@app.default
def serve(
    *,
    operations: tuple[str, ...] = (),
    vote: Annotated[bool, Parameter()] = False,
    publish: tuple[Path, ...] = (),
    loopback: Annotated[bool, Parameter()] = False,
    http: int | None = None,
    options: Options = Options(),
) -> None:
    """Serve the tools of this home to a host of MCP, on the pipes of this process: search, resolve, read, verify, topic,
    discover, operations and call.

    Parameters
    ----------
    operations
        URI=ADDRESS: offer each operation of a protocol as a tool of its own, called at the agent there. May be repeated.
    vote
        Offer a tool that votes. The user of the host is asked each time, and a host that cannot ask is refused.
    publish
        Offer a tool that publishes this folder, after the same question. May be repeated.
    loopback
        Let the tool `call` reach agents of this machine.
    http
        Serve over HTTP at this port of 127.0.0.1, at /mcp, instead of the pipes.
    """
    with naming_extras("mcp"):
        from treaty_mcp.server.home import HomeDoor, home_server, serve_http

    door = HomeDoor(operations, vote, publish, loopback)

    async def work() -> None:
        async with home_server(options.home, options.trusted().name.origin, options.policy(), options.network, door) as server:
            await (server.serve_pipes() if http is None else serve_http(server, http))

    run(work())


@app.command
def install(
    host: Literal["claude-code", "claude-desktop", "cursor", "gemini", "vscode"],
    /,
    *arguments: Target,
    name: str = "treaty",
    guard: str | None = None,
    folder: Path = Path(),
    uvx: Annotated[bool, Parameter(negative="")] = False,
    options: Options = Options(),
) -> None:
    """Write this home's server into the configuration of a host, or put a guard before a server that the host has.

    Parameters
    ----------
    host
        The host of MCP.
    arguments
        After --, the options of `treaty mcp` with which the host starts it.
    name
        The name of the server in the configuration.
    guard
        The name of a server that the host has: the host starts it behind `treaty mcp guard` from now on.
    folder
        The folder of the project, for claude-code and vscode.
    uvx
        Let the host start Treaty by uvx, from the package index of the trusted registry, and not this program. So it is where
        uvx runs this.
    """
    from treaty_mcp.server.hosts import HOSTS, HostFile, Launcher, is_ephemeral

    file = HostFile(HOSTS[host], folder if HOSTS[host].is_of_project else Path.home())
    by_uvx, home = uvx or is_ephemeral(), options.home.resolve()
    launcher = Launcher.uvx(options.trusted().name.base_url) if by_uvx else Launcher(str(Path(sys.argv[0]).resolve()))
    if guard is not None:
        file.guard(guard, launcher, home)
    else:
        file.add(name, launcher, ["mcp", "--home", str(home), *arguments])
    options.output.result({"file": str(file.path), "server": guard or name}, f"[green]✓[/] {escape(str(file.path))}")


@app.command
def guard(*target: Target, protocol: Uri | None = None, options: Options = Options()) -> None:
    """Stand between a host and an MCP server, on the pipes of this process, and block each tool that its owner has not accepted.

    The tools are pinned at first sight. A changed, renamed or new tool is left out, and its differences are written to standard
    error, until `treaty mcp accept` takes them.

    Parameters
    ----------
    target
        The command of the server after --, or its URL.
    protocol
        The URI of a published protocol that `treaty import mcp` made: at first sight only tools that are its operations are
        accepted.
    """
    from treaty_mcp.guard.guard import Guard
    from treaty_mcp.guard.host import HostPipes

    server = _server(target)

    async def work() -> None:
        published = None if protocol is None else await _published(protocol, options)
        pipes = HostPipes()
        await Guard(_upstream(target, options), Pin(options.home, server), _report(server), published).run(
            pipes.messages(), pipes.send
        )

    run(work())


@app.command
def accept(*target: Target, digest: str = "", options: Options = Options()) -> None:
    """Show the differences of the tools that a guard blocks; with their digest, accept them.

    Parameters
    ----------
    target
        The command of the server after --, or its URL, as the guard has it.
    digest
        The digest that was shown, or its beginning.
    """
    server = _server(target)
    pin = Pin(options.home, server)
    accepted, waiting = pin.accepted, pin.waiting
    if accepted is None or waiting is None:
        raise NotFound(RpcCode.NOTHING, "The guard blocks no tool of this server.")
    changes = [str(change) for change in accepted.changes(waiting)]
    if digest:
        pin.accept(digest)
    value = {"server": server, "changes": changes, "digest": waiting.digest, "accepted": bool(digest)}
    said = "[green]✓[/] accepted" if digest else f"Accept with: {escape(_command(server, waiting.digest))}"
    options.output.result(value, *map(escape, changes), said)


def _server(target: tuple[str, ...]) -> str:
    if not target:
        raise Malformed(SystemCode.USAGE, "The server is missing.", fix="treaty mcp guard -- python server.py")
    return target[0] if _is_url(target) else shlex.join(target)


def _is_url(target: tuple[str, ...]) -> bool:
    return len(target) == 1 and target[0].startswith(("https://", "http://"))


def _command(server: str, digest: str) -> str:
    return f"treaty mcp accept --digest {digest[:16]} -- {server}"


def _upstream(target: tuple[str, ...], options: Options) -> ProcessUpstream | EndpointUpstream:
    from treaty_agent.rpc.exchange import RpcExchange
    from treaty_mcp.guard.upstream import EndpointUpstream, ProcessUpstream

    if _is_url(target):
        return EndpointUpstream(target[0], RpcExchange(options.network, loopback=True))  # the owner names the address
    return ProcessUpstream(target)


def _report(server: str) -> Any:
    def report(changes: list[ToolChange], found: ToolList) -> None:
        # Standard error is the log of the host; standard output has the messages.
        lines = [f"Blocked: {server} has other tools than its owner accepted.", *map(str, changes)]
        print("\n".join(lines), f"\nAccept with: {_command(server, found.digest)}", file=sys.stderr, flush=True)

    return report


async def _published(uri: str, options: Options) -> PublishedInterface:
    from treaty_client.protocols.fetch import Fetcher
    from treaty_mcp.guard.published import PublishedInterface

    async with Fetcher(options.home, options.policy(), options.network) as fetcher:
        parsed = parse_protocol_uri(uri)
        answer, _ = await read_published(fetcher, parsed, options)
        package = await read_package(fetcher, parsed, answer)
    if package is None:
        raise NotFound(RpcCode.NOTHING, f"{uri} has no handler of its publisher, so it has no operations.")
    return PublishedInterface(package.manifest)
