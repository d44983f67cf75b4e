"""Define the commands for an existing log: `decide`, `parameters`, `accept-clock`, `resume-signing`, `rebuild`, `audit` and
`promote`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Column, Table

from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.network.hosts import Network

from ..data_directory import check_log, open_operator, read_record, running_database
from ..mirroring.promotion import promote as promote_mirror
from ..operator import maintenance
from ..operator.control import ask
from ..operator.decisions import Decided
from ..operator.newest_head import SignedHeads
from ..operator.parameters import Announced, LoggedParameters, ParametersDraft, ParametersStatus, read_draft
from ..registry import Registry
from ..settings import Settings, WitnessName
from ..storage.blobs import BlobStore
from ..storage.postgres import connect, lead
from ..storage.postgres import migrate as migrate_database
from .options import Options, ask_or, run


def decide(*, options: Options = Options()) -> None:
    """Close the open epoch of a development electorate: decide every topic with a report or a ballot.

    In an open electorate epochs close by themselves; before that time this command shows when.
    """

    async def close() -> list[Decided]:
        async with Registry.open(options.settings) as registry:
            return await registry.decide()

    decided = run(ask_or(options.settings, "decide", list[Decided], close))
    # A name that is cut says nothing, so it goes on in the next line.
    table = Table(*(Column(title, overflow="fold") for title in ("topic", "epoch", "consensus", "states", "leaf")), box=None)
    for item in decided:
        body = item.decision
        names = {document: parse_protocol_uri(uri).label for document, uri in item.uris.items()}
        states = ", ".join(f"{names.get(document, document)} {state}" for document, state in body.states)
        table.add_row(
            escape(body.topic),
            str(body.epoch),
            escape(names.get(body.consensus, body.consensus)) if body.consensus else "none",
            escape(states),
            str(item.index),
        )
    nothing = (
        "Nothing to decide: no topic has a candidate, or a report or ballot of a DID that counts. The epoch stays open. "
        "A did:key counts for nothing; a DID with a domain counts: treaty identity new DOMAIN."
    )
    options.show({"decisions": msgspec.to_builtins(decided)}, table if decided else nothing)


def parameters(file: Path | None = None, /, *, options: Options = Options()) -> None:
    """Show the constants of the election. With a file, announce new constants, which hold from a later epoch on.

    In a development electorate that is the next epoch. In an open one they hold after a notice of `horizon_epochs` epochs, and
    each constant changes within a bound. The constants in force, announced again, take the announced ones back.

    Parameters
    ----------
    file
        A TOML file with the new constants.
    """
    if file is not None:
        _announce_parameters(read_draft(file), options)
        return

    async def read() -> ParametersStatus:
        async with Registry.open(options.settings) as registry:
            return await registry.parameters_status()

    status = run(ask_or(options.settings, "parameters", ParametersStatus, read))
    closes = "by hand" if status.closes is None else _date(status.closes)
    lines: list[Any] = [f"Epoch {status.epoch} is open; it closes {closes}.", f"Constitution {status.constitution}"]
    lines += _shown("In force", status.in_force)
    if status.announced is not None:
        lines += _shown(_since(status.epoch + 1, status.holds), status.announced)
    options.show(msgspec.to_builtins(status), *lines)


def accept_clock(*, options: Options = Options()) -> None:
    """Let the running registry sign again after its clock has jumped ahead. Check first that the clock is right."""
    now = run(ask(options.settings.control, "accept-clock"))
    options.show({"now": now}, f"[green]✓[/] The registry now uses this clock: {escape(str(now))}.")


def resume_signing(*, options: Options = Options()) -> None:
    """Let the running registry sign again, after another process signed its log. End that process first.

    The registry asks its base URL and its witnesses once more. It does not go on where the log would fork.
    """
    size = run(ask(options.settings.control, "resume-signing"))
    options.show({"size": size}, f"[green]✓[/] The registry signs again, from {size} leaves on.")


def rebuild(*, options: Options = Options()) -> None:
    """Derive facts, tiles and catalogue from the log again, correct the rows that differ, and print them."""

    async def derive() -> maintenance.Rebuilt:
        check_log(options.settings)
        return await _rebuild_alone(options.settings)

    rebuilt = run(ask_or(options.settings, "rebuild", maintenance.Rebuilt, derive))
    lines = [f"{rows} rows of {table} differed and were corrected." for table, rows in rebuilt.tables.items() if rows]
    lines = lines or ["Every table agrees with the log."]
    options.show(msgspec.to_builtins(rebuilt), f"[green]✓[/] {rebuilt.size} leaves.", *map(escape, lines))


def audit(*, options: Options = Options()) -> int:
    """Check all stored data: every signature, rule and decision, every table, tile and blob, the head and the fence."""

    async def check() -> maintenance.Audited:
        settings = options.settings
        operator = await asyncio.to_thread(open_operator, settings)
        # Before the database: beside a live registry the fence moves on, and must not be ahead of the rows that are
        # read.
        record = await asyncio.to_thread(read_record, settings, operator.origin)
        blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
        async with running_database(settings) as url, connect(url) as connection, connect(url) as reader:
            return await maintenance.audit(connection, reader, blobs, record)

    report = run(check())
    summary = f"{report.size} leaves, {report.epochs} epochs decided, {report.blobs} blobs; root {report.root.hex()}"
    lines = [f"[red]✗[/] {escape(finding)}" for finding in report.findings] or [f"[green]✓[/] {summary}"]
    options.show(msgspec.to_builtins(report), *lines)
    return 1 if report.findings else 0


def _announce_parameters(draft: ParametersDraft, options: Options) -> None:
    async def announce() -> Announced:
        async with Registry.open(options.settings) as registry:
            return await registry.announce(draft)

    done = run(ask_or(options.settings, "announce", Announced, announce, draft))
    electorate = f"{draft.parameters.electorate} electorate"
    if done.epoch is None and done.holds is None:
        sentence = "These constants are in force. What was announced is taken back"
    else:
        sentence = f"Announced. {_since(done.epoch, done.holds)}: {electorate}"
    options.show(msgspec.to_builtins(done), f"[green]✓[/] {sentence} (leaf {done.index}).")


def _since(epoch: int | None, holds: int | None) -> str:
    """Say from which epoch on parameters hold. `holds`: the time after which it opens, where there is a notice."""
    return f"From epoch {epoch} on" if holds is None else f"From the epoch that opens on or after {_date(holds)} on"


def _date(time: int) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _shown(heading: str, stated: LoggedParameters) -> list[Any]:
    table = Table("", "", box=None, show_header=False)
    for name, value in msgspec.to_builtins(stated.parameters).items():
        for inner, item in value.items() if isinstance(value, dict) else (("", value),):
            table.add_row(f"  {name}{'.' if inner else ''}{inner}", escape(_text(item)))
    return [f"[bold]{heading}[/] (leaf {stated.index}, {stated.statement})", table]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


async def _rebuild_alone(settings: Settings) -> maintenance.Rebuilt:
    """Rebuild without a server. The tables are not checked first, because they may be too damaged to lead the log."""
    blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
    async with running_database(settings) as url, connect(url) as reader:
        await migrate_database(reader)
        writer = await lead(url, patience=1)
        try:
            return await maintenance.rebuild(writer, reader, blobs)
        finally:
            await writer.close()


def promote(
    *,
    keys: Path,
    record: str | None = None,
    witness: tuple[str, ...] = (),
    accept_size: int | None = None,
    resolve: tuple[str, ...] = (),
    ca: Path | None = None,
    options: Options = Options(),
) -> None:
    """Make a registry of a mirror whose registry is gone for good. The old one must never sign again.

    Parameters
    ----------
    keys
        A copy of the registry's DATA/keys, from its backup.
    record
        A copy of the registry's DATA/head, or the URL of its `--head`. It proves that the mirror lacks nothing that was signed.
    witness
        URL#KEY: ask this witness for the newest head that it cosigned. May be repeated.
    accept_size
        The number of leaves that people confirm, if neither record nor witness is left.
    resolve
        HOST=IP:PORT: reach the host of a witness there. May be repeated.
    ca
        A PEM file of certificate authorities to accept for witnesses besides the public ones.
    """
    evidence = SignedHeads(record, tuple(map(WitnessName.parse, witness)), accept_size)
    promoted = run(promote_mirror(options.settings, keys, evidence, Network.parse(resolve, ca)))
    options.show(
        {"origin": promoted.origin, "size": promoted.size, "root": promoted.root.hex()},
        f"[green]✓[/] {escape(str(options.data))} may sign the log [bold]{escape(promoted.origin)}[/] of {promoted.size} leaves.",
        f"  Destroy the keys of the old registry, then serve this one: treaty-registry serve --data {escape(str(options.data))}",
    )
