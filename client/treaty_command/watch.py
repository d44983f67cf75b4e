"""`treaty watch`: list the entries of the log in the name of a DID, a namespace, a topic or a handler."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.registries.api import RegistryClient
from treaty_client.registries.signed import SignedIds
from treaty_client.watching.cursor import Cursors
from treaty_client.watching.findings import WatchFinding
from treaty_client.watching.tail import LogTail
from treaty_client.watching.watcher import ONCE_ATTEMPTS, Expectation, Sink, Watcher
from treaty_client.watching.watches import WatchList, WebhookAddress, parse_watches, read_watch_file
from treaty_consensus.codes import SystemCode
from treaty_consensus.did import encode_multikey
from treaty_consensus.errors import Malformed, NotFound, TreatyError
from treaty_consensus.printable import escaped
from treaty_io.codes import WatchCode

from .context import Options, run
from .failures import FOUND, NOT_YET, UNTRUSTED

_MARKS = {"expected": "[green]✓[/]", "unexpected": "[bold yellow]![/]", "grave": "[bold red]✗[/]"}


def watch(
    *,
    did: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    namespace: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    topic: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    handler: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    constitution: bool = False,
    file: Path | None = None,
    expected: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    webhook: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    secret_file: Path | None = None,
    name: str = "default",
    from_: Annotated[int | None, Parameter(name="--from")] = None,
    interval: float = 30.0,
    once: bool = False,
    options: Options = Options(),
) -> None:
    """Follow a registry's log, and tell every entry that concerns the watched names.

    Entries that this home signed are expected; all others are unexpected. A broken promise of the log is a grave finding. Exit
    status: 0 nothing unexpected, 7 something unexpected, 4 a grave finding, 6 more of the log is left to read, 3 the registry or
    a webhook does not answer. Without names this home's own DID is watched. With `--json` each finding is one line.

    Parameters
    ----------
    did
        A DID: entries that it signed, that name it, or that concern its own namespace. May be repeated, as the next three.
    namespace
        A namespace: its protocols, handlers and grants, and names elsewhere that claim it.
    topic
        A topic: its protocols, votes, reports and decisions.
    handler
        The SHA-256 of a wheel, or the URI of a protocol with or without its version.
    constitution
        The constants of the elections: each announcement of others, and the epoch from which they hold.
    file
        A TOML file with watches, files of expected ids and webhooks.
    expected
        A file of statement ids that are expected, such as signed.txt of another home. May be repeated.
    webhook
        A URL that gets each finding by Standard Webhooks. May be repeated.
    secret_file
        The secret of these webhooks: whsec_ and base64, readable by you alone.
    name
        The name of this watch. Each name has cursors of its own.
    from_
        The index of the entry to begin with. Default: the end of the last run; at first the newest checkpoint that this home saw.
    interval
        Seconds between two looks.
    once
        Read the new entries, and end. For cron.
    """
    _check(name, interval, from_, webhook, secret_file)
    watch_list = parse_watches(did, namespace, topic, handler, constitution=constitution)
    watch_list += WatchList((), expected, tuple(WebhookAddress(url, secret_file) for url in webhook if secret_file))
    watch_list, keys = _completed(watch_list, file, options)
    status = run(_watch(watch_list, keys, options, name=name, begin=from_, interval=interval, once=once))
    if status:
        sys.exit(status)


def _check(name: str, interval: float, begin: int | None, webhook: tuple[str, ...], secret_file: Path | None) -> None:
    """Check the options. Raises `Malformed` (`system.usage`)."""
    if interval < 1 or (begin is not None and begin < 0) or not name.replace("-", "").isalnum():
        raise Malformed(SystemCode.USAGE, "--interval is at least 1, --from at least 0, and --name has letters, digits and '-'.")
    if webhook and secret_file is None:
        raise Malformed(SystemCode.USAGE, "A webhook needs its secret.", fix="Name the file with it: --secret-file FILE")


def _completed(watch_list: WatchList, file: Path | None, options: Options) -> tuple[WatchList, tuple[str, ...]]:
    """Add the watches of a file, or else this home's DID; return the keys of this home too. Raises as `watch`."""
    if file is not None:
        watch_list += read_watch_file(file)
    keys: tuple[str, ...] = ()
    if options.identity_file.exists():
        identity = options.identity()
        keys = tuple(encode_multikey(key) for key in (identity.public_key, *(pair.public for pair in identity.kept)))
        if not watch_list.watches:
            watch_list += parse_watches([identity.did])
    if not watch_list.watches:
        raise Malformed(
            SystemCode.USAGE,
            "There is nothing to watch.",
            fix="Name a --did, --namespace, --topic, --handler, --constitution or --file.",
        )
    missing = next((path for path in watch_list.expected if not path.is_file()), None)
    if missing is not None:
        # A mistyped path would turn every own statement into an alarm.
        raise NotFound(WatchCode.FILE, f"There is no {missing}.")
    return watch_list, keys


async def _watch(
    watch_list: WatchList, keys: tuple[str, ...], options: Options, *, name: str, begin: int | None, interval: float, once: bool
) -> int:
    trusted, policy = options.trusted(), options.policy()
    origin = trusted.name.origin
    sinks: list[Sink] = [_printer(options)]
    if watch_list.webhooks:
        from treaty_client.watching.webhooks import Webhook  # its library is in an extra

        sinks += [Webhook(address, options.network, time.time).deliver for address in watch_list.webhooks]
    # A port's colon is replaced in file names, because some file systems do not allow it.
    state = options.home / "watch" / origin.replace(":", "_") / f"{name}.json"
    expectation = Expectation([options.registries.signed, *map(SignedIds, watch_list.expected)], keys)

    def warn(error: TreatyError, pause: float) -> None:
        again = f" Trying again in {pause:g} seconds." if pause else ""
        options.output.errors.print(f"[yellow]•[/] {escape(escaped(error.message))}  [dim]{escape(error.code)}[/]{again}")

    with Cursors.open(state, trusted.keys) as cursors:
        async with RegistryClient(options.sources(), options.network) as client:
            tail = LogTail(client, options.registries, origin, policy, time.time)
            watcher = Watcher(
                client=client,
                registries=options.registries,
                origin=origin,
                tail=tail,
                cursors=cursors,
                watches=watch_list.watches,
                expectation=expectation,
                sinks=sinks,
                max_age=policy.max_age,
                clock=time.time,
                warn=warn,
            )
            try:
                first = await watcher.begin(begin)
                options.output.say(f"[dim]Watching {len(watch_list.watches)} names in {escape(origin)} from entry {first}.[/]")
                await (watcher.poll(attempts=ONCE_ATTEMPTS) if once else watcher.follow(interval))
            except TreatyError as error:
                # What `follow` has told is not told again.
                if not await watcher.tell_grave(error, attempts=ONCE_ATTEMPTS):
                    await watcher.tell_silence(attempts=ONCE_ATTEMPTS)
                if not watcher.counts["grave"]:
                    raise
                return UNTRUSTED
    if watcher.counts["unexpected"]:
        return FOUND
    return NOT_YET if watcher.is_behind else 0


def _printer(options: Options) -> Sink:
    async def show(finding: WatchFinding) -> None:
        # In a thread: a reader that does not read must not stop Ctrl-C.
        await asyncio.to_thread(_print, _line(finding, options))

    return show


def _line(finding: WatchFinding, options: Options) -> str:
    if options.json:
        text = json.dumps(finding.value(), ensure_ascii=True, sort_keys=True)
        return f"{text}\n"
    where = f"entry {finding.index}, {finding.kind}" if finding.index is not None else finding.kind
    lines = [f"{_MARKS[finding.severity]} {escape(escaped(finding.sentence))}"]
    lines.append(f"  [dim]{finding.severity} · {where} · {escape(escaped(finding.watch))} · {finding.statement}[/]")
    if finding.fix:
        lines.append(f"  [bold]→[/] {escape(escaped(finding.fix))}")
    if finding.evidence:
        lines.append(f"  proof: {escape(escaped(str(finding.evidence)))}")
    with options.output.console.capture() as captured:
        for line in lines:
            options.output.console.print(line)
    return captured.get()


def _print(text: str) -> None:
    """Write to standard output. The text has left this process on return; on a disk it is durable. Raises OSError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
            os.fsync(sys.stdout.fileno())
    except BrokenPipeError:
        # The interpreter would fail again when it flushes at its end, and hide the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
