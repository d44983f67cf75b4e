"""Follow a registry: copy its log, check every rule, store the leaves and their blobs, and show the checkpoint.

A step asks for the newest checkpoint and does the following, in this order:

1. Copy the entries until their root is that of the checkpoint (`treaty_client.audit.mirror`).
2. Replay them with every check of an audit; each decision is computed again.
3. Copy the blobs that they name, then commit leaves, facts and derived rows together, a bundle of leaves at a time.
4. Store the note, and show it to readers.

A crash between two of them is repaired by the next start, which replays the log from the state that was saved last
(`treaty_client.audit.snapshot`) or else from leaf 0 of its copy; readers are served meanwhile. Nothing is shown before it passed
all checks.

Errors of the network, the disk or the database are tried again, after 1, 2, 4, … 30 seconds. A log that broke a rule, or signed
two histories, is not followed any further: this needs a decision of people. Readers keep what was verified.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextlib import suppress

import structlog

from treaty_client.audit.parallel_verification import ParallelVerifier
from treaty_client.audit.replay import WORTH_PROCESSES, AuditedReplay, Taken, replayed
from treaty_client.audit.replay_store import ReplayStore
from treaty_client.audit.snapshot import Snapshot, Snapshots
from treaty_client.registries.api import RegistryClient
from treaty_consensus import statement
from treaty_consensus.audit import Replay
from treaty_consensus.codes import AuditCode, LogCode
from treaty_consensus.errors import Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.facts import Fact
from treaty_consensus.kinds import Handler, Withdrawal, blobs_of
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.statement import Statement
from treaty_io.codes import ClientAuditCode, MirrorCode

from ..admission.content_checker import ContentChecker
from ..admission.uploads import Uploads
from ..catalogue.handler_facts import HandlerFacts
from ..log.checkpoints import Head
from ..log.entry import Entry
from ..storage.blobs import BlobStore
from ..storage.postgres import DATABASE_ERRORS
from ..storage.space import FreeSpace
from ..telemetry.measures import FORKS
from .blobs import BlobCopier
from .directory import MirrorDirectory
from .tables import MirrorTables

_PERIOD = 1.0  # seconds between two questions for the checkpoint
_AGAIN, _LONGEST_PAUSE = 1.0, 30.0  # seconds before the first retry, and at most
_ROOM = 64 * 1024 * 1024
"""Bytes kept free on the disk of the data directory. An upstream may sign a log that fills it."""
_SOURCE = "::"  # the network in whose turn foreign blobs are read; pages of readers have others
_FINAL = (LogCode.DAMAGED, *AuditCode, *ClientAuditCode)
"""Errors that remain: of this mirror's own files, and of leaves that the log signed."""

_log = structlog.get_logger(__name__)


class Follower:
    """Follows one registry. For one event loop: `run` once, in one task."""

    def __init__(
        self,
        keys: LogKeys,
        client: RegistryClient,
        directory: MirrorDirectory,
        tables: MirrorTables,
        uploads: Uploads,
        blobs: BlobStore,
        checker: ContentChecker,
        scratch: ReplayStore,
        snapshots: Snapshots,
        resumed: Snapshot | None = None,
    ) -> None:
        """`keys`: the trusted ones, with the rotations that this mirror has verified. `uploads`: deletes withdrawn bytes.
        `checker`: reads foreign blobs in processes with limits. `scratch`: an empty store, or the one of `resumed`, whose leaves
        are all in the tables."""
        self._client = client
        self._directory = directory
        self._tables = tables
        self._uploads = uploads
        self._blobs = blobs
        self._checker = checker
        self._copier = BlobCopier(client, blobs)
        self._mirror = directory.copy(keys)
        self._facts = RecordedFacts(scratch.facts)
        self.resumed = resumed.size if resumed else 0
        """The number of leaves that this start did not replay again."""
        self._scratch, self._snapshots, self._saved = scratch, snapshots, self.resumed
        replay = Replay(
            self._copier.reader(), facts=self._facts, digests=scratch.digests, resumed=resumed.replay if resumed else None
        )
        notes = resumed.notes if resumed else None
        self._run = AuditedReplay(keys, self._mirror, replay, directory.evidence, resumed=notes, taken=self._take)
        self._taken: deque[tuple[int, bytes, Taken]] = deque()
        """Leaves that were replayed and are not committed yet."""
        self._withdrew = True
        """Whether withdrawn bytes may be here still: at the start too, because a crash may have left some."""
        self.room = FreeSpace(directory.log.parent, "mirror", _ROOM)
        self.keys = keys
        """The keys of the log, with those of the rotations that were replayed."""
        self.head: Head | None = None
        """The head that is shown: every leaf of it is verified and stored."""
        self.failure: TreatyError | None = None
        """The error of the last step, or None after a step that succeeded."""
        self.alarm: TreatyError | None = None
        """The reason why the log is not followed any further."""

    async def run(self) -> None:
        """Follow until cancelled, or until there is an `alarm`."""
        pause = _AGAIN
        while self.alarm is None:
            try:
                await self.step()
            except TreatyError as error:
                self._report(error)
            except DATABASE_ERRORS as error:
                self._report(error)
            if self.failure is None:
                pause = _AGAIN
                await asyncio.sleep(_PERIOD)
            else:
                await asyncio.sleep(pause)
                # Doubled, so that a registry that is down is not asked each second.
                pause = min(2 * pause, _LONGEST_PAUSE)

    def resume(self, head: Head) -> None:
        """Show the head that was shown last, before a restart."""
        self.head = head

    async def step(self) -> None:
        """Take in everything of the newest checkpoint. Raises `Untrusted` for a log that broke a rule, and `Unavailable`."""
        proofs = self._directory.proofs()
        if proofs:
            raise Untrusted(
                MirrorCode.ROOT,
                f"{proofs[0]} proves that this log signed two histories.",
                fix="Send it to the users of the log. Nothing is followed as long as the file is there.",
            )
        self.room.check()
        await self._tables.connect()
        # First what is here: a crash may have left it, and the registry may be gone.
        copied = await asyncio.to_thread(self._mirror.checkpoint)
        if copied is not None and copied.checkpoint.size > self._run.replay.size:
            await self._take_in(copied)
            await self._publish(copied.note, copied)
        note = await self._client.checkpoint()
        signed = await self._copied(note)
        await self._take_in(signed)
        await self._publish(note, signed)
        if self.failure is not None:
            _log.info("followed again", size=signed.checkpoint.size)
        self.failure = None

    async def _take_in(self, signed: SignedCheckpoint) -> None:
        """Verify and store all leaves of the copy, whose checkpoint is `signed`."""
        added = signed.checkpoint.size - self._run.replay.size
        if added > 0:
            with ParallelVerifier() as workers:
                async for _ in replayed(self._run, workers if added >= WORTH_PROCESSES else None):
                    await self._commit()
        await self._commit()
        if self._withdrew:
            await self._uploads.expire()
            self._withdrew = False
        # They would grow with the log.
        self._run.decisions.clear()
        self._run.constitution.epochs.clear()
        await self._save(signed)

    async def _save(self, signed: SignedCheckpoint) -> None:
        """Save the replay for the next start, now that all of its leaves are stored."""
        replay, checkpoint = self._run.replay, signed.checkpoint
        if (replay.size, replay.root()) != (checkpoint.size, checkpoint.root):
            return
        if await asyncio.to_thread(self._snapshots.save, self._run, signed.note, self._scratch, before=self._saved):
            self._saved = replay.size

    async def _copied(self, note: bytes) -> SignedCheckpoint:
        """Copy the entries of a checkpoint; return the checkpoint of the copy, which may be a larger one."""
        try:
            signed = await self._mirror.follow(self._client, note, lambda _done, _all: self.room.check())
        except Untrusted as error:
            # A proxy may have answered with wrong bytes, which are stored by now. Without a proof they are fetched again.
            if error.code == MirrorCode.ROOT and not self._directory.proofs():
                await asyncio.to_thread(self._mirror.discard_unproved)
            raise
        return signed

    def _take(self, index: int, leaf: bytes, entry: Taken) -> None:
        # After a restart the tables have the first leaves already.
        if index >= self._tables.edge.size:
            self._taken.append((index, leaf, entry))

    async def _commit(self) -> None:
        """Store the replayed leaves with their blobs. Nothing is lost when it fails: the next call stores them."""
        await self._tables.connect()
        # The outcome of a failed commit was unknown: it may have happened.
        while self._taken and self._taken[0][0] < self._tables.edge.size:
            self._taken.popleft()
        if not self._taken:
            self._facts.stored()
            return
        statements = [entry for _, _, entry in self._taken if isinstance(entry, Statement)]
        # Before the leaves: a statement that is shown has its blobs.
        await self._copier.copy(
            [blob for logged_statement in statements for blob in blobs_of(logged_statement.body)], self._withdrawn
        )
        entries = [await self._entry(*each) for each in self._taken]
        await self._tables.append(entries, self._facts.changed)
        self._facts.stored()
        self._taken.clear()
        self._withdrew |= any(isinstance(logged_statement.body, Withdrawal) for logged_statement in statements)

    async def _entry(self, index: int, leaf: bytes, entry: Taken) -> Entry:
        admitted = entry if isinstance(entry, Statement) else None
        facts = await self._handler_facts(admitted.body) if admitted and isinstance(admitted.body, Handler) else None
        return Entry(index, leaf, admitted, self._blobs, facts)

    async def _handler_facts(self, body: Handler) -> HandlerFacts | None:
        """Read a handler's blobs in a process with limits, because another registry may have admitted anything.

        None: one of them was withdrawn. The projection then reads the other one, as a rebuild does.
        """
        contents = {digest: await self._blobs.get(digest) for digest in (body.wheel.sha256, body.bundle.sha256)}
        present = {digest: data for digest, data in contents.items() if data is not None}

        async def load() -> dict[str, bytes]:
            return present

        if len(present) < len(contents):
            return None
        try:
            return await self._checker.check(body, load, _SOURCE)
        # Contents that this release would not admit: the catalogue shows nothing of them.
        except Refused as error:
            _log.warning("a handler was logged that breaks the rules of handlers", uri=body.uri, code=error.code)
            return HandlerFacts()

    def _withdrawn(self) -> frozenset[str]:
        """Return the digests that the copied log withdraws, from the first leaf that is not committed on."""
        bodies = (_body(leaf) for leaves in self._mirror.entries(self._tables.edge.size) for leaf in leaves)
        return frozenset(body.sha256 for body in bodies if isinstance(body, Withdrawal))

    async def _publish(self, note: bytes, copied: SignedCheckpoint) -> None:
        """Store and show a note, unless a newer one is shown already."""
        self.keys = self._run.check_keys()
        signed = self.keys.open(note)
        # An older checkpoint: it is of this history, and a cache of the registry may have answered.
        if signed.checkpoint.size < copied.checkpoint.size:
            signed = self.keys.open(copied.note)
        if signed.time is None:
            raise Unavailable(MirrorCode.BEHIND, "The checkpoint of the registry has no time.")
        if self.head is not None and not self._is_newer(signed, self.head):
            return
        edge = await self._tables.edge_at(signed.checkpoint.size)
        await asyncio.to_thread(self._directory.show, signed.note)
        self.head = Head(signed, edge)

    def _is_newer(self, signed: SignedCheckpoint, head: Head) -> bool:
        shown_head, new_head = (head.size, head.time), (signed.checkpoint.size, signed.time or 0)
        # Witnesses cosign a moment after the head is released: the same head has another note then.
        return new_head > shown_head or (new_head == shown_head and signed.note != head.note)

    def _report(self, error: BaseException) -> None:
        if not isinstance(error, TreatyError):
            error = Unavailable(MirrorCode.BEHIND, f"The mirror could not store the log: {type(error).__name__}: {error}")
        proofs = [str(path) for path in self._directory.proofs()]
        # Wrong bytes of a proxy may be right the next time. What the log signed remains.
        if isinstance(error, Untrusted) and (proofs or error.code in _FINAL):
            self.alarm = error
            if proofs:
                FORKS.inc()
            _log.critical("the log is not followed any further", code=error.code, error=error.message, proofs=proofs)
        elif self.failure is None or self.failure.code != error.code:
            _log.warning("not followed", code=error.code, error=error.message)
        self.failure = error


def _body(leaf: bytes) -> object:
    with suppress(TreatyError):
        return statement.understand(leaf).body
    return None


class RecordedFacts(MutableMapping[str, Fact]):
    """Facts in another mapping, and the newest value of each fact that was set since the last `stored`."""

    def __init__(self, facts: MutableMapping[str, Fact]) -> None:
        self._facts = facts
        self.changed: dict[str, Fact] = {}
        """The newest values, by key."""

    def stored(self) -> None:
        """Forget the changes, which are stored."""
        self.changed = {}

    def __getitem__(self, key: str) -> Fact:
        return self._facts[key]

    def __contains__(self, key: object) -> bool:
        return key in self._facts

    def __setitem__(self, key: str, fact: Fact) -> None:
        self._facts[key] = fact
        self.changed[key] = fact

    def __delitem__(self, key: str) -> None:
        raise NotImplementedError("a replay deletes no fact")

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)
