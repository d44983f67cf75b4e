"""Promote a mirror to the registry of its log, when the registry is gone for good. People decide this, not a program.

The promoted process signs in the name of the log, so two facts must hold:

- The keys are those of the log. A mirror has none; they come from a backup of the registry's `DATA/keys`.
- Nothing was signed that this mirror lacks, or the log would get a second history (`operator.newest_head`).

The registry itself is asked too. One that answers with a new checkpoint is alive: two processes would sign.

Then the record of signed heads is written, the keys are copied, and the mark of the mirror is removed, in this order. A crash in
between leaves a mirror, and the command can be repeated.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint, LogKeys, SignedCheckpoint
from treaty_consensus.log.note import MAX_NOTE_BYTES
from treaty_consensus.log.tiles import TreeEdge
from treaty_io.network.hosts import Network

from ..codes import RegistryMirrorCode, SettingsCode
from ..data_directory import restore_record, running_database
from ..keys import Operator, load_operator
from ..log.checkpoints import RENEWAL
from ..log.clock import Clock, SignedTime, machine_clock
from ..log.tables import read_keys
from ..operator.backup import copy_keys
from ..operator.newest_head import SignedHeads, check_newest, compare
from ..settings import Settings
from ..storage.postgres import connect, migrate
from .directory import MirrorDirectory
from .tables import MirrorTables

_PATIENCE = 10.0  # seconds for a registry that should be gone


@dataclass(frozen=True)
class Promoted:
    """The log that the directory may sign now."""

    origin: str
    size: int
    root: bytes


async def promote(
    settings: Settings, keys: Path, evidence: SignedHeads, network: Network, *, clock: Clock = machine_clock
) -> Promoted:
    """Make the registry of the log out of a mirror, which must not run. `clock`: replaces the machine's.

    Raises `Conflict`, `NotFound`, `Untrusted`, and as `check_newest`; the mirror is unchanged then.
    """
    directory = MirrorDirectory(settings.data)
    with directory.held():
        mark = directory.mark
        if mark is None:
            raise NotFound(
                SettingsCode.DIRECTORY, f"{settings.data} is no mirror.", fix="Name the data directory of a mirror: --data"
            )
        operator = await asyncio.to_thread(load_operator, keys)
        if operator.origin != mark[0].origin:
            raise _other_keys(keys, operator)
        if directory.proofs():
            raise Untrusted(
                RegistryMirrorCode.STOPPED,
                f"{directory.proofs()[0]} proves that this log signed two histories. It cannot be continued.",
                fix="Begin a new log under a new name.",
            )
        log_keys, edge = await _stored(settings)
        own = {key.verifier for key in (operator.log_key, operator.clock_key, *operator.next)}
        authorities = [each.public for each in (operator.authority, operator.next_authority) if each]
        named = [term.authority.public for term in log_keys.terms if term.authority]
        if not {log_keys.newest.log, log_keys.newest.clock} <= own or not {*named[-1:]} <= {*authorities}:
            raise _other_keys(keys, operator)
        head = _newest(directory, log_keys, edge)
        copy, upstream = directory.copy(log_keys), mark[0].base_url
        served = await _served(upstream, log_keys, network, clock)
        if served is not None:
            await asyncio.to_thread(compare, copy, head.checkpoint, served, upstream)
        time = await check_newest(copy, head, evidence, settings, network)
        await asyncio.to_thread(_sign_here, settings, keys, head, time)
        directory.release()
        return Promoted(operator.origin, head.checkpoint.size, head.checkpoint.root)


def _other_keys(keys: Path, operator: Operator) -> Conflict:
    return Conflict(
        LogCode.OTHER,
        f"{keys} has not the newest keys of the mirrored log, but keys of {operator.origin}.",
        fix="Bring DATA/keys from the newest backup; after a rotation it has the new keys.",
    )


async def _stored(settings: Settings) -> tuple[LogKeys, TreeEdge]:
    """Return the keys that the verified leaves name, and the edge of their tree."""
    async with running_database(settings) as database:
        tables = MirrorTables(database)
        await tables.connect()
        edge = tables.edge
        tables.close()
        async with connect(database) as connection:
            await migrate(connection)
            keys = await read_keys(connection)
    if keys is None:
        raise _unfinished()
    return keys, edge


def _newest(directory: MirrorDirectory, keys: LogKeys, edge: TreeEdge) -> SignedCheckpoint:
    """Return the newest checkpoint, all of whose leaves are in the tables. Raises `Conflict` when there are others."""
    shown_head, copied = directory.shown(keys, edge.size), directory.copied(keys)
    if (
        shown_head is None
        or (shown_head.checkpoint.size, shown_head.checkpoint.root) != (edge.size, edge.root())
        or (copied is not None and copied.checkpoint.size > edge.size)
    ):
        raise _unfinished()
    return keys.open(shown_head.note)


def _unfinished() -> Conflict:
    return Conflict(
        RegistryMirrorCode.UNFINISHED,
        "The mirror has leaves that are not verified and stored yet.",
        fix="Start it, wait until it says that it is at the newest copied leaf, and stop it: treaty-registry mirror",
    )


async def _served(upstream: str, keys: LogKeys, network: Network, clock: Clock) -> Checkpoint | None:
    """Return the checkpoint that the registry's URL serves, or None. Raises `Conflict` (`mirror.alive`) when it is signed now."""
    async with network.client(timeout=_PATIENCE) as client:
        try:
            reply = await client.exchange(client.build_request("GET", f"{upstream}/checkpoint"), limit=MAX_NOTE_BYTES)
            signed = keys.open(reply.body)
        # As it should be: it is gone. Another server may have its address by now.
        except (httpx.HTTPError, OSError, TreatyError):
            return None
    # A cache may still serve an old one.
    if signed.time is not None and clock().timestamp() - signed.time < 2 * RENEWAL:
        raise Conflict(
            RegistryMirrorCode.ALIVE,
            f"The registry at {upstream} has signed a checkpoint in the last {2 * RENEWAL} seconds, so it is not gone.",
            fix="Stop it, destroy its keys, wait until its checkpoint is old, and promote the mirror then.",
        )
    return signed.checkpoint


def _sign_here(settings: Settings, keys: Path, head: SignedCheckpoint, time: tuple[str, ...]) -> None:
    """Write the record of signed heads, then the keys. Durable on return. `time`: the newest that was signed, if it is known."""
    if not time and head.time is not None:
        time = (SignedTime(head.time).format(),)
    # In place of the record of an attempt that was interrupted. Nothing was signed by it.
    restore_record(settings, replace(head.checkpoint, extensions=time))
    # An attempt that was interrupted left these.
    if settings.keys.exists():
        shutil.rmtree(settings.keys)
    copy_keys(keys, settings.keys)
