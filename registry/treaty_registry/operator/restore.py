"""Bring a log back from a backup (`backup`), in a way that cannot fork it.

Before anything is written, the backup is compared with the newest signed head (`newest_head`). A backup that lacks leaves is
refused, or completed from a mirror of the log. A copy of the tiles (`--tiles`) is such a mirror. Its checkpoint is some seconds
old, but with `--copies` the leaves of every recorded head are in it: they are taken up to the head of the record, and compared
with its root.

The order of the writes: leaves, blobs, tables, the record of the restored head, the mark of a restored log, and last the keys.
Without its keys no registry starts, so a crash leaves a restore that is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from treaty_client.audit.mirror import Mirror
from treaty_client.registries.api import RegistryClient
from treaty_consensus import statement
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Untrusted
from treaty_consensus.kinds import Blob, blobs_of
from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.note import VerifierKey, sign, signers_of
from treaty_consensus.log.tiles import TreeEdge
from treaty_io import durable
from treaty_io.network.hosts import Network

from ..admission.senders import import_senders
from ..codes import BackupCode, CopyCode
from ..data_directory import restore_record, running_database
from ..keys import Operator, load_operator
from ..log import tables as log_tables
from ..log.entry import Entry
from ..settings import Settings
from ..storage.blobs import BlobStore
from ..storage.postgres import Connection, connect, lead, migrate
from . import maintenance
from .backup import SENDERS, copy_keys
from .newest_head import SignedHeads, check_newest, records

_PATIENCE_LEADER = 1.0  # seconds
STATEMENT_START = b'{"payload":'
"""The first bytes of a statement in its one spelling; other leaves are of the Sigstore services."""


@dataclass(frozen=True)
class Restored:
    """The result of `restore`. `fetched`: leaves that came from the mirror. `missing`: blobs that neither copy has."""

    origin: str
    size: int
    root: bytes
    fetched: int
    missing: list[str]


async def restore(backup: Path, settings: Settings, evidence: SignedHeads, mirror: str | None, network: Network) -> Restored:
    """Make a data directory and fill an empty database from a backup.

    `mirror`: the URL of a mirror of the log, which has leaves that the backup lacks.

    Raises `Conflict` (`log.exists`) when a log is there; `Untrusted` (`copy.other-history`) when the leaves are not those
    of the backup's checkpoint; and the errors of `check_newest` and of `Mirror`. Then nothing was written, but leaves of the
    mirror may have been added to the backup.
    """
    if settings.keys.exists():
        raise _not_empty(f"{settings.keys} exists")
    # Written last by a backup, so a folder without it has none.
    if not (backup / "checkpoint").exists():
        raise NotFound(BackupCode.NONE, f"{backup} holds no complete backup.", fix="Name the folder of `treaty-registry backup`.")
    operator = await asyncio.to_thread(load_operator, backup / "keys")
    copy = Mirror(backup, await asyncio.to_thread(_key_of, backup, operator), backup / "evidence")
    signed = await asyncio.to_thread(copy.checkpoint)
    assert signed is not None, "its file was there"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(RegistryClient(mirror, network)) if mirror else None
        had = signed.checkpoint.size
        if client is not None:
            signed = await copy.update(client, lambda done, total: None)
            heads = await asyncio.to_thread(records, evidence, settings, operator.origin)
            signed = await _up_to_record(copy, signed, client, operator, [record for _, record in heads])
        head = signed.checkpoint
        time = await check_newest(copy, signed, evidence, settings, network)
        source = _BlobSource(
            BlobStore.open(settings.data / "blobs", settings.blobs), BlobStore.open(backup / "blobs", None), client
        )
        # Not earlier: a refusal leaves no embedded database behind.
        async with running_database(settings) as database:
            await _fill(database, copy, head, source)
            senders = backup / SENDERS
            # A backup of an earlier release has none.
            if senders.exists():
                async with connect(database) as connection:
                    await import_senders(connection, senders.read_bytes())
    await asyncio.to_thread(restore_record, settings, replace(head, extensions=time))
    # Before the first signature here the base URL and the witnesses are asked (`other_signer`).
    await asyncio.to_thread(durable.write, settings.restored, b"", mode=0o600)
    # Last: a directory without keys does not start.
    await asyncio.to_thread(copy_keys, backup / "keys", settings.keys)
    return Restored(head.origin, head.size, head.root, head.size - had, sorted(source.missing))


async def _up_to_record(
    copy: Mirror, signed: SignedCheckpoint, client: RegistryClient, operator: Operator, records: Sequence[Checkpoint]
) -> SignedCheckpoint:
    """Fetch the leaves from a mirror's checkpoint to the record, if the mirror has them. Returns the checkpoint of the copy."""
    recorded = max(records, key=lambda record: record.size, default=signed.checkpoint)
    if recorded.size <= signed.checkpoint.size:
        return signed
    key = next(key for key in operator.log_keys if key.verifier in (term.log for term in copy.keys.terms))
    # What is in the record may have been signed, so signing it once more forks nothing.
    note = sign(replace(recorded, extensions=()).format(), [key])
    try:
        return await copy.follow(client, note, lambda done, total: None)
    # The mirror does not have them. `check_newest` says what is missing.
    except NotFound:
        return signed


def _key_of(backup: Path, operator: Operator) -> VerifierKey:
    """Return the key of the operator that signed the checkpoint of a backup: which keys are in force is known only later."""
    try:
        signers = signers_of((backup / "checkpoint").read_bytes())
    except TreatyError:
        signers = []  # `Mirror` says what is wrong
    verifiers = (key.verifier for key in operator.log_keys)
    return next((key for key in verifiers if (key.name, key.id) in signers), operator.log_key.verifier)


@dataclass
class _BlobSource:
    """The blobs of the log that is restored: `get` reads them from its own store, and copies them there first if needed."""

    store: BlobStore
    copy: BlobStore
    mirror: RegistryClient | None
    missing: set[str] = field(default_factory=set)

    async def get(self, sha256: str) -> bytes | None:
        return await self.store.get(sha256)

    async def bring(self, blob: Blob) -> None:
        if await self.store.size(blob.sha256) is not None:
            return
        data = await self.copy.get(blob.sha256)
        if data is None and self.mirror is not None:
            try:
                data = await self.mirror.blob(blob)
            # Withdrawn, or not there either. The caller learns its name.
            except TreatyError:
                data = None
        # Another copy may be damaged or lie, so the digest decides.
        if data is None or await asyncio.to_thread(hex_digest, data) != blob.sha256:
            self.missing.add(blob.sha256)
            return
        await self.store.put(blob.sha256, data)


async def _fill(database: str, copy: Mirror, head: Checkpoint, source: _BlobSource) -> None:
    """Write the leaves and their blobs, and derive every table."""
    async with connect(database) as reader:
        await migrate(reader)
        writer = await lead(database, patience=_PATIENCE_LEADER)
        try:
            size, root = await log_tables.read_head(writer)
            if size == 0:
                # One transaction: a database has all leaves of the backup or none.
                async with writer.transaction():
                    await _write_leaves(writer, copy, head, source)
            elif (size, root) != (head.size, head.root):
                raise _not_empty(f"the database has {size} leaves")
            await maintenance.rebuild(writer, reader, source.store)
            withdrawn = {
                row["sha256"].hex() for row in await reader.fetch("select sha256 from blobs where withdrawn is not null")
            }
            source.missing -= withdrawn
        finally:
            await writer.close()


async def _write_leaves(writer: Connection, copy: Mirror, head: Checkpoint, source: _BlobSource) -> None:
    edge = TreeEdge()
    for leaves in copy.entries():
        # Its copy was compared with the signed head; the rebuild checks what a leaf says.
        parsed = [statement.understand(leaf) if leaf.startswith(STATEMENT_START) else None for leaf in leaves]
        for parsed_statement in parsed:
            for blob in blobs_of(parsed_statement.body) if parsed_statement else ():
                await source.bring(blob)
        entries = [Entry(edge.size + n, leaf, parsed[n], source) for n, leaf in enumerate(leaves)]
        before = edge
        edge, tiles = edge.appended(map(leaf_hash, leaves))
        # Without facts: the rebuild derives them, with the check of every rule.
        await log_tables.append(writer, before, edge, entries, {}, tiles)
    if edge.root() != head.root:
        raise Untrusted(
            CopyCode.OTHER_HISTORY,
            "The leaves of this backup are not those of its own checkpoint.",
            fix="Files of it were replaced. Restore another backup.",
        )


def _not_empty(sentence: str) -> Conflict:
    return Conflict(
        LogCode.EXISTS,
        f"A log is here already: {sentence}.",
        fix="Restore into an empty data directory and an empty database.",
    )
