"""Provide the registry as one object for the HTTP routes, the command line and the tests.

    async with Registry.open(settings) as registry: ...

Use one `Registry` per process, on one event loop. Every method may be called concurrently. Reads never wait for a write: they
use a released head, which is immutable, and rows below it. For several reads that must be consistent, take `registry.head` once
and pass it to each. Methods raise `Unavailable` when PostgreSQL does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TypeAlias

import structlog

from treaty_client.network.did_documents import DidDocument, fetch_did_document
from treaty_client.network.egress import EgressGuard
from treaty_client.network.hosts import Address, Network
from treaty_consensus import canonical
from treaty_consensus.did import Did, parse_did
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import NotFound, TreatyError, Unauthorized, Unavailable
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.sigstore_leaf import parse_sigstore_leaf
from treaty_consensus.statement import Verified

from . import projection
from .admission.identities import Identities
from .admission.intake import Intake
from .admission.uploads import Uploads
from .codes import RegistryIdentityCode, RegistryStatementCode
from .data_directory import open_operator, running_database
from .keys import Operator, Testimony
from .log.changes import Changes
from .log.checkpoints import RENEWAL, CheckpointSigner, Head
from .log.clock import Clock, LogClock, ReadUptime, machine_clock, machine_uptime
from .log.entry import Entry, Logged
from .log.fence import Fence
from .log.leader import Leader
from .log.reader import LogReader
from .log.seen_checkpoints import SeenCheckpoints
from .log.sequencer import Proposal, Sequencer
from .log.witnesses import WitnessClient
from .operator.decisions import Decided, Decisions
from .operator.maintenance import Rebuilt, rebuild
from .operator.parameters import Announced, Draft, ParametersStatus, read_draft, read_parameters_status
from .operator.schedule import Schedule, read_timetable
from .readiness import Readiness
from .settings import Settings
from .sigstore_authority.keys import AuthorityKeys
from .sigstore_authority.ports import LoggedLeaf
from .storage.blobs import BlobStore
from .storage.postgres import Connection, Pool, connect, lead, migrate, open_pool
from .storage.space import DATABASE_ROOM, FreeSpace

__all__ = ["Head", "Registry"]

_PATIENCE = 10.0
"""Seconds to wait at a start for the lock of the previous process, which may still be stopping."""
_SWEEP = 600  # seconds between two deletions of expired uploads and tokens

Resolve: TypeAlias = Callable[[Did], Awaitable[DidDocument]]

_log = structlog.get_logger(__name__)


class Registry:
    """A log with all its services. Made by `open`."""

    def __init__(
        self, settings: Settings, operator: Operator, fence: Fence, pool: Pool, database: str, clock: LogClock, resolve: Resolve
    ) -> None:
        self.origin = operator.origin
        self.base_url = settings.reached_at(operator.origin)
        self.log_key: VerifierKey = operator.log_key.verifier
        self.clock_key: VerifierKey = operator.clock_key.verifier
        self.operator: str = operator.did
        self.authority: AuthorityKeys = operator.authority
        self.trusted_root = operator.trusted_root
        self.proxies = settings.proxies
        self.pool = pool
        self.clock: Clock = clock.now
        self.blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
        self._database = database
        self._operator = operator
        self.uploads = Uploads(pool, self.blobs)
        self.reader = LogReader(pool)
        self._identities = Identities(
            pool=pool,
            uploads=self.uploads,
            operator=operator,
            resolve=resolve,
            submit=self._log_own,
            clock=self.clock,
        )
        self.changes = Changes()
        """The changes of the leaves that this process logged since it last took over the log. Replaced at each take-over."""
        signer = CheckpointSigner(operator.log_key, operator.clock_key)
        self.leader = Leader(lead=self._take_lead, apply=self._project, fence=fence, signer=signer, clock=clock)
        rooms = [] if settings.database else [FreeSpace(settings.data / "postgres", "database", DATABASE_ROOM)]
        self.disks = [*rooms, *filter(None, [self.blobs.room])]
        self._readiness = Readiness(self.leader, clock, self.disks, pool)
        self.accept_clock = clock.accept
        self.witnesses = WitnessClient(settings.witnesses, _network(settings), self.leader, self.reader)
        self.sequencer = Sequencer(self.leader, self.blobs, self._identities.committed, RENEWAL, self._readiness.permit_write)
        self.intake = Intake(
            pool=pool,
            origin=self.origin,
            operator=operator.did,
            quotas=settings.quotas,
            identities=self._identities,
            seen_checkpoints=SeenCheckpoints(self.log_key, self.reader, lambda: self.head),
            uploads=self.uploads,
            suffixes=self._suffixes,
            sequencer=self.sequencer,
            reader=self.reader,
        )
        # For pages: foreign blobs are read where admission checks them.
        self.read_blobs = self.intake.read
        self.decisions = Decisions(
            pool=pool,
            blobs=self.blobs,
            uploads=self.uploads,
            operator=operator,
            sequencer=self.sequencer,
            clock=self.clock,
            witnesses=self.witnesses,
        )
        self.schedule = Schedule(lambda: read_timetable(pool), self.decide, self.clock)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        *,
        clock: Clock = machine_clock,
        uptime: ReadUptime | None = None,
        resolve: Resolve | None = None,
    ) -> AsyncIterator[Registry]:
        """Start the database if needed, migrate it and lead the log. For a new data directory, make keys and the first leaves.

        `clock` replaces the machine's clock; the uptime is then unknown unless `uptime` is given. `resolve` fetches the document
        of a DID instead of the egress guard. Leaving the block waits for queued statements. Raises `Unavailable`, `Refused`,
        `Conflict`, `NotFound` or `Untrusted`, each with a fix.
        """
        async with AsyncExitStack() as stack:
            # Before the keys are made: a mistake in the file must not leave half a log.
            first = await asyncio.to_thread(read_draft, settings.parameters) if settings.parameters else None
            database = await stack.enter_async_context(running_database(settings))
            operator = await asyncio.to_thread(open_operator, settings)
            # Locked before the log is opened: a second process on this directory ends here.
            fence = await asyncio.to_thread(Fence, settings.fence, operator.origin)
            stack.callback(fence.close)
            async with connect(database) as connection:
                await migrate(connection)
            pool = await stack.enter_async_context(open_pool(database))
            uptime = uptime or (machine_uptime if clock is machine_clock else lambda: None)
            registry = cls(
                settings, operator, fence, pool, database, LogClock(clock, uptime, fence.signed), resolve or _guarded(settings)
            )
            # Ended in the reverse order: background work, a running close, queued statements, then processes, pool
            # and database.
            stack.push_async_callback(registry._readiness.close)
            stack.push_async_callback(registry.intake.close)
            stack.push_async_callback(registry.witnesses.close)
            stack.push_async_callback(registry.sequencer.stop)
            await registry.sequencer.start(patience=_PATIENCE)
            await registry._begin(first or Draft(development_parameters()))
            # After the first leaves, because the electorate is read from them.
            await registry.intake.refresh()
            stack.push_async_callback(registry.decisions.stop)
            for work in (registry._sweep(), registry.schedule.run(), registry.witnesses.run()):
                stack.callback(asyncio.create_task(work).cancel)
            yield registry

    @property
    def head(self) -> Head:
        """Return the newest released head."""
        assert self.leader.head is not None, "open released one"
        return self.leader.head

    @property
    def failing_witnesses(self) -> Mapping[str, str]:
        """Return the witnesses that do not cosign now: name → code of the reason."""
        return self.witnesses.failing

    async def check_ready(self) -> None:
        """Raise `Unavailable` with the reason when this process takes no writes now. Takes about a second at most."""
        await self._readiness.check()

    async def is_ready(self) -> bool:
        """Whether this process takes writes now."""
        try:
            await self._readiness.check()
        except Unavailable:
            return False
        return True

    def begin_stop(self) -> None:
        """Prepare to stop within seconds: refuse all contents whose check has not begun."""
        self.intake.begin_stop()

    async def submit(self, leaves: Sequence[bytes], *, source: str | None = None) -> list[Logged | TreatyError]:
        """Log statements that came from the IP address `source`. Returns one result per leaf, in order; leaves are judged
        independently.

        A statement that is logged already gets the receipt of its first leaf, even if its author's keys have changed since.
        Raises `Unavailable` when quotas or a full queue refuse all of them.
        """
        return await self.intake.submissions.submit(leaves, source)

    async def put_blob(self, sha256: str, leaf: bytes, data: bytes, *, source: str | None = None) -> bool:
        """Store an upload until the statement `leaf` that names it is logged. True when it was not stored before.

        Raises the errors that `submit` reports for the statement, `Refused` or `Malformed` when the two do not fit, and `Gone`
        when these bytes were withdrawn.
        """
        return await self.intake.submissions.upload(sha256, leaf, data, source)

    def charge_service(self, source: str | None) -> None:
        """Charge one request to the Sigstore services to an IP address. Raises `Unavailable`."""
        self.intake.submissions.charge_service(source)

    async def blob(self, sha256: str) -> bytes:
        """Return a blob that a logged statement names. Raises `NotFound`, also for a pending upload, or `Gone` when it was
        withdrawn."""
        return await self.uploads.served(canonical.parse_digest(sha256))

    async def append(self, leaf: bytes) -> LoggedLeaf:
        """Log a Sigstore leaf. Raises `Malformed`, `TooLarge` or `Unavailable`."""
        parse_sigstore_leaf(leaf)
        (position,) = await self.sequencer.submit([Proposal(leaf)])
        if isinstance(position, TreatyError):
            raise position
        assert position.proof is not None, "Sigstore leaves are always new"
        return LoggedLeaf(position.index, position.head.size, position.proof, position.head.root, position.head.note.decode())

    async def leaves(self, indexes: Iterable[int], head: Head | None = None) -> dict[int, bytes]:
        """Return the leaves at `indexes`. Raises `NotFound` when one is not below the head."""
        return await self.reader.leaves(indexes, head or self.head)

    async def inclusion(self, indexes: Iterable[int], head: Head | None = None) -> dict[int, list[bytes]]:
        """Return inclusion proofs at `head`. Raises `NotFound` when an index is not below it."""
        return await self.reader.inclusion(indexes, head or self.head)

    async def consistency(self, old: int, head: Head | None = None) -> list[bytes]:
        """Return the consistency proof from the tree of `old` leaves to `head`. Raises `NotFound` when the head is smaller."""
        return await self.reader.consistency(old, head or self.head)

    async def receipt(self, statement_id: str, head: Head | None = None) -> bytes:
        """Return the receipt (C2SP tlog-proof) of the statement with this id. Raises `NotFound`."""
        canonical.parse_digest(statement_id)
        at = head or self.head
        index = (await self.reader.index_of([statement_id], at)).get(statement_id)
        if index is None:
            raise NotFound(RegistryStatementCode.NOT_LOGGED, f"The statement {statement_id} is not in this log.")
        return (await self.reader.receipts([index], at))[index]

    async def tile(self, path: str, head: Head | None = None) -> bytes | None:
        """Return a hash tile or entry bundle by its path, such as /tile/0/x001/234.p/5 or /tile/entries/000.

        None when the log is not large enough yet. Raises `Malformed` when it is not the path of a tile.
        """
        return await self.reader.tile(path, head or self.head)

    async def authentication_keys(self, did: str) -> Mapping[str, bytes]:
        """Return the current keys of a DID: DID URL → raw Ed25519. They are the keys that a new statement would be judged by.

        A DID that the log does not know is resolved and logged. Raises `Malformed`, `Unauthorized` or `Unavailable`.
        """
        parsed = parse_did(did)
        keys = await self._identities.keys(parsed) or await self._identities.learn(parsed)
        if not keys:
            raise Unauthorized(RegistryIdentityCode.UNKNOWN, f"This log knows no key of {did}.")
        return keys

    async def testimony(self, did: str, key_id: str, *, source: str | None = None) -> Testimony:
        """Return the operator's half of an identity of `did` with its current document, for its logged key `key_id` to co-sign.

        `source`: the IP address of the request. Raises as `Identities.testimony`, and `Unavailable` (`quota.*`).
        """
        return await self.intake.admission.testimony(parse_did(did), key_id, source)

    async def spend(self, token: str, until: datetime) -> bool:
        """Return True for the first caller with this `token` (64 hex digits), in any process and after any restart; False for
        later ones.

        It may be forgotten after `until`.
        """
        # One statement decides which of several callers is first, in any number of processes.
        spent = "insert into spent_tokens (token, expires) values ($1, $2) on conflict do nothing returning true"
        return bool(await self.pool.fetchval(spent, bytes.fromhex(canonical.parse_digest(token)), until))

    async def decide(self) -> list[Decided]:
        """Close the open epoch: compute, sign and log the decision of every topic with a report or a ballot, in one commit.

        In a development electorate the operator calls this. In an open electorate the schedule calls it when an epoch is due;
        before that it raises `Refused` (`decision.early`). Also raises `Refused`, `Untrusted` or `Unavailable`.
        """
        # A shielded task: the caller may be cancelled, but a thread that replays the log cannot be.
        return await asyncio.shield(asyncio.create_task(self._close_epoch()))

    async def _close_epoch(self) -> list[Decided]:
        decided = await self.decisions.close_epoch()
        # Standings and the electorate change only with an epoch.
        await self.intake.refresh()
        return decided

    async def _suffixes(self) -> SuffixList | None:
        terms = (await self.parameters_status()).in_force.parameters.reputation
        if terms is None:
            return None
        return await asyncio.to_thread(SuffixList, await self.blob(terms.suffix_list.sha256))

    async def parameters_status(self) -> ParametersStatus:
        """Return the parameters in force, the announced ones, and the time when the open epoch closes."""
        return await read_parameters_status(self.pool)

    async def announce(self, draft: Draft) -> Announced:
        """Log parameters that hold from the next epoch on. Raises the errors of `Draft.check`, and `Unavailable`."""
        await asyncio.to_thread(draft.check)
        verified = await self._state_parameters(draft)
        (position,) = await self.sequencer.submit([Proposal(verified.statement.leaf, verified)])
        if isinstance(position, TreatyError):
            raise position
        found = await self.parameters_status()
        holds = found.in_force.statement == verified.statement.id  # an epoch may have closed meanwhile
        return Announced(verified.statement.id, position.index, found.epoch if holds else found.epoch + 1)

    async def rebuild(self) -> Rebuilt:
        """Derive every table from the leaves again and correct the rows that differ. Writers wait, readers do not.

        Raises `Untrusted` when the leaves themselves are damaged or break a rule.
        """
        async with self.sequencer.pause():
            writer = await lead(self._database, patience=_PATIENCE)
            try:
                return await rebuild(writer, self.pool, self.blobs)
            finally:
                await writer.close()

    async def _take_lead(self, patience: float) -> Connection:
        # Recorded changes may not have been committed, and another process may have written to the log.
        self.changes = Changes()
        self._identities.forget()
        return await lead(self._database, patience=patience)

    async def _project(self, connection: Connection, entries: Sequence[Entry]) -> None:
        await projection.apply(connection, entries)
        self.changes.record(entries)

    async def _begin(self, draft: Draft) -> None:
        """Log the first two leaves of a new log: its genesis and the constants of its election."""
        if self.head.size:
            return
        genesis = self._operator.state(self._operator.genesis(), issued=self.clock())
        parameters = await self._state_parameters(draft)
        async with self.sequencer.exclusive() as writer:
            # One commit: no log has a genesis without parameters.
            await writer.append([genesis, parameters])

    async def _state_parameters(self, draft: Draft) -> Verified:
        for digest, data in draft.blobs.items():
            # The blob first: a statement must not name bytes that are not here.
            await self.uploads.hold_own(digest, data)
        return self._operator.state(draft.parameters, issued=self.clock())

    async def _log_own(self, verified: Verified) -> None:
        (outcome,) = await self.sequencer.submit([Proposal(verified.statement.leaf, verified)])
        if isinstance(outcome, TreatyError):
            raise outcome

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                await self.uploads.expire()
                await self.pool.execute("delete from spent_tokens where expires < now()")
            # The next sweep tries again. The rest only costs space.
            except Exception as error:
                _log.error("expired uploads not swept", error=str(error))


def _network(settings: Settings) -> Network:
    return Network({host: Address(*address) for host, address in settings.resolve.items()}, settings.ca)


def _guarded(settings: Settings) -> Resolve:
    guard = EgressGuard(_network(settings))

    async def resolve(did: Did) -> DidDocument:
        return await fetch_did_document(did, guard)

    return resolve
