"""`treaty lock`, `sync`, `outdated`, `upgrade`: pin protocols and their code, and run exactly these."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.locked import PinnedVersion, Upgrade, find_upgrade, install, newest_pinned, pinned_versions, unpin
from treaty_client.protocols.store import Lockfile
from treaty_client.protocols.verification.pins import Change
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.printable import printable
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import MemoryCode

from .context import Options, run
from .elected import elected, names_topic, topic_views
from .values import Name, Publishers, Uri


def lock(
    *names: Name,
    remove: Annotated[bool, Parameter()] = False,
    publisher: Publishers = (),
    options: Options = Options(),
) -> None:
    """Pin protocols in treaty.lock, each after all ten checks. Without a name, show the pinned ones.

    Parameters
    ----------
    names
        URIs, other names as of `treaty fetch`, or topics: the elected protocol is pinned.
    remove
        Pin these versions no longer.
    """
    lockfile = Lockfile(options.home)
    if remove:
        unpin(lockfile, [parse_protocol_uri(name) for name in names])

    async def work() -> None:
        # Also in a frozen home: this command is how its owner changes the lock.
        async with Fetcher(options.home, replace(options.policy(*publisher), frozen=False), options.network) as fetcher:
            for name in names:
                verified = await fetcher.fetch(await _uri(fetcher, name, options), fresh=True)
                options.output.say(f"[green]✓[/] [bold]{escape(verified.uri)}[/]  [dim]{escape(verified.package.filename)}[/]")

    if names and not remove:
        run(work())
    pinned = pinned_versions(lockfile)
    lines = [line for one in pinned for line in _pinned_lines(one)] if not names or remove else []
    options.output.result({"pinned": [_value(one) for one in pinned]}, *(lines or ([] if names else ["Nothing is pinned."])))


def sync(*, check: Annotated[bool, Parameter()] = False, publisher: Publishers = (), options: Options = Options()) -> None:
    """Have exactly the code that treaty.lock pins. Stored bytes are verified offline; the registry is asked for missing ones.

    Parameters
    ----------
    check
        Ask no registry and change nothing: fail if a pinned byte is missing, or must not run.
    """
    pinned = pinned_versions(Lockfile(options.home))
    failures: list[TreatyError] = []

    async def work() -> list[dict[str, Any]]:
        policy = replace(options.policy(*publisher), frozen=True)
        async with Fetcher(options.home, policy, options.network) as fetcher:
            return [await _synced(fetcher, one) for one in pinned]

    async def _synced(fetcher: Fetcher, one: PinnedVersion) -> dict[str, Any]:
        try:
            if not check:
                state = "fetched" if await install(fetcher, one.uri) else "stored"
            elif await asyncio.to_thread(fetcher.stored, one.uri) is None:
                raise NotFound(MemoryCode.NOTHING, f"Bytes of {one.uri} are missing.", fix="Fetch them: treaty sync")
            else:
                state = "stored"
        except TreatyError as error:
            failures.append(error)
            options.output.say(f"[red]✗[/] {escape(str(one.uri))}  {escape(printable(error.message, 600))}")
            return {"uri": str(one.uri), "state": "failed", "code": error.code, "message": error.message}
        options.output.say(f"[green]✓[/] {escape(str(one.uri))}  [dim]{state}[/]")
        return {"uri": str(one.uri), "state": state}

    value = {"pinned": run(work())}
    if failures:
        # With the status of its exit: a registry that is away is another matter than a revoked handler.
        raise failures[0]
    options.output.result(value, *(() if pinned else ["Nothing is pinned. Pin a protocol: treaty lock URI"]))


def outdated(*, publisher: Publishers = (), options: Options = Options()) -> None:
    """Show which pinned protocols have a newer version or handler. Nothing is changed."""
    upgrades = run(_upgrades((), publisher, options))
    lines = [f"[bold]{escape(str(one.pinned.uri))}[/] → {escape(_target(one))}" for one in upgrades]
    lines.append("See what would change: treaty upgrade --preview" if upgrades else "[green]✓[/] Nothing is outdated.")
    options.output.result({"outdated": [_upgrade_value(one) for one in upgrades]}, *lines)


def upgrade(
    *uris: Uri,
    preview: Annotated[bool, Parameter()] = False,
    allow_signer_change: Annotated[bool, Parameter()] = False,
    allow_publisher_change: Annotated[bool, Parameter()] = False,
    publisher: Publishers = (),
    options: Options = Options(),
) -> None:
    """Pin the newest versions and handlers of the pinned protocols, or of some. The older versions stay pinned.

    Parameters
    ----------
    uris
        Pinned versions. Default: the highest of each protocol.
    preview
        Only show the changes of version, code, publisher and signer.
    allow_signer_change
        Accept that the handlers are signed by another identity than the pinned one, and nothing else.
    allow_publisher_change
        Accept that the handlers come from another publisher, or that its domain has another owner.
    """
    accept = accepted(signer=allow_signer_change, publisher=allow_publisher_change)
    upgrades = run(_upgrades(uris, publisher, options))
    for one in upgrades:
        for line in _difference_lines(one):
            options.output.say(line)

    async def work() -> None:
        async with Fetcher(options.home, replace(options.policy(*publisher), frozen=False), options.network) as fetcher:
            for one in upgrades:
                verified = await fetcher.fetch(one.uri, fresh=True, accept=accept)
                options.output.say(f"[green]✓[/] [bold]{escape(verified.uri)}[/] is pinned.")

    if not preview:
        run(work())
    value = {"preview": preview, "upgrades": [_upgrade_value(one) for one in upgrades]}
    options.output.result(value, *(() if upgrades else ["[green]✓[/] Nothing is outdated."]))


def accepted(*, signer: bool = False, publisher: bool = False, older_handler: bool = False) -> tuple[Change, ...]:
    """Return the changes that the options of a command accept."""
    named: dict[Change, bool] = {"signer": signer, "publisher": publisher, "handler": older_handler}
    return tuple(change for change, is_accepted in named.items() if is_accepted)


async def _uri(fetcher: Fetcher, name: str, options: Options) -> str:
    if not names_topic(name):
        return name
    _, protocols = elected(name, await topic_views(fetcher, name, options.registry or ""))
    return protocols[0].uri


async def _upgrades(uris: Sequence[str], publishers: tuple[str, ...], options: Options) -> list[Upgrade]:
    pinned = pinned_versions(Lockfile(options.home))
    wanted = [one for one in pinned if str(one.uri) in uris] if uris else newest_pinned(pinned)
    missing = set(uris) - {str(one.uri) for one in wanted}
    if missing:
        raise NotFound(MemoryCode.NOTHING, f"treaty.lock does not pin {min(missing)}.", fix="See what it pins: treaty lock")
    async with Fetcher(options.home, replace(options.policy(*publishers), frozen=False), options.network) as fetcher:
        upgrades = [await find_upgrade(fetcher, one) for one in wanted]
    return [one for one in upgrades if one is not None]


def _target(one: Upgrade) -> str:
    return one.uri if one.uri != str(one.pinned.uri) else f"{one.verified.package.filename} (leaf {one.verified.handler_index})"


def _pinned_lines(one: PinnedVersion) -> Iterator[str]:
    taken_back = next((status.state for status in (one.version.status, one.version.handler_status) if status is not None), "")
    yield f"[bold]{escape(str(one.uri))}[/]{f'  [red]{escape(taken_back)}[/]' if taken_back else ''}"
    yield f"  document  {one.version.document}"
    yield f"  handler   {escape(one.version.filename)}  {one.version.wheel}"
    yield f"  from      {escape(one.protocol.publisher)}, tenure {one.protocol.tenure}, leaf {one.version.handler}"
    yield f"  signed by {escape(one.protocol.signer.identity)}  [dim]{escape(one.protocol.signer.issuer)}[/]"


def _difference_lines(one: Upgrade) -> Iterator[str]:
    yield f"[bold]{escape(str(one.pinned.uri))}[/] → {escape(_target(one))}"
    for _, name, before, now in one.changes:
        yield f"  [red]![/] {name} {escape(before)} → {escape(now)}"
    if one.is_other_wheel:
        yield f"  wheel {one.pinned.version.wheel} → {one.verified.package.digest}"
    if one.verified.election is not None:
        yield f"  state {escape(one.verified.election)}"
    if one.uri != str(one.pinned.uri):
        yield f"  [dim]treaty diff {escape(str(one.pinned.uri))} {escape(one.uri)}[/]"


def _value(one: PinnedVersion) -> dict[str, Any]:
    return {
        "uri": str(one.uri),
        "document": one.version.document,
        "wheel": one.version.wheel,
        "filename": one.version.filename,
        "publisher": one.protocol.publisher,
        "tenure": one.protocol.tenure,
        "signer": {"identity": one.protocol.signer.identity, "issuer": one.protocol.signer.issuer},
        "index": one.version.handler,
    }


def _upgrade_value(one: Upgrade) -> dict[str, Any]:
    return {
        "pinned": str(one.pinned.uri),
        "uri": one.uri,
        "wheel": one.verified.package.digest,
        "document": one.verified.hash,
        "election": one.verified.election,
        "changes": [{"change": name, "before": before, "now": now} for _, name, before, now in one.changes],
    }
