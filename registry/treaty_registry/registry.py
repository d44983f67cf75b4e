"""Provide the registry as one object for the HTTP routes, the command line and the tests.

    async with Registry.open(settings) as registry: ...

Use one `Registry` per process, on one event loop. Every method may be called concurrently. Reads never wait for a write: they
use a released head, which is immutable, and rows below it. For several reads that must be consistent, take `registry.head` once
and pass it to each. Methods raise `Unavailable` when PostgreSQL does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from treaty_client.registries.replies import Testimony, ValidatedKey
from treaty_consensus.codes import TokenCode
from treaty_consensus.did import decode_multikey, parse_did
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import TreatyError, Unauthorized, Unavailable
from treaty_consensus.kinds import Decision, Identity, Parameters
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.rotation import Rotation
from treaty_consensus.statement import Verified
from treaty_io.network.egress import EgressGuard

from . import projection
from .admission.identities import Identities
from .admission.intake import Intake
from .admission.spent_tokens import SpentTokens, sweep
from .admission.uploads import Uploads
from .admission.workflow_tokens import WorkflowTokens
from .codes import RegistryIdentityCode
from .data_directory import check_new, create_log, no_leaves, open_operator, open_record, running_database
from .keys import Operator
from .log.changes import Changes
from .log.checkpoints import RENEWAL, Head
from .log.clock import Clock, LogClock, ReadUptime, machine_clock, machine_uptime
from .log.entry import Entry, Logged
from .log.fence import HeadRecord
from .log.leader import Leader
from .log.mirror_uploads import MirrorUploads
from .log.proposals import Proposal
from .log.reader import LogReader
from .log.seen_checkpoints import SeenCheckpoints
from .log.sequencer import Sequencer
from .log.tables import read_keys
from .log.tile_copies import TileCopies
from .log.tile_copy import TileCopy
from .log.tile_uploads import TileUploads
from .log.witnesses import WitnessClient
from .nodes import Nodes
from .operator.announcements import Announcements
from .operator.boxes import WitnessBoxes
from .operator.decisions import Decided, Decisions
from .operator.maintenance import Rebuilt, rebuild
from .operator.other_signer import OtherSigner
from .operator.parameters import ParametersDraft, read_draft
from .operator.rotations import Rotated, Rotations
from .operator.schedule import Schedule, Timetable, read_timetable
from .operator.upkeep import Upkeep
from .operator.withdrawals import Withdrawals
from .outbound import Resolve, guarded, network_of
from .readable import ReadableLog
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


class Registry(ReadableLog):
    """A log with all its services. Made by `open`."""

    def __init__(
        self,
        settings: Settings,
        operator: Operator,
        fence: HeadRecord,
        pool: Pool,
        database: str,
        clock: LogClock,
        resolve: Resolve,
        keys: LogKeys | None,
    ) -> None:
        self.origin = operator.origin
        self.base_url = settings.reached_at(operator.origin)
        self.operator: str = operator.did
        self.signer = operator.identity
        keys = keys or operator.first_keys
        self.trusted_root = operator.trusted_root_of(keys.terms[0].log)
        self.proxies, self.contact, self.wheels = settings.proxies, settings.contact, settings.wheels
        self.pool = pool
        self.clock: Clock = clock.now
        self.blobs = BlobStore.open(settings.data / "blobs", settings.blobs)
        self.database = database
        self.uploads = Uploads(pool, self.blobs, contact=settings.contact)
        self._tokens = SpentTokens(pool)
        self.spend = self._tokens.spend
        self.reader = LogReader(pool)
        self._identities = self._known_identities(settings, operator, resolve)
        self.changes = Changes()
        """The changes of the leaves that this process has seen since the last take-over. Replaced at each one."""
        self._rotations = Rotations(settings.keys, operator)
        copies = [TileCopy(url, lambda: self.keys, self.reader) for url in settings.tiles]
        self.tiles = TileCopies(copies, settings.durability.copies)
        """The copies of the log in object stores; none without `--tiles`."""
        self.leader = Leader(
            lead=self._take_lead,
            apply=lambda *commit: projection.apply(*commit),  # noqa: PLW0108 (looked up at each commit, for faults in tests)
            addition=projection.addition,
            written=lambda entries: self.changes.record(entries),  # noqa: PLW0108 (it is replaced)
            fence=fence,
            keys=keys,
            signer_for=self._rotations.signer,
            clock=clock,
            durability=settings.durability,
            copies=self.tiles,
        )
        self.nodes: Nodes | None = self._other_nodes(settings) if settings.node is not None else None
        """The other nodes of this registry; None for the only process."""
        rooms = [] if settings.database else [FreeSpace(settings.data / "postgres", "database", DATABASE_ROOM)]
        self.disks = [*rooms, *filter(None, [self.blobs.room])]
        self._readiness = Readiness(self.leader, clock, self.disks, pool, self.nodes)
        self.accept_clock = clock.accept
        self.other_signer = OtherSigner(settings, operator.origin, self.leader, clock, self.reader)
        self._add_writers(settings, operator)

    def _known_identities(self, settings: Settings, operator: Operator, resolve: Resolve) -> Identities:
        return Identities(
            pool=self.pool,
            uploads=self.uploads,
            operator=operator,
            resolve=resolve,
            submit=self._log_own,
            clock=self.clock,
            validates=settings.validate,
        )

    def _other_nodes(self, settings: Settings) -> Nodes:
        assert settings.node is not None, "the caller has looked"
        return Nodes(
            url=settings.node,
            database=self.database,
            pool=self.pool,
            blobs=self.blobs,
            leader=self.leader,
            keys=lambda: self.keys,
            secret=self._rotations.secret,
            network=network_of(settings),
            lead=lambda: self.sequencer.lead(),  # noqa: PLW0108 (made below)
            learned=self._learn,
        )

    def _add_writers(self, settings: Settings, operator: Operator) -> None:
        """Add the parts that write, which stand on the ones that read."""
        self.upkeep = Upkeep(self.pool, settings.tls_cert, lambda: self.authority)
        network = network_of(settings)
        fetch = EgressGuard(network).get
        is_asked = "oidc" in settings.validate
        self._workflows = WorkflowTokens(self.origin, fetch, self._tokens, self.clock) if is_asked else None
        self.witnesses = WitnessClient(settings.witnesses, network, self.leader, self.reader)
        self._mirrors = MirrorUploads(settings.tlog_mirrors, self.origin, network, self.leader, self.witnesses, self.reader)
        self.sequencer = Sequencer(
            self.leader,
            self.blobs,
            self._identities.committed,
            RENEWAL,
            self._readiness.permit_write,
            self.nodes.send if self.nodes else None,
        )
        seen_checkpoints = SeenCheckpoints(lambda: self.keys, self.reader, lambda: self.head)
        self.intake = Intake(
            pool=self.pool,
            origin=self.origin,
            operator=operator.did,
            quotas=settings.quotas,
            contact=settings.contact,
            identities=self._identities,
            seen_checkpoints=seen_checkpoints,
            uploads=self.uploads,
            suffixes=self._suffixes,
            sequencer=self.sequencer,
            reader=self.reader,
        )
        self.checker = self.intake.checker
        self._boxes = WitnessBoxes(
            settings.witnesses, self.origin, network, self.leader, self.reader, self.intake.submissions, seen_checkpoints
        )
        self.decisions = Decisions(
            pool=self.pool,
            blobs=self.blobs,
            uploads=self.uploads,
            operator=operator,
            sequencer=self.sequencer,
            clock=self.clock,
            witnesses=self.witnesses,
            boxes=self._boxes,
            dask=settings.dask,
        )
        self._announcements = Announcements(
            pool=self.pool, uploads=self.uploads, operator=operator, sequencer=self.sequencer, clock=self.clock
        )
        self.withdrawals = Withdrawals(self.base_url, self.database, self.uploads, operator, self.sequencer, self.clock)
        self.announce = self._announcements.announce
        self.parameters_status = self._announcements.status
        self.schedule = Schedule(self._timetable, self.decide, self.clock)

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
        """Start the database if needed, migrate it and lead the log. With `settings.new` make its keys and the first leaves.

        `clock` replaces the machine's clock; the uptime is then unknown unless `uptime` is given. `resolve` fetches the document
        of a DID instead of the egress guard. Leaving the block waits for queued statements. Raises `TreatyError`, with a fix.
        """
        async with AsyncExitStack() as stack:
            # Before the keys are made: a mistake in the file must not leave half a log.
            first = await asyncio.to_thread(read_draft, settings.parameters) if settings.parameters else None
            # Before the database is started: where there is no log nothing is made, unless a new one is wanted.
            operator = await asyncio.to_thread(check_new if settings.new else open_operator, settings)
            database = await stack.enter_async_context(running_database(settings))
            operator = operator or await create_log(settings, database)
            # Locked before the log is opened: a second process on this directory ends here.
            fence = await asyncio.to_thread(open_record, settings, operator.origin)
            stack.callback(fence.close)
            async with connect(database) as connection:
                await migrate(connection, empty=no_leaves("The database is empty", fence.record))
            pool = await stack.enter_async_context(open_pool(database))
            uptime = uptime or (machine_uptime if clock is machine_clock else lambda: None)
            # The head of an empty log is shown to no one. Its time must not keep a new log from starting once a wrong clock is
            # right: no process would run that could accept the clock.
            log_clock = LogClock(clock, uptime, fence.signed if fence.record.size else None)
            # Without a rotation since, the keys are those in the files; another process may have rotated them.
            keys = await read_keys(pool)
            await operator.check_root(keys, lambda: pool.fetchval("select trusted_root from genesis"))
            registry = cls(settings, operator, fence, pool, database, log_clock, resolve or guarded(settings), keys)
            # Ended in the reverse order: background work, a running close, queued statements, then processes, pool
            # and database.
            for part in (registry._readiness, registry.intake, registry.witnesses, registry._boxes, registry.nodes):
                if part is not None:
                    stack.push_async_callback(part.close)
            stack.push_async_callback(registry.sequencer.stop)
            await registry.other_signer.begin()
            await registry.sequencer.start(patience=_PATIENCE)
            if registry.nodes is not None:
                await registry.nodes.begin(_PATIENCE)
            await registry._announcements.begin(first or ParametersDraft(development_parameters()))
            # After the first leaves, because the electorate is read from them.
            await registry.intake.refresh()
            stack.push_async_callback(registry.decisions.stop)
            parts = (
                *(registry.other_signer, registry.schedule, registry.witnesses, registry._mirrors, registry._boxes),
                TileUploads(registry.tiles, registry.leader),
                *(registry.upkeep, registry.nodes, registry.intake.senders if registry.nodes else None),
            )
            for work in (sweep(registry.uploads, registry._tokens), *(part.run() for part in parts if part is not None)):
                stack.callback(asyncio.create_task(work).cancel)
            yield registry

    @property
    def keys(self) -> LogKeys:
        """Return the keys of the log and its clock, with those before a rotation."""
        return self.leader.keys

    @property
    def authority(self) -> AuthorityKeys:
        """Return the Sigstore authority in force. Raises `Unavailable`, as `clock` and `Rotations.authority`."""
        return self._rotations.authority(self.keys, self.trusted_root, int(self.clock().timestamp()))

    async def rotate(self, overlap: int) -> Rotated:
        """Log the prepared rotation. `overlap`: seconds for which the keys before sign too. Raises as `Rotations.draft`."""
        if verified := await asyncio.to_thread(self._rotations.draft, self.keys, self.clock(), overlap):
            await self._log_own(verified)
        # On a node that follows the leaf is known as soon as its head is.
        await self._learn_keys()
        return self._rotations.described(self.keys)

    async def retire_keys(self) -> list[str]:
        """Move the keys before a rotation out of use; return their files. Raises as `Rotations.retire`."""
        return await asyncio.to_thread(self._rotations.retire, self.keys, self.clock())

    async def _learn_keys(self) -> None:
        keys = await read_keys(self.pool)
        if keys is not None and not self.leader.leads:
            self.leader.keys = keys

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
        """Raise `Unavailable` with the reason when this process takes no writes now."""
        await self._readiness.check()

    async def is_ready(self) -> bool:
        """Whether this process takes writes now."""
        with suppress(Unavailable):
            await self._readiness.check()
            return True
        return False

    def begin_stop(self) -> None:
        """Prepare to stop within seconds: refuse all contents whose check has not begun."""
        self.intake.begin_stop()

    async def submit(self, leaves: Sequence[bytes], *, source: str | None = None) -> list[Logged | TreatyError]:
        """Log statements that came from the IP address `source`. Returns one result per leaf, in order; each is judged alone.

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

    async def append(self, leaf: bytes) -> LoggedLeaf:
        """Log a Sigstore leaf. Raises `Malformed`, `TooLarge`, `Unavailable`, or `Refused` when a blocked DID signed it."""
        self.intake.check_sigstore(leaf)
        (position,) = await self.sequencer.submit([Proposal(leaf)])
        if isinstance(position, TreatyError):
            raise position
        assert position.proof is not None, "Sigstore leaves are always new"
        signed = position.signed
        return LoggedLeaf(position.index, signed.checkpoint.size, position.proof, signed.checkpoint.root, signed.note.decode())

    async def authentication_keys(self, did: str) -> Mapping[str, bytes]:
        """Return the current keys of a DID: DID URL → raw Ed25519. They are the keys that a new statement would be judged by.

        A DID that the log does not know is resolved and logged. Raises as `Identities.learn`, and `Refused` for a blocked DID.
        """
        parsed = parse_did(did)
        self.intake.senders.check_authors([parsed])
        keys = await self._identities.keys(parsed) or await self._identities.learn(parsed)
        if not keys:
            raise Unauthorized(RegistryIdentityCode.UNKNOWN, f"This log knows no key of {did}.")
        return keys

    async def testimony(self, did: str, key_id: str, *, source: str | None = None) -> Testimony:
        """Return the operator's half of an identity of `did` with its current document, for its logged key `key_id` to co-sign.

        `source`: the IP address of the request. Raises as `Identities.testimony`, and `Unavailable` (`quota.*`).
        """
        return await self.intake.admission.testimony(parse_did(did), key_id, source)

    async def validate(self, token: str, multikey: str, *, source: str | None = None) -> ValidatedKey:
        """Log the key of the account whose workflow's token names it. `source`: the IP address of the request.

        Raises `Malformed`, `TooLarge` or `Unauthorized` (`token.invalid`), `Refused` for a blocked DID, `Unavailable` (`quota.*`
        too), and as `Identities.validate`. A refusal spends no token.
        """
        if self._workflows is None:
            raise Unauthorized(
                TokenCode.INVALID,
                f"{self.origin} validates no accounts.",
                fix="Its operator decides that: treaty-registry serve --validate oidc",
            )
        # Before the token is read: each validation is a leaf that stays, and an unknown key makes us ask the issuer.
        self.charge_service(source)
        decode_multikey(multikey)
        evidence = await self._workflows.verify(token, multikey)
        did = parse_did(evidence.claims.did)
        self.intake.senders.check_authors([did])
        self.intake.quota.take_of(did, source)
        await self._workflows.spend(evidence)
        logged = await self._identities.validate(evidence, multikey)
        key_id = f"{did.text}#{multikey}"
        return ValidatedKey(did.text, key_id, logged.tenure, logged.ends[key_id])

    async def decide(self) -> list[Decided]:
        """Close the open epoch: compute, sign and log the decision of every topic with a report or a ballot, in one commit.

        In a development electorate the operator calls this. In an open electorate the schedule calls it when an epoch is due;
        before that it raises `Refused` (`decision.early`). Also raises `Refused`, `Untrusted` or `Unavailable`.
        """
        # A shielded task: the caller may be cancelled, but a thread that replays the log cannot be.
        decided = await asyncio.shield(asyncio.create_task(self.decisions.close_epoch()))
        # Standings and the electorate change only with an epoch.
        await self.intake.refresh()
        return decided

    async def _suffixes(self) -> SuffixList | None:
        terms = (await self.parameters_status()).in_force.parameters.reputation
        if terms is None:
            return None
        return await asyncio.to_thread(SuffixList, await self.blob(terms.suffix_list.sha256))

    async def rebuild(self) -> Rebuilt:
        """Derive every table from the leaves again and correct the rows that differ. Writers wait, readers do not.

        Raises `Untrusted` when the leaves themselves are damaged or break a rule.
        """
        async with self.sequencer.pause():
            writer = await lead(self.database, patience=_PATIENCE)
            try:
                return await rebuild(writer, self.pool, self.blobs)
            finally:
                await writer.close()

    async def _take_lead(self, patience: float) -> Connection:
        # Recorded changes may not have been committed, and another process may have written to the log.
        self.changes = Changes()
        self._identities.forget()
        return await lead(self.database, patience=patience)

    async def _learn(self, entries: Sequence[Entry] | None) -> None:
        """Take in the leaves of a head that another node released. None: any leaf may be among them."""
        bodies = [entry.statement.body for entry in entries or () if entry.statement]
        if entries is None:
            self.changes = Changes()
        else:
            self.changes.record(entries)
        if entries is None or any(isinstance(body, Identity) for body in bodies):
            self._identities.forget()
        if entries is None or any(isinstance(body, Rotation) for body in bodies):
            await self._learn_keys()
        # At a start nothing is served yet, and `open` reads them itself.
        if self.leader.head and (entries is None or any(isinstance(body, Decision | Parameters) for body in bodies)):
            await self.intake.refresh()

    async def _timetable(self) -> Timetable | None:
        # Only the leader can close an epoch.
        return await read_timetable(self.pool) if self.nodes is None or self.leader.leads else None

    async def _log_own(self, verified: Verified) -> None:
        (outcome,) = await self.sequencer.submit([Proposal(verified.statement.leaf, verified)])
        if isinstance(outcome, TreatyError):
            raise outcome
