"""The command line of a registry: `treaty-registry`.

`decide`, `parameters` and `rebuild` ask the server that runs on the data directory, through its control socket; without one they
do the work themselves. Every command takes `--json`. A refusal is printed with its code and its fix, and the exit status is 1;
`audit` also exits with 1 when it finds something wrong. A wrong command line is status 2.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import structlog
import uvloop
from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from treaty_client.network.hosts import Network
from treaty_consensus.errors import NotFound, TreatyError, Unavailable
from treaty_consensus.log.note import VerifierKey

from .console import LogLines, complain, show
from .data_directory import open_operator, running_database
from .listening import Listening
from .log.fence import read_fence
from .networks import TrustedProxies
from .operator import maintenance
from .operator.control import NOT_RUNNING, ask
from .operator.decisions import Decided
from .operator.parameters import Announced, Constitution, Draft, Stated, read_draft
from .registry import Registry
from .server import serve as serve_http
from .settings import Quotas, Settings, WitnessName
from .storage.blobs import BlobStore
from .storage.postgres import connect, lead
from .storage.postgres import migrate as migrate_database
from .witness.cosigner import Cosigner
from .witness.server import serve as serve_witness

_T = TypeVar("_T")

app = App(
    name="treaty-registry",
    help="Run a registry: the log of what agents publish, report, vote and agree on.",
    version_flags=["--version"],
    result_action="return_value",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Options of every command.

    Parameters
    ----------
    data
        The data directory; made by the first start. It holds the log's keys: back it up, keep it secret.
    database
        The URL of a PostgreSQL server. Default: an embedded one, in the data directory.
    blobs
        The URL of an object store for documents and wheels (s3://BUCKET/PATH, …). Default: a folder in the data directory.
    json
        Print one JSON value instead of text.
    """

    data: Annotated[Path, Parameter(env_var="TREATY_REGISTRY_DATA")] = field(
        default_factory=lambda: Path.home() / ".treaty-registry"
    )
    database: Annotated[str | None, Parameter(env_var="TREATY_DATABASE_URL")] = None
    blobs: Annotated[str | None, Parameter(env_var="TREATY_BLOBS_URL")] = None
    json: Annotated[bool, Parameter(negative="")] = False

    def show(self, value: dict[str, Any], *renderables: Any) -> None:
        """Print the outcome of a command."""
        show(value, *renderables, as_json=self.json)

    @property
    def settings(self) -> Settings:
        """The settings for a log that exists."""
        return Settings(data=self.data, database=self.database or None, blobs=self.blobs or None)


@app.command
def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    origin: str | None = None,
    base_url: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    resolve: tuple[str, ...] = (),
    ca: Path | None = None,
    quota: float = 1,
    trusted_proxy: tuple[str, ...] = (),
    parameters: Path | None = None,
    witness: tuple[str, ...] = (),
    options: Options = Options(),
) -> None:
    """Serve the registry; in an empty data directory, make a new log first.

    Parameters
    ----------
    host
        The address to listen on.
    port
        The port to listen on.
    origin
        The name of a new log, for ever: a host, with a port where it is not the default. Default: localhost:PORT.
    base_url
        Where clients reach this registry, if not at https://ORIGIN (for a localhost origin: at the address listened on).
    tls_cert
        A PEM file with the certificate chain, to serve https.
    tls_key
        A PEM file with its private key.
    resolve
        HOST=IP:PORT: fetch the DID documents of this host there. May be repeated.
    ca
        A PEM file of certificate authorities to accept for them besides the public ones.
    quota
        Multiply every quota by this factor.
    trusted_proxy
        The address or network of a reverse proxy whose X-Forwarded-For names the sender. May be repeated.
    parameters
        A TOML file with the constants of a new log's election. Default: a development electorate.
    witness
        URL#KEY: have this witness (C2SP tlog-witness) cosign the log. May be repeated.
    """
    log_to_stderr()
    network = Network.parse(resolve, ca)
    settings = replace(
        options.settings,
        host=host,
        port=port,
        origin=origin or _origin_of_new(options.settings, port),
        base_url=base_url,
        tls_cert=tls_cert,
        tls_key=tls_key,
        resolve=network.resolve,
        ca=ca,
        quotas=Quotas().times(quota),
        proxies=TrustedProxies.parse(trusted_proxy),
        parameters=parameters,
        witnesses=tuple(map(WitnessName.parse, witness)),
    )
    run(serve_http(settings, lambda registry: _announce(registry, options)))


@app.command
def init(*, origin: str, parameters: Path | None = None, options: Options = Options()) -> None:
    """Make a new log: its keys, its database, its first two leaves.

    Parameters
    ----------
    origin
        The log's name, for ever: a host, with a port where it is not the default.
    parameters
        A TOML file with the constants of its election. Default: a development electorate.
    """

    async def make() -> dict[str, object]:
        async with Registry.open(replace(options.settings, origin=origin, parameters=parameters)) as registry:
            return _description(registry)

    made = run(make())
    options.show(
        made,
        f"[green]✓[/] The log [bold]{escape(origin)}[/] is in {escape(str(options.data))}; keep that directory safe and secret.",
        f"  key: {escape(str(made['key']))}",
        "  Serve it: treaty-registry serve",
    )


@app.command
def migrate(*, options: Options = Options()) -> None:
    """Bring the database's tables up to this release. `serve` does so too."""

    async def apply() -> list[str]:
        async with running_database(options.settings) as url, connect(url) as connection:
            return await migrate_database(connection)

    applied = run(apply())
    options.show({"applied": applied}, f"[green]✓[/] {escape(', '.join(applied)) or 'Nothing to do.'}")


@app.command
def decide(*, options: Options = Options()) -> None:
    """Close the open epoch of a development electorate: decide every topic with a report or a ballot.

    In an open electorate epochs close by themselves; before its time this says when that is.
    """

    async def close() -> list[Decided]:
        async with Registry.open(options.settings) as registry:
            return await registry.decide()

    decided = run(_ask_or(options.settings, "decide", list[Decided], close))
    table = Table("topic", "epoch", "consensus", "states", "leaf", box=None)
    for item in decided:
        body = item.decision
        states = ", ".join(f"{document[:12]}… {state}" for document, state in body.states)
        table.add_row(
            escape(body.topic),
            str(body.epoch),
            f"{body.consensus[:12]}…" if body.consensus else "none",
            escape(states),
            str(item.index),
        )
    nothing = "No topic has a report or a ballot; the epoch stays open."
    options.show({"decisions": msgspec.to_builtins(decided)}, table if decided else nothing)


@app.command
def parameters(file: Path | None = None, /, *, options: Options = Options()) -> None:
    """Show the constants of the election; with a file, announce others, which hold from the next epoch on.

    Parameters
    ----------
    file
        A TOML file that states them.
    """
    if file is not None:
        _announce_parameters(read_draft(file), options)
        return

    async def read() -> Constitution:
        async with Registry.open(options.settings) as registry:
            return await registry.constitution()

    found = run(_ask_or(options.settings, "parameters", Constitution, read))
    closes = "by hand" if found.closes is None else f"{datetime.fromtimestamp(found.closes, UTC):%Y-%m-%d %H:%M:%S} UTC"
    lines: list[Any] = [f"Epoch {found.epoch} is open; it closes {closes}.", *_shown("In force", found.in_force)]
    if found.announced is not None:
        lines += _shown(f"From epoch {found.epoch + 1} on", found.announced)
    options.show(msgspec.to_builtins(found), *lines)


@app.command
def witness(
    *,
    log: tuple[str, ...],
    data: Annotated[Path, Parameter(env_var="TREATY_WITNESS_DATA")],
    host: str = "127.0.0.1",
    port: int = 8081,
    name: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Witness logs: cosign what extends what was cosigned before, and nothing else (C2SP tlog-witness).

    Parameters
    ----------
    log
        The verifier key of a log to witness. May be repeated.
    data
        The witness's own directory, made by the first start: its key, and what it has cosigned. Never restore an old copy.
    host
        The address to listen on.
    port
        The port to listen on.
    name
        The name of a new witness, for ever, such as witness.example/w1. Default: localhost:PORT/witness.
    tls_cert
        A PEM file with the certificate chain, to serve https.
    tls_key
        A PEM file with its private key.
    json
        Print one JSON value instead of text.
    """
    log_to_stderr()
    named = name if name or (data / "witness.key").exists() else f"localhost:{port}/witness"
    listening = Listening(host, port, tls_cert, tls_key)

    def announce(cosigner: Cosigner) -> None:
        key, logs = str(cosigner.key), {origin: cosigner.latest(origin) for origin in cosigner.logs}
        sizes = {origin: latest.checkpoint.size if latest else 0 for origin, latest in logs.items()}
        url = f"{'https' if tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        show(
            {"key": key, "url": url, "logs": sizes},
            f"[green]✓[/] The witness [bold]{escape(cosigner.key.name)}[/] listens at {escape(url)}.",
            f"  key: {escape(key)}",
            *(f"  {escape(origin)}: {size} leaves cosigned so far" for origin, size in sizes.items()),
            f"  Registries ask it with: treaty-registry serve --witness '{escape(f'{url}#{key}')}'",
            as_json=json,
        )

    run(serve_witness(data, [VerifierKey.parse(text) for text in log], named, listening, announce))


@app.command
def accept_clock(*, options: Options = Options()) -> None:
    """Let the running registry sign again after its clock has leapt ahead. First make sure that the clock is right."""
    now = run(ask(options.settings.control, "accept-clock"))
    options.show({"now": now}, f"[green]✓[/] The registry takes it to be {escape(str(now))}.")


@app.command
def rebuild(*, options: Options = Options()) -> None:
    """Derive facts, tiles and catalogue from the log again, put right what differs, and say so."""

    async def derive() -> maintenance.Rebuilt:
        return await _rebuild_alone(options.settings)

    rebuilt = run(_ask_or(options.settings, "rebuild", maintenance.Rebuilt, derive))
    lines = [f"{rows} rows of {table} differed and were put right." for table, rows in rebuilt.tables.items() if rows]
    lines = lines or ["Every table is what the log says."]
    options.show(msgspec.to_builtins(rebuilt), f"[green]✓[/] {rebuilt.size} leaves.", *map(escape, lines))


@app.command
def audit(*, options: Options = Options()) -> int:
    """Check everything that is stored: every signature, rule and decision, every table, tile and blob, the head and the fence."""

    async def check() -> maintenance.Audited:
        settings = options.settings
        operator = await asyncio.to_thread(open_operator, settings)
        record = await asyncio.to_thread(read_fence, settings.fence, operator.origin)
        blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
        async with running_database(settings) as url, connect(url) as connection, connect(url) as reader:
            return await maintenance.audit(connection, reader, blobs, record)

    found = run(check())
    summary = f"{found.size} leaves, {found.epochs} epochs decided, {found.blobs} blobs; root {found.root.hex()}"
    lines = [f"[red]✗[/] {escape(finding)}" for finding in found.findings] or [f"[green]✓[/] {summary}"]
    options.show(msgspec.to_builtins(found), *lines)
    return 1 if found.findings else 0


def log_to_stderr() -> None:
    """Send the log of this process to standard error: one JSON object a line, or text on a terminal."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if terminal else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: LogLines(),
        cache_logger_on_first_use=True,
    )


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine to its end."""
    return uvloop.run(work)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(app(tokens) or 0)
    except TreatyError as error:
        complain(error, as_json="--json" in tokens)
        sys.exit(1)
    except OSError as error:
        failure = Unavailable("system.file", f"{error.strerror or error}: {error.filename or 'a system call'}.")
        complain(failure, as_json="--json" in tokens)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _announce_parameters(draft: Draft, options: Options) -> None:
    async def announce() -> Announced:
        async with Registry.open(options.settings) as registry:
            return await registry.announce(draft)

    done = run(_ask_or(options.settings, "announce", Announced, announce, draft))
    electorate = f"{draft.parameters.electorate} electorate"
    line = f"[green]✓[/] Announced: from epoch [bold]{done.epoch}[/] on {electorate} (leaf {done.index})."
    options.show(msgspec.to_builtins(done), line)


def _shown(heading: str, stated: Stated) -> list[Any]:
    table = Table("", "", box=None, show_header=False)
    for name, value in msgspec.to_builtins(stated.parameters).items():
        for inner, item in value.items() if isinstance(value, dict) else (("", value),):
            table.add_row(f"  {name}{'.' if inner else ''}{inner}", escape(_text(item)))
    return [f"[bold]{heading}[/] (leaf {stated.index}, {stated.statement})", table]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


async def _ask_or(settings: Settings, command: str, kind: type[_T], alone: Callable[[], Awaitable[_T]], *arguments: object) -> _T:
    """The result of a command of the running server, or what `alone` does when none runs."""
    try:
        return msgspec.convert(await ask(settings.control, command, *arguments), kind)
    except NotFound as error:
        if error.code != NOT_RUNNING:
            raise
    return await alone()


async def _rebuild_alone(settings: Settings) -> maintenance.Rebuilt:
    """Rebuild without a server, and without asking first whether the tables are fit to lead the log from."""
    blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
    async with running_database(settings) as url, connect(url) as reader:
        await migrate_database(reader)
        writer = await lead(url, patience=1)
        try:
            return await maintenance.rebuild(writer, reader, blobs)
        finally:
            await writer.close()


def _origin_of_new(settings: Settings, port: int) -> str | None:
    return None if settings.keys.exists() else f"localhost:{port}"


def _description(registry: Registry) -> dict[str, object]:
    return {
        "origin": registry.origin,
        "base_url": registry.base_url,
        "name": f"{registry.base_url}#{registry.log_key}",
        "key": str(registry.log_key),
        "size": registry.head.size,
    }


def _announce(registry: Registry, options: Options) -> None:
    where, name = escape(registry.base_url), escape(f"{registry.base_url}#{registry.log_key}")
    options.show(
        _description(registry),
        f"[green]✓[/] The registry [bold]{escape(registry.origin)}[/] listens at {where} ({registry.head.size} leaves).",
        f"  Trust it:  treaty trust add '{name}'",
        f"  Publish:   treaty publish DIR     Search: treaty search     Its log: {where}/checkpoint",
        "  Ctrl-C stops it.",
    )
