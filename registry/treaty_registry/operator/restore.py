"""Bring a log back from a backup (`backup`), in a way that cannot fork it.

A log forks when a restored copy lacks leaves that were signed, and goes on. So before anything is written, each place that the
operator names is asked for the newest signed head:

- the record of the lost registry (`head`), which has every head that was ever signed;
- the witnesses, which have every head that they cosigned. A head that was signed in the last second before the loss may have
  reached no witness: only the record proves that there was none.

A backup that lacks leaves of these heads is refused, or completed from a mirror of the log. If it has more leaves than each of
them shows, none of them is the newest, and people have to confirm the number.

The order of the writes: leaves, blobs, tables, the record of the restored head, and last the keys. Without its keys no registry
starts, so a crash leaves a restore that is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from treaty_client.audit.mirror import Mirror
from treaty_client.network.hosts import Network
from treaty_client.registries.api import RegistryClient
from treaty_consensus import statement
from treaty_consensus.canonical import hex_digest, parse_decimal
from treaty_consensus.errors import Conflict, NotFound, Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Blob, blobs_of
from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint
from treaty_consensus.log.merkle import MAX_SIZE, leaf_hash
from treaty_consensus.log.note import VerifierKey, signers_of
from treaty_consensus.log.tiles import TreeEdge
from treaty_consensus.log.witness import AddCheckpoint, cosignature

from ..codes import BackupCode
from ..data_directory import read_record, record_at, restore_record, running_database
from ..keys import Operator, load_operator
from ..log import tables as log_tables
from ..log.entry import Entry
from ..settings import Settings, WitnessName
from ..storage.blobs import BlobStore
from ..storage.postgres import Connection, connect, lead, migrate
from . import maintenance
from .backup import copy_keys

_PATIENCE = 10.0  # seconds for one witness
_PATIENCE_LEADER = 1.0  # seconds
_MAX_ANSWER = 64 * 1024  # bytes; a witness answers with a few lines
_STATEMENT_START = b'{"payload":'
"""The first bytes of a statement in its one spelling; other leaves are of the Sigstore services."""


@dataclass(frozen=True)
class SignedHeads:
    """Where the newest signed head of the lost registry can be learnt. `head`: the path or URL of its record. `witnesses`: those
    of its log. `size`: the number of leaves that people confirm."""

    head: str | None = None
    witnesses: Sequence[WitnessName] = ()
    size: int | None = None


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

    Raises `Conflict` (`backup.not-empty`) when a log is there; `Refused` (`backup.unproven`) without evidence; `Untrusted`
    (`backup.behind`, `backup.other-history`) when the log must not go on from this copy; and the errors of `Mirror`. Then nothing
    was written, but leaves of the mirror may have been added to the backup.
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
        head = signed.checkpoint
        time = await _check_evidence(copy, signed, evidence, settings, network)
        source = _BlobSource(
            BlobStore.open(settings.data / "blobs", settings.blobs), BlobStore.open(backup / "blobs", None), client
        )
        # Not earlier: a refusal leaves no embedded database behind.
        async with running_database(settings) as database:
            await _fill(database, copy, head, source)
    await asyncio.to_thread(restore_record, settings, replace(head, extensions=time))
    # Last: a directory without keys does not start.
    await asyncio.to_thread(copy_keys, backup / "keys", settings.keys)
    return Restored(head.origin, head.size, head.root, head.size - had, sorted(source.missing))


def _key_of(backup: Path, operator: Operator) -> VerifierKey:
    """Return the key of the operator that signed the checkpoint of a backup: which keys are in force is known only later."""
    try:
        signers = signers_of((backup / "checkpoint").read_bytes())
    except TreatyError:
        signers = []  # `Mirror` says what is wrong
    known = (key.verifier for key in operator.log_keys)
    return next((key for key in known if (key.name, key.id) in signers), operator.log_key.verifier)


async def _check_evidence(
    copy: Mirror, signed: SignedCheckpoint, evidence: SignedHeads, settings: Settings, network: Network
) -> tuple[str, ...]:
    """Compare the copy with every signed head that the evidence shows. Returns the newest signed time, as the record has it."""
    head, seen = signed.checkpoint, dict[str, int]()
    time: tuple[str, ...] = ()
    for place, record in await asyncio.to_thread(_records, evidence, settings, head.origin):
        seen[place], time = record.size, record.extensions
        if record.size > head.size:
            raise _behind(head, record.size, f"By {place} the log has signed")
        if await asyncio.to_thread(copy.root_at, record.size) != record.root:
            raise _other_history(f"the record {place}")
    for witness in evidence.witnesses:
        seen[witness.key.name] = size = await _cosigned(witness, signed, network)
        if size > head.size:
            raise _behind(head, size, f"The witness {witness.key.name} has cosigned")
    # A place that shows fewer leaves is an older copy, or lags behind. So it cannot show that no leaf is missing.
    if head.size not in seen.values() and evidence.size != head.size:
        shown = "; ".join(f"{place} shows {size}" for place, size in seen.items()) or "No place of it is named"
        raise Refused(
            BackupCode.UNPROVEN,
            f"Nothing shows that the {head.size} leaves of this backup are all that the log signed. {shown}. "
            "A log that goes on from an older copy forks.",
            fix="Name the record of the lost registry (--last-head DATA/head), or the witnesses of the log (--witness URL#KEY). "
            f"If neither is left, confirm the number: --accept-size {head.size}.",
        )
    return time


def _records(evidence: SignedHeads, settings: Settings, origin: str) -> list[tuple[str, Checkpoint]]:
    """Return the records that are there: the one that is named, and the one at the place of the restored log's own."""
    found = [(evidence.head, record_at(evidence.head, origin))] if evidence.head is not None else []
    # Outside of the data directory, it may be the lost registry's. A crash before the first leaf leaves one of an empty tree.
    with suppress(NotFound):
        own = read_record(settings, origin)
        found += [(settings.head_object or str(settings.fence), own)] if own.size else []
    return found


async def _cosigned(witness: WitnessName, signed: SignedCheckpoint, network: Network) -> int:
    """Return the size of the head that a witness cosigned last, at most that of `signed` if it is the same.

    It is asked to cosign the head of the backup from that head's own size (C2SP tlog-witness). It answers with its own size
    unless that head is its newest. Raises `Unavailable` (`backup.witness`), also for a witness that does not know the log.
    """
    size = signed.checkpoint.size
    request = AddCheckpoint(size, (), signed.note).format()
    try:
        async with network.client(timeout=_PATIENCE) as client:
            asked = client.build_request("POST", f"{witness.url}/add-checkpoint", content=request)
            answer = await client.exchange(asked, limit=_MAX_ANSWER)
        if answer.status == httpx.codes.OK:
            # Its line, and not the status: a server in its place may answer anything.
            cosignature(answer.body, signed.note, witness.key)
            return size
        if answer.status == httpx.codes.CONFLICT:
            return parse_decimal(answer.body.decode("ascii", "replace").removesuffix("\n"), limit=MAX_SIZE)
    except (httpx.HTTPError, OSError, Unavailable) as error:
        raise _silent(witness, type(error).__name__) from error
    except Untrusted as error:
        raise _silent(witness, "its cosignature does not verify") from error
    # The same size and another root: C2SP answers 409 without a size, or 422.
    except TreatyError as error:
        raise _other_history(f"the witness {witness.key.name}") from error
    if answer.status == httpx.codes.UNPROCESSABLE_ENTITY:
        raise _other_history(f"the witness {witness.key.name}")
    raise _silent(witness, f"status {answer.status}")


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
        parsed = [statement.parse(leaf) if leaf.startswith(_STATEMENT_START) else None for leaf in leaves]
        for made in parsed:
            for blob in blobs_of(made.body) if made else ():
                await source.bring(blob)
        entries = [Entry(edge.size + n, leaf, parsed[n], source) for n, leaf in enumerate(leaves)]
        before = edge
        edge, tiles = edge.appended(map(leaf_hash, leaves))
        # Without facts: the rebuild derives them, with the check of every rule.
        await log_tables.append(writer, before, edge, entries, {}, tiles)
    if edge.root() != head.root:
        raise _other_history("its own checkpoint")


def _behind(head: Checkpoint, signed: int, source: str) -> Untrusted:
    return Untrusted(
        BackupCode.BEHIND,
        f"{source} {signed} leaves, and this backup has {head.size}. A log that goes on from it forks.",
        fix="Restore a newer backup, or complete this one from a mirror of the log: --mirror URL",
    )


def _other_history(place: str) -> Untrusted:
    return Untrusted(
        BackupCode.OTHER_HISTORY,
        f"This backup is of another history of the log than {place}.",
        fix="Do not start it. Keep both: together they show which key signed two histories.",
    )


def _not_empty(found: str) -> Conflict:
    return Conflict(
        BackupCode.NOT_EMPTY,
        f"A log is here already: {found}.",
        fix="Restore into an empty data directory and an empty database.",
    )


def _silent(witness: WitnessName, reason: str) -> Unavailable:
    return Unavailable(
        BackupCode.WITNESS,
        f"The witness {witness.key.name} did not say which head it cosigned last: {reason}.",
        fix="Try again. Leave a witness out only if another one, or the record, shows the newest head.",
    )
