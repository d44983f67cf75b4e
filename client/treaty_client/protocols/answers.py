"""Ask a registry about a protocol or a topic, and compare its answer with earlier answers.

The order is:

- Steps 1 to 4 prove the leaves of the answer.
- They are compared with the leaves that earlier answers proved (`verification.completeness`) and with treaty.lock. This is the
  first half of step 10. It comes here because all later steps depend on a complete answer.
- Leaves and checkpoint are remembered, even if a later step refuses the protocol: a proven status counts from then on.

Only leaves that the log's pinned key signed are compared and remembered. A third party on the path can shorten an answer and make
it fail, but it cannot add a leaf that an honest registry would contradict.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import CheckpointCode, RegistryCode
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, TooLarge, Untrusted
from treaty_consensus.kinds import Publish
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri
from treaty_io import durable
from treaty_io.codes import ClientCheckpointCode, ClientLogCode, MemoryCode

from ..policy import Policy
from ..registries.api import RegistryClient
from ..registries.bundle import Bundle
from ..registries.leaves import SeenLeaf
from ..registries.trust import TrustedRegistries, TrustedRegistry
from .earlier_decisions import EarlierDecisions, follow_back
from .log_head import LogHead
from .store import Lockfile, line_of
from .verification.checkpoint import missing_proof
from .verification.completeness import MissedEpochs, RegistryAnswer
from .verification.contradiction import SUFFIX, Contradiction, LeftOut
from .verification.records import Evidence, VerifiedProtocol
from .verification.steps import Step, VerificationFailed, taking
from .verification.ten_steps import check_kept, check_lock, check_registry, check_seen, prove, read_bundle

_ATTEMPTS = 8
"""Attempts, because another process may move the checkpoint while this one verifies. A limit ends a livelock."""
_LATE = (ClientCheckpointCode.STALE, CheckpointCode.NOT_WITNESSED, ClientLogCode.ROLLBACK)
"""Failures of an answer that is merely old."""
_MAX_CONTRADICTIONS = 64
"""Files of evidence for one registry. Without a limit it could fill the disk with new contradictions."""


_log = logging.getLogger(__name__)


class ProvenAnswer(NamedTuple):
    """An answer after steps 1 to 4 that contradicts no earlier answer. `data`: its bytes."""

    data: bytes
    bundle: Bundle
    evidence: Evidence


class Answers:
    """The questions of one agent. For one event loop; safe for concurrent use, and among processes of one home."""

    def __init__(
        self,
        registries: TrustedRegistries,
        lockfile: Lockfile,
        policy: Policy,
        client: Callable[[str], RegistryClient],
        now: Callable[[], int],
    ) -> None:
        """`client`: the HTTP API of a trusted registry, by origin. `now`: Unix seconds."""
        self._registries, self._lockfile, self._policy = registries, lockfile, policy
        self._client, self._now = client, now
        self._warned = set[str]()

    async def protocol(self, uri: ProtocolUri) -> ProvenAnswer:
        """Ask the registry of a protocol about it. Raises `VerificationFailed` and `Unavailable`."""
        with answering(Step.RESOLVE):
            return await self._ask(uri.origin, lambda client, since: client.bundle(uri, since=since), uri=str(uri))

    async def topic(self, origin: str, topic: str) -> ProvenAnswer:
        """Ask a registry about a topic. Raises `NotFound`, `VerificationFailed` and `Unavailable`."""
        return await self._ask(origin, lambda client, since: client.topic_bundle(topic, since=since), topic=topic)

    def advising(self, origin: str) -> AbstractAsyncContextManager[None]:
        """Return `RegistryClient.advising` of a registry."""
        return self._client(origin).advising()

    def check_again(self, verified: VerifiedProtocol) -> None:
        """Compare a verified protocol with the leaves seen and the lock changed since. Raises `VerificationFailed`, step 9 or 10.

        It runs on the event loop, so it reads only leaves that can contradict the protocol: its own, identities, and grants. It
        skips the thousands of leaves of the topic, because a newer decision or another protocol does not affect this one.
        """
        origin = parse_protocol_uri(verified.uri).origin
        with taking(Step.LOCK):
            self._check_memory(origin)
            subjects = RegistryAnswer(verified.evidence, uri=verified.uri).subjects
            own = {subject for subject in subjects if not subject.startswith("topic/")}
            seen = self._registries.memory.about(origin, own)
            check_kept(verified, seen, self._registries.get(origin).keys)
            check_lock(self._lockfile.read(), origin, verified.evidence, parse_protocol_uri(verified.uri))

    async def _ask(
        self, origin: str, ask: Callable[[RegistryClient, int | None], Awaitable[bytes]], *, uri: str = "", topic: str = ""
    ) -> ProvenAnswer:
        """Ask and verify, again if another process moved the checkpoint.

        The name that was asked for, `uri` or `topic`, decides which leaves the answer must hold. The name inside the answer does
        not.
        """
        for _ in range(_ATTEMPTS):
            with taking(Step.RESOLVE):
                # Read again in every attempt: the last one failed because the checkpoint had moved.
                registry = self._registries.get(origin)
            check_registry(registry, self._policy)
            client = self._client(origin)
            try:
                # With the size that was seen, so that the answer brings its proof of consistency in the same request.
                data = await ask(client, _size(registry))
            except NotFound:
                # A registry may not deny a name about which it proved leaves before.
                await asyncio.to_thread(self._check_unknown, origin, uri, topic)
                raise
            try:
                bundle = read_bundle(data, uri=uri, topic=topic)
                bridge = await self._bridge(bundle, registry)
                # In a thread: signatures and SQLite would stop the event loop for milliseconds to seconds.
                try:
                    evidence = await asyncio.to_thread(self._take, bundle, registry, bridge, uri, topic)
                except MissedEpochs as missed:
                    earlier = await follow_back(client, missed.gap, registry.keys)
                    evidence = await asyncio.to_thread(self._take, bundle, registry, bridge, uri, topic, earlier)
            except VerificationFailed as error:
                # A mirror may be late, or send what the log never signed. Another one is asked, and the rules stay the same.
                if (error.code in _LATE or not _is_proof(error)) and client.pass_over():
                    continue
                # If two signed checkpoints contradict each other, store the proof before the error is raised.
                raise await LogHead(self._client(origin), self._registries, origin).documented(error) from error.__cause__
            if evidence is not None:
                return ProvenAnswer(data, bundle, evidence)
        raise Conflict(RegistryCode.BUSY, f"Other processes keep changing the state of {origin}.", fix="Try again.")

    def _take(
        self,
        bundle: Bundle,
        registry: TrustedRegistry,
        bridge: list[bytes] | None,
        uri: str,
        topic: str,
        earlier: EarlierDecisions | None = None,
    ) -> Evidence | None:
        """Prove an answer, compare it, and remember it.

        Return None if another process has remembered another checkpoint, with which this answer was not compared. Raises
        `MissedEpochs`, and remembers nothing, if the newest decision has to be followed back and `earlier` is None.
        """
        evidence = prove(bundle, registry, self._policy, now=self._now(), bridge=bridge)
        with taking(Step.LOCK):
            self._check_memory(registry.name.origin)
            answer = RegistryAnswer(evidence, uri, topic, earlier.by_id if earlier else None)
            # Remember the leaves before the checkpoint: a crash in between only repeats the comparison.
            hold(self._registries, registry, bundle, answer, keep=self._kept, also=earlier.proven if earlier else ())
            requested = parse_protocol_uri(uri) if uri else None
            entries = self._lockfile.read()
            version = check_lock(entries, registry.name.origin, evidence, requested)
            if (
                requested is not None
                and version is not None
                # A frozen lock is not written. The memory of leaves knows what was taken back.
                and not self._policy.frozen
                and version != entries[line_of(requested)].versions[requested.version]
            ):
                self._pin_status(requested, evidence)
        # Last: a checkpoint that is remembered without its leaves would let a registry leave them out later.
        return evidence if advance(self._registries, registry, evidence) else None

    def _check_memory(self, origin: str) -> None:
        """Notice a memory that was lost. Raise its error where the policy says so; else log it, once in a process."""
        try:
            self._registries.check_memory(origin)
        except Untrusted as error:
            if self._policy.lost_memory == "refuse":
                raise
            if origin not in self._warned:
                self._warned.add(origin)
                _log.warning("%s What it forgot counts as at a first contact. %s", error.message, error.fix)

    def _pin_status(self, uri: ProtocolUri, evidence: Evidence) -> None:
        """Record in treaty.lock that a locked version was taken back, or restored. Then every machine with this lock refuses it
        at step 9.
        """
        line = line_of(uri)
        with self._lockfile.changing() as entries:
            version = check_lock(entries, uri.origin, evidence, uri)  # again, because another process may have changed it
            if version is not None:
                versions = {**entries[line].versions, uri.version: version}
                entries[line] = msgspec.structs.replace(entries[line], versions=versions)

    def _kept(self) -> set[str]:
        """Return the subjects that are never forgotten: protocols and publishers of treaty.lock, and publishers of the policy."""
        lines = self._lockfile.read()
        versions = {f"protocol/{line}/{version}" for line, locked in lines.items() for version in locked.versions}
        publishers = {locked.publisher for locked in lines.values()} | set(self._policy.publishers)
        return versions | {f"identity/{did}" for did in publishers}

    def _check_unknown(self, origin: str, uri: str, topic: str) -> None:
        """Raise `LeftOut` (`memory.contradicted`) if a registry denies a name about which it proved leaves before."""
        name, subject = uri or topic, f"protocol/{uri}" if uri else f"topic/{topic}"
        with taking(Step.LOCK):
            self._check_memory(origin)
            seen = self._registries.memory.about(origin, {subject})
        # Only a publication makes a name known to a registry.
        published = [leaf for leaf in seen if isinstance(leaf.statement.body, Publish)]
        if published:
            raise LeftOut(
                MemoryCode.CONTRADICTED,
                f"{origin} does not know {name}, but leaf {published[0].index} of its log, which was proved before, is about it.",
                f"Try again later, or show the proven leaves: treaty trust explain {name}",
            )

    async def _bridge(self, bundle: Bundle, registry: TrustedRegistry) -> list[bytes] | None:
        sizes = missing_proof(bundle, registry)
        if sizes is None:
            return None
        assert registry.seen is not None
        origin = registry.name.origin
        try:
            return await LogHead(self._client(origin), self._registries, origin).consistency(*sizes)
        except Untrusted as error:
            raise VerificationFailed(
                Step.CHECKPOINT, error.code, error.message, error.fix, evidence=(registry.seen, bundle.checkpoint)
            ) from error


def hold(
    registries: TrustedRegistries, registry: TrustedRegistry, bundle: Bundle, answer: RegistryAnswer,
    *, keep: Callable[[], set[str]] | None = None, also: Sequence[SeenLeaf] = (),
) -> None:  # fmt: skip
    """Compare an answer with the leaves seen before, and remember its leaves.

    `bundle`: the source of `answer`. `keep`: as in `SeenLeaves.learn`. `also`: leaves for the evidence, not to remember.
    Durable on return; nothing is written if no leaf is new. Raises `LeftOut`, with its evidence stored in
    `TrustedRegistries.evidence`, and the errors of `SeenLeaves.learn`.
    """
    own = [
        SeenLeaf.of(logged.statement, leaf.index, leaf.proof, bundle.checkpoint)
        for leaf, logged in zip(bundle.leaves, answer.evidence.statements, strict=True)
    ]
    check = partial(check_seen, answer, [*own, *also], key=registry.keys)
    try:
        registries.memory.learn(registry.name.origin, own, answer.subjects, check=check, keep=keep)
    except LeftOut as error:
        if error.contradiction is None:
            raise
        # Before the error is raised: the registry can show another history in the next answer, and then the proof would be gone.
        evidence_path = _keep_evidence(registries.evidence, error.contradiction)
        where = (
            f"{error.fix} Both sides are in {evidence_path}: treaty trust explain {answer.name}" if evidence_path else error.fix
        )
        raise LeftOut(error.code, error.message, where, error.contradiction) from error


def advance(registries: TrustedRegistries, registry: TrustedRegistry, evidence: Evidence) -> bool:
    """Remember the checkpoint of an answer if it is larger than `registry.seen`, with which it was proved consistent; and its
    time, and how much was learned.

    Return False if another checkpoint was remembered in the meantime.
    """
    newest = registry.newest
    # Never to a smaller one: an answer of a lagging server is consistent, but older.
    if newest is None or evidence.checkpoint.checkpoint.size > newest.checkpoint.size:
        newest = evidence.checkpoint
    origin, time = registry.name.origin, evidence.checkpoint.time or 0
    learned = registries.memory.learned(origin)
    return registries.advance(origin, registry.seen, newest.note, evidence.keys, learned=learned, time=time)


@contextmanager
def answering(step: Step) -> Iterator[None]:
    """Turn a refusal or an oversized answer into a failure of this step. Withdrawn bytes fail step 9."""
    try:
        yield
    except Gone as error:
        raise VerificationFailed(Step.STATUS, error.code, error.message, error.fix) from error
    except (NotFound, Malformed, TooLarge) as error:
        raise VerificationFailed(step, error.code, error.message, error.fix) from error


def contradictions(folder: Path, origin: str) -> list[Path]:
    """Return the files of evidence against a registry."""
    # A port's colon is replaced in file names, because some file systems do not allow it.
    # The digits of `_keep_evidence`, and not any text, or a registry whose name begins with this one could use up its limit.
    return sorted(folder.glob(f"{origin.replace(':', '_')}-{'[0-9a-f]' * 16}{SUFFIX}"))


def _keep_evidence(folder: Path, contradiction: Contradiction) -> Path | None:
    """Write the evidence and return its path. The same leaves always give the same file.

    Return None if the disk fails or the limit for this registry is reached.
    """
    leaves = [[leaf.index for leaf in side] for side in (contradiction.seen, contradiction.shown)]
    # Named by the leaves and not by the bytes, because each answer has another checkpoint and other proofs.
    name = canonical.hex_digest(canonical.dumps([contradiction.code, contradiction.subject, *leaves]))[:16]
    origin = contradiction.key.name
    path = folder / f"{origin.replace(':', '_')}-{name}{SUFFIX}"
    try:
        if path.exists():
            return path
        if len(contradictions(folder, origin)) >= _MAX_CONTRADICTIONS:
            return None
        durable.write(path, contradiction.format(), mode=0o600)
    except OSError:  # the answer is refused also without a file
        return None
    return path


def _size(registry: TrustedRegistry) -> int | None:
    with taking(Step.CHECKPOINT):
        return registry.newest.checkpoint.size if registry.newest else None


def _is_proof(error: VerificationFailed) -> bool:
    """Return whether the log signed two checkpoints or leaves that exclude each other. A leaf that is left out proves nothing:
    anybody on the path can do that."""
    contradiction = error.contradiction if isinstance(error, LeftOut) else None
    return bool(error.evidence) or (contradiction is not None and contradiction.verify())
