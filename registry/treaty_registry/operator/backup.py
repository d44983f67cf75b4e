"""Copy a log into a folder, and bring it back from there.

    BACKUP/checkpoint             the head of the copy, signed by the log's key
    BACKUP/tile/…                 its leaves and hash tiles, as C2SP tlog-tiles: any auditor reads them
    BACKUP/blobs/sha256/HH/HEX    the blobs that its leaves name
    BACKUP/senders.json           who is blocked, and whose quota is another one: personal data
    BACKUP/keys/                  the operator's keys, 0700: keep the whole folder as secret as they are

A copy holds no table that follows from the leaves: `restore` derives them again, and so checks every signature, rule and
decision. It is independent of the release of PostgreSQL and of the tables. A second backup into the same folder adds the new
leaves and blobs, and deletes the bytes that were withdrawn.

A running registry makes the copy itself (`back_up_log`), so every file is its own user's, and no other process opens its
database. The folder is named with its device and inode: in the unit of a registry `/tmp` is another folder, and others may be
read-only. Then, and where no registry runs, the command makes the copy as the owner of the data directory.

A restored log must not fork. So the newest signed head is never in a backup. `restore` asks for it, and refuses a backup that
lacks leaves which may have been signed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from treaty_client.audit.mirror import Mirror
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Conflict, Refused, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.note import sign
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, TreeEdge, encode_bundle
from treaty_io import durable

from ..admission.senders import export_senders
from ..codes import BackupCode, BlobsCode, CopyCode
from ..data_directory import read_record
from ..keys import Operator, key_files, load_operator
from ..log import tables as log_tables
from ..settings import Settings
from ..storage.blobs import BlobStore
from ..storage.postgres import Connection, connect

SENDERS = "senders.json"
"""The file of the decisions about senders, which no leaf has."""
_BLOBS_AT_ONCE = 32
"""Blobs copied at once. It bounds the memory."""


@dataclass(frozen=True)
class BackedUp:
    """The result of `back_up`: the head of the copy, and the leaves and blobs that it did not have before."""

    size: int
    root: bytes
    leaves: int
    blobs: int


async def back_up_log(settings: Settings, database: str, folder: Path) -> BackedUp:
    """Copy the log of these settings, whose database is at that URL, into a folder. Raises as `back_up` and `load_operator`."""
    operator = await asyncio.to_thread(load_operator, settings.keys)
    # Before the rows: beside a live registry the record moves on, and must not be ahead of the rows that are read.
    record = await asyncio.to_thread(read_record, settings, operator.origin)
    blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
    async with connect(database) as connection:
        return await back_up(connection, blobs, operator, settings.keys, record, folder)


def check_folder(folder: Path, device: int, inode: int) -> None:
    """Raise `Refused` (`backup.folder`) unless the folder is the one that the caller sees, and can be written here. Blocking."""
    try:
        status = folder.stat()
    except OSError:
        status = None
    if status is None or (status.st_dev, status.st_ino) != (device, inode) or not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(
            BackupCode.FOLDER,
            f"The running registry cannot reach or write {folder}.",
            fix="Name it in ReadWritePaths= of the registry's unit, or choose another folder.",
        )


async def back_up(
    connection: Connection, blobs: BlobStore, operator: Operator, keys: Path, record: Checkpoint, to: Path
) -> BackedUp:
    """Copy the log up to `record` into the folder `to`. Runs beside a live server.

    `record`: the fence's record, read before this call, so that the database is never behind it. The copy is complete when
    `checkpoint` is written, which is last; an interrupted backup is continued by the next one.

    Raises `Untrusted` when the database is damaged or behind the record, and `Conflict` (`backup.none`) when the folder
    holds another log or another history of this one.
    """
    # Repeatable read: leaves and the list of blobs must be of one moment.
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        edge = await log_tables.load_edge(connection, record.size)
        if edge.root() != record.root:
            raise Untrusted(
                LogCode.DAMAGED,
                f"The first {record.size} leaves in the database are not those of the recorded head.",
                fix="Do not back this database up. treaty-registry audit tells what is wrong.",
            )
        await asyncio.to_thread(_keep_keys, keys, operator, to / "keys")
        log_keys = await log_tables.read_keys(connection) or operator.first_keys
        before = await _known(connection, Mirror(to, log_keys, to / "evidence"), record)
        await _write_leaves(connection, to, before, edge)
        copy = BlobStore.open(to / "blobs", None)
        copied = await _copy_blobs(connection, blobs, copy, record.size)
        await _delete_withdrawn(connection, copy)
        await asyncio.to_thread(durable.write, to / SENDERS, await export_senders(connection), mode=0o600)
    # Its head may be signed already, so this signature says nothing new. The clock does not sign: this copy has no age.
    signing = log_keys.at(record.size).log
    signers = [key for key in operator.log_keys if key.verifier == signing] or [operator.log_key]
    note = sign(Checkpoint(record.origin, record.size, record.root).format(), signers)
    # Last: after a crash the older checkpoint stands, and the newer files are written again.
    await asyncio.to_thread(durable.write, to / "checkpoint", note)
    return BackedUp(record.size, record.root, record.size - before, copied)


async def _known(connection: Connection, mirror: Mirror, record: Checkpoint) -> int:
    """Return the number of leaves that the folder has, after checking that they are of this history."""
    signed = await asyncio.to_thread(mirror.checkpoint)
    if signed is None:
        return 0
    backed_up = signed.checkpoint
    # A database that lost leaves must not replace a copy that has them.
    if backed_up.size > record.size or (await log_tables.load_edge(connection, backed_up.size)).root() != backed_up.root:
        raise Conflict(
            CopyCode.OTHER_HISTORY,
            f"The folder has {backed_up.size} leaves of this log that are not the first ones of this database.",
            fix="Keep that folder: it may have what this database lost. Back this database up into another one.",
        )
    return backed_up.size


async def _write_leaves(connection: Connection, to: Path, before: int, edge: TreeEdge) -> None:
    begin = before // TILE_WIDTH * TILE_WIDTH
    growing = await log_tables.load_edge(connection, begin)
    async for leaves in log_tables.stream_leaves(connection, begin, edge.size):
        index = growing.size // TILE_WIDTH
        growing, tiles = growing.appended(map(leaf_hash, leaves))
        files = {Bundle(index, len(leaves)).path: encode_bundle(leaves)}
        files |= {tile.path: hashes for tile, hashes in tiles.items()}
        await asyncio.to_thread(_write, to, files)
    partial = {tile.path: hashes for tile, hashes in edge.tiles.items()}
    await asyncio.to_thread(_write, to, partial)


def _write(to: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        durable.write(to / path.removeprefix("/"), data)


async def _copy_blobs(connection: Connection, blobs: BlobStore, copy: BlobStore, size: int) -> int:
    rows = await connection.fetch("select sha256 from blobs where withdrawn is null and index < $1 order by index", size)

    async def keep(sha256: str) -> bool:
        if await copy.size(sha256) is not None:
            return False
        data = await blobs.get(sha256)
        # Compared here: a damaged blob must not pass for a copy.
        if data is None or await asyncio.to_thread(hex_digest, data) != sha256:
            raise Untrusted(
                BlobsCode.DAMAGED,
                f"The blob {sha256} is missing or damaged.",
                fix="treaty-registry audit lists the damaged blobs; bring them back from an earlier backup.",
            )
        await copy.put(sha256, data)
        return True

    copied = 0
    for begin in range(0, len(rows), _BLOBS_AT_ONCE):
        copied += sum(await asyncio.gather(*(keep(row["sha256"].hex()) for row in rows[begin : begin + _BLOBS_AT_ONCE])))
    return copied


async def _delete_withdrawn(connection: Connection, copy: BlobStore) -> None:
    """Delete from the folder the bytes that were withdrawn since an earlier backup."""
    rows = await connection.fetch("select sha256 from blobs where withdrawn is not null")
    for begin in range(0, len(rows), _BLOBS_AT_ONCE):
        await asyncio.gather(*(copy.delete(row["sha256"].hex()) for row in rows[begin : begin + _BLOBS_AT_ONCE]))


def _keep_keys(keys: Path, operator: Operator, to: Path) -> None:
    """Copy the keys, which change with a rotation alone. Raises `Conflict` when the folder has those of another log."""
    if to.exists() and _files(to) != _files(keys) and load_operator(to).did == operator.did:
        # Aside first: a crash in between leaves no keys here, and the next backup copies them.
        old = to.with_name(f".{to.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        to.rename(old)
        copy_keys(keys, to)
        shutil.rmtree(old)
    if not to.exists():
        # They appear whole or not at all, and are never readable for others.
        to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        to.parent.chmod(0o700)
        copy_keys(keys, to)
    if load_operator(to).did != operator.did:
        raise Conflict(BackupCode.NONE, f"{to} has the keys of another log.", fix="Give each log a folder of its own.")


def _files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in key_files(folder) if path.is_file()}


def copy_keys(keys: Path, to: Path) -> None:
    """Copy the directory of keys to `to`, which must not exist. Durable on return; a crash leaves a hidden directory."""
    # A registry with a database and blobs elsewhere has no data directory before its keys.
    to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    staging = to.with_name(f".{to.name}-copy")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    for path in key_files(keys):
        target = staging / path.relative_to(keys)
        if path.is_dir():
            target.mkdir(mode=0o700)
        else:
            durable.write(target, path.read_bytes(), mode=0o600)
    staging.rename(to)
    durable.sync_directory(to.parent)
