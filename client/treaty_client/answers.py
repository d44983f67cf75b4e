"""Asking a registry for a protocol or a topic, and holding it to what it proved before.

An answer is taken in this order. Steps 1 to 4 prove its leaves. Then it is compared with the leaves that earlier answers proved
(`verification.completeness`) and with treaty.lock. That is the first half of step 10: it comes here because everything after it
rests on the answer being whole. Then its leaves and its checkpoint are remembered, also when a later step refuses what they say:
a status that was proved once counts from then on.

Only what the pinned key of the log signed is compared and remembered. So a third party between the two can make an answer fail,
by shortening it, but can put nothing into the memory that an honest registry would not confirm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, TooLarge, Untrusted
from treaty_consensus.kinds import Publish
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri

from . import durable
from .policy import Policy
from .registries.api import RegistryClient
from .registries.head import LogHead
from .registries.trust import TrustedRegistries, TrustedRegistry
from .store import Lockfile, check_pins, check_status, line_of
from .verification.bundle import Bundle
from .verification.completeness import Answer
from .verification.contradiction import SUFFIX, Contradiction, LeftOut, check_seen
from .verification.evidence import Evidence, missing_proof
from .verification.kept import check_kept
from .verification.leaves import SeenLeaf
from .verification.protocol import VerifiedProtocol, check_registry, prove, read_bundle
from .verification.steps import Step, VerificationFailed, taking

_ATTEMPTS = 8
"""How often the checkpoint may have been moved by another process while this one verified."""
_MAX_CONTRADICTIONS = 64
"""Files of evidence for one registry: it could contradict itself anew with every answer."""


class ProvenAnswer(NamedTuple):
    """An answer after steps 1 to 4 that contradicts nothing seen before. `data`: its bytes."""

    data: bytes
    bundle: Bundle
    evidence: Evidence


class Answers:
    """For one event loop; safe for concurrent use, and among processes of one home."""

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

    async def protocol(self, uri: ProtocolUri) -> ProvenAnswer:
        """What the registry of a protocol proves of it. Raises `VerificationFailed` and `Unavailable`."""
        with answering(Step.RESOLVE):
            return await self._ask(uri.origin, lambda client, since: client.bundle(uri, since=since), uri=str(uri))

    async def topic(self, origin: str, topic: str) -> ProvenAnswer:
        """What a registry proves of a topic. Raises `NotFound`, `VerificationFailed` and `Unavailable`."""
        return await self._ask(origin, lambda client, since: client.topic_bundle(topic, since=since), topic=topic)

    def check_again(self, verified: VerifiedProtocol) -> None:
        """Compare what was verified earlier with what was seen and locked since. Raises `VerificationFailed`, step 9 or 10.

        It runs on the event loop, so it reads only what can contradict the protocol: its own leaves, identities, grants. A topic
        has thousands, of which a newer decision takes nothing from it, and another protocol neither.
        """
        origin = parse_protocol_uri(verified.uri).origin
        with taking(Step.LOCK):
            subjects = Answer(verified.evidence, uri=verified.uri).subjects
            own = {subject for subject in subjects if not subject.startswith("topic/")}
            seen = self._registries.memory.about(origin, own)
            check_kept(verified, seen, self._registries.get(origin).name.key)
            entries = self._lockfile.read()
            check_pins(entries, origin, verified.evidence)
            check_status(entries, parse_protocol_uri(verified.uri), verified.evidence)

    async def _ask(
        self, origin: str, ask: Callable[[RegistryClient, int | None], Awaitable[bytes]], *, uri: str = "", topic: str = ""
    ) -> ProvenAnswer:
        """What is asked for, `uri` or `topic`, decides what the answer has to hold; never what the answer says that it is."""
        for _ in range(_ATTEMPTS):
            with taking(Step.RESOLVE):
                registry = self._registries.get(origin)
            check_registry(registry, self._policy)
            try:
                data = await ask(self._client(origin), _size(registry))
            except NotFound:
                await asyncio.to_thread(self._check_unknown, origin, uri, topic)
                raise
            bundle = read_bundle(data, uri=uri, topic=topic)
            bridge = await self._bridge(bundle, registry)
            try:
                evidence = await asyncio.to_thread(self._take, bundle, registry, bridge, uri, topic)
            except VerificationFailed as error:
                raise await LogHead(self._client(origin), self._registries, origin).documented(error) from error.__cause__
            if evidence is not None:
                return ProvenAnswer(data, bundle, evidence)
        raise Conflict("registry.busy", f"Other processes keep changing what is known of {origin}.", fix="Try again.")

    def _take(
        self, bundle: Bundle, registry: TrustedRegistry, bridge: list[bytes] | None, uri: str, topic: str
    ) -> Evidence | None:
        """Prove, compare, remember. None when another process has seen another checkpoint meanwhile, with which this one was not
        compared."""
        evidence = prove(bundle, registry, self._policy, now=self._now(), bridge=bridge)
        with taking(Step.LOCK):
            hold(self._registries, registry, bundle, Answer(evidence, uri, topic), keep=self._kept)
            check_pins(self._lockfile.read(), registry.name.origin, evidence)
            if uri:
                self._pin_status(parse_protocol_uri(uri), evidence)
        return evidence if advance(self._registries, registry, evidence) else None

    def _pin_status(self, uri: ProtocolUri, evidence: Evidence) -> None:
        """Record in treaty.lock that a locked version was taken back, or given back; step 9 refuses it on any machine then."""
        entries, line = self._lockfile.read(), line_of(uri)
        version = check_status(entries, uri, evidence)
        if version is None or version == entries[line].versions[uri.version]:
            return
        with self._lockfile.changing() as entries:
            version = check_status(entries, uri, evidence)  # another process may have changed it meanwhile
            if version is not None:
                versions = {**entries[line].versions, uri.version: version}
                entries[line] = msgspec.structs.replace(entries[line], versions=versions)

    def _kept(self) -> set[str]:
        """What is never forgotten: the protocols and publishers of treaty.lock, and the publishers of the policy."""
        lines = self._lockfile.read()
        versions = {f"protocol/{line}/{version}" for line, locked in lines.items() for version in locked.versions}
        publishers = {locked.publisher for locked in lines.values()} | set(self._policy.publishers)
        return versions | {f"identity/{did}" for did in publishers}

    def _check_unknown(self, origin: str, uri: str, topic: str) -> None:
        """Raises `LeftOut` (`memory.unknown`) when a registry says that it does not know what it proved before."""
        name, subject = uri or topic, f"protocol/{uri}" if uri else f"topic/{topic}"
        with taking(Step.LOCK):
            seen = self._registries.memory.about(origin, {subject})
        published = [leaf for leaf in seen if isinstance(leaf.statement.body, Publish)]
        if published:
            raise LeftOut(
                "memory.unknown",
                f"{origin} does not know {name}, which leaf {published[0].index} of its log is about, as was proved before.",
                f"Try again later, or see what was proved: treaty trust explain {name}",
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
    registries: TrustedRegistries, registry: TrustedRegistry, bundle: Bundle, answer: Answer,
    *, keep: Callable[[], set[str]] | None = None,
) -> None:  # fmt: skip
    """Compare an answer with what was seen before, and remember its leaves. `bundle`: what `answer` was read from. `keep`: as in
    `SeenLeaves.learn`.

    Durable when it returns; where nothing is new nothing is written. Raises `LeftOut`, with the evidence kept in
    `TrustedRegistries.evidence`, and what `SeenLeaves.learn` raises.
    """
    own = [
        SeenLeaf.of(logged.statement, leaf.index, leaf.proof, bundle.checkpoint)
        for leaf, logged in zip(bundle.leaves, answer.evidence.statements, strict=True)
    ]
    check = partial(check_seen, answer, own, key=registry.name.key)
    try:
        registries.memory.learn(registry.name.origin, own, answer.subjects, check=check, keep=keep)
    except LeftOut as error:
        if error.contradiction is None:
            raise
        kept = _keep_evidence(registries.evidence, error.contradiction)
        where = f"{error.fix} Both sides are in {kept}: treaty trust explain {answer.name}" if kept else error.fix
        raise LeftOut(error.code, error.message, where, error.contradiction) from error


def advance(registries: TrustedRegistries, registry: TrustedRegistry, evidence: Evidence) -> bool:
    """Remember the checkpoint of an answer, which was proved consistent with `registry.seen`, if it is larger. False when another
    one was remembered meanwhile."""
    newest = registry.newest
    if newest is None or evidence.checkpoint.checkpoint.size > newest.checkpoint.size:
        newest = evidence.checkpoint
    return registries.advance(registry.name.origin, registry.seen, newest.note)


@contextmanager
def answering(step: Step) -> Iterator[None]:
    """A registry that says no, or sends too much, fails the step; bytes that were withdrawn fail step 9."""
    try:
        yield
    except Gone as error:
        raise VerificationFailed(Step.STATUS, error.code, error.message, error.fix) from error
    except (NotFound, Malformed, TooLarge) as error:
        raise VerificationFailed(step, error.code, error.message, error.fix) from error


def contradictions(folder: Path, origin: str) -> list[Path]:
    """The files of evidence against a registry."""
    return sorted(folder.glob(f"{origin.replace(':', '_')}-*{SUFFIX}"))


def _keep_evidence(folder: Path, contradiction: Contradiction) -> Path | None:
    """Where the evidence is; None when it cannot be kept, or there is enough against this registry. The same leaves are one
    file, whenever they are shown."""
    leaves = [[leaf.index for leaf in side] for side in (contradiction.seen, contradiction.shown)]
    name = canonical.hex_digest(canonical.dumps([contradiction.code, contradiction.subject, *leaves]))[:16]
    origin = contradiction.key.name
    path = folder / f"{origin.replace(':', '_')}-{name}{SUFFIX}"
    try:
        if path.exists():
            return path
        if len(contradictions(folder, origin)) >= _MAX_CONTRADICTIONS:
            return None
        durable.write(path, contradiction.format())
    except OSError:  # what cannot be kept is refused all the same
        return None
    return path


def _size(registry: TrustedRegistry) -> int | None:
    with taking(Step.CHECKPOINT):
        return registry.newest.checkpoint.size if registry.newest else None
