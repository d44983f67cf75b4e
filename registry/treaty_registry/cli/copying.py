"""Define the commands `backup` and `restore`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.markup import escape

from treaty_consensus.errors import TreatyError
from treaty_io.network.hosts import Network

from ..codes import BackupCode, ControlCode
from ..data_directory import check_log, running_database
from ..operator.acts import Acts, CommandCaller
from ..operator.backup import BackedUp, back_up_log
from ..operator.control import NOT_RUNNING, ask
from ..operator.newest_head import SignedHeads
from ..operator.restore import Restored
from ..operator.restore import restore as restore_log
from ..settings import WitnessName
from ..storage.postgres import connect
from .options import Options, run


def backup(
    folder: Path,
    /,
    *,
    every: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    options: Options = Options(),
) -> None:
    """Copy the log, its blobs and its keys into a folder, beside the running registry.

    The same folder again gets only what is new. It holds the keys: keep it as secret as the data directory.

    Parameters
    ----------
    folder
        The folder of the backup; made by the first one.
    every
        Go on: one backup every so many minutes, until the first that fails. For a container; a timer of the system is better.
    """

    async def copy() -> BackedUp:
        settings = options.settings
        if not settings.control.exists():
            check_log(settings)  # before the folder is made
        to = await asyncio.to_thread(_made, folder)
        try:
            place = to.stat()
            return msgspec.convert(await ask(settings.control, "backup", str(to), place.st_dev, place.st_ino), BackedUp)
        except TreatyError as error:
            # A registry of an older release knows no such command, and answers as one that failed (`control.failed`).
            if error.code not in (NOT_RUNNING, BackupCode.FOLDER, ControlCode.FAILED):
                raise
        check_log(settings)  # the socket may be what a killed registry left
        async with running_database(settings) as url:
            report = await back_up_log(settings, url, to)
            async with connect(url) as connection:
                await Acts(connection).record("backup", (str(to),), CommandCaller.of_this_process())
            return report

    while True:
        done = run(copy())
        summary = f"{done.size} leaves ({done.leaves} new), {done.blobs} new blobs; root {done.root.hex()}"
        options.show(msgspec.to_builtins(done), f"[green]✓[/] {escape(str(folder))}: {summary}")
        if every is None:
            return
        time.sleep(every * 60)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it holds the keys
    return folder.resolve()


def restore(
    folder: Path,
    /,
    *,
    record: str | None = None,
    witness: tuple[str, ...] = (),
    mirror: str | None = None,
    accept_size: int | None = None,
    resolve: tuple[str, ...] = (),
    ca: Path | None = None,
    options: Options = Options(),
) -> None:
    """Bring a log back from a backup, into an empty data directory and an empty database, if that cannot fork the log.

    Parameters
    ----------
    folder
        The folder of the backup.
    record
        The record of the lost registry, which shows every head that was signed: its file `head`, or the URL of its `--head`.
    witness
        URL#KEY: a witness of the log, which shows the heads that it cosigned. May be repeated.
    mirror
        The URL of a mirror of the log, to fetch the leaves that the backup lacks.
    accept_size
        The number of leaves that people confirm, if neither the record nor a witness shows the newest head.
    resolve
        HOST=IP:PORT: reach the host of a witness or mirror there. May be repeated.
    ca
        A PEM file of certificate authorities to accept for these hosts besides the public ones.
    """

    async def bring_back() -> Restored:
        settings = options.settings
        network = Network.parse(resolve, ca)
        evidence = SignedHeads(record, tuple(map(WitnessName.parse, witness)), accept_size)
        return await restore_log(folder, settings, evidence, mirror, network)

    done = run(bring_back())
    lines = [f"The blob {sha256} is in no copy." for sha256 in done.missing]
    if record is None:
        lines.append("A head that was signed in the last second before the loss may have reached no witness.")
    fetched = f", {done.fetched} of them from the mirror" if mirror else ""
    summary = f"{done.size} leaves of {done.origin}{fetched}; root {done.root.hex()}"
    options.show(msgspec.to_builtins(done), f"[green]✓[/] {escape(summary)}", *map(escape, lines))
