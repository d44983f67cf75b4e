"""Fetch a protocol: take all ten steps with their I/O, and store the result.

A first fetch takes two requests: the bundle and the wheel. With the wheel in the store, it takes one. While the checkpoint of the
proof is younger than the policy's `max_age`, it takes none: the stored bytes are verified again, once a process, and compared
with all leaves of that registry that were seen since. Only step 10 stores code to run: blobs first, treaty.lock last. So a crash
leaves unused blobs, and never a lock entry without its bytes. Proven leaves are remembered earlier (`answers`).

An agent takes the comparison of step 10 before it uses a handler, and stores bytes and entry a moment later (`afterwards`), under
the lock and after the same comparison. A crash in between leaves the lock of before, as if the fetch had not begun: nothing that
ran was recorded, and the next fetch compares with what the lock had. If another process pinned something else meanwhile, the
protocol holds no longer (`holds`), and its sessions end.

`Keeper` takes the last part of step 10: it compares a verified handler with treaty.lock, stores its bytes, and records it in the
lock.

Step 1 finds the URI of the protocol that a name means. A name is a protocol URI, or a name that the policy's registries resolve
to exactly one verified protocol: `sha256:HEX`, or the canonical URI of a standard.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.kinds import Blob
from treaty_consensus.log.policy import WitnessRule
from treaty_consensus.log.witness import Quorum
from treaty_consensus.protocol import ProtocolUri, is_verified_alias, parse_protocol_uri
from treaty_io.afterwards import Afterwards
from treaty_io.codes import PolicyCode, ResolveCode
from treaty_io.network.did_documents import DidResolver, fetch_did_document
from treaty_io.network.egress import EgressGuard
from treaty_io.network.hosts import Network

from ..policy import Policy
from ..registries.api import RegistryClient
from ..registries.sources import Sources
from ..registries.trust import TrustedRegistries
from .answers import Answers, answering
from .log_head import LogHead
from .store import LockedProtocol, LockedVersion, Lockfile, Proofs, Store, line_of
from .topic_cache import TopicCache
from .topics import Candidates, Topics
from .verification.pins import Change, changes_of, lock_entry
from .verification.records import Evidence, ProvenProtocol, VerifiedProtocol
from .verification.steps import Step, VerificationFailed, outcome, taking
from .verification.ten_steps import (
    check_handler,
    check_host_keys,
    choose_handler,
    prove_document,
    read_bundle,
    verify_bundle,
    verify_handler,
    verify_signer,
)
from .verification.topic import TopicView

if TYPE_CHECKING:
    from .stamping import Stamping
    from .verification.ten_steps import Signed


Progress = Callable[[Step, str], None]
"""Called after each step that holds, with a sentence for a person."""
_log = logging.getLogger(__name__)


def _silent(step: Step, text: str) -> None:
    """Ignore the progress."""


class Fetcher:
    """The fetcher of one agent. Long-lived, with one HTTP client; close it. Safe for concurrent use on one event loop.

    `home`: the folder of registries.json, treaty.lock and the store. `clock`: returns Unix seconds.
    """

    def __init__(
        self,
        home: Path,
        policy: Policy,
        network: Network | None = None,
        *,
        clock: Callable[[], float] = time.time,
        resolver: DidResolver | None = None,
        timeout: float | None = None,
        afterwards: Afterwards | None = None,
    ) -> None:
        """Create the fetcher. `resolver`: for documents of publishers, if the policy asks for them; by default over `network`.
        `timeout`: seconds for an exchange with a registry; default the network's. `afterwards`: stores what was fetched; without
        it a fetch ends when all is durable."""
        self.policy = policy
        self._home = home
        self.registries = TrustedRegistries(home)
        self._afterwards = afterwards
        self._store = Store(home)
        self._lockfile = Lockfile(home, afterwards.settle) if afterwards else Lockfile(home)
        self._proofs = Proofs(home, self._store)
        self._keeper = Keeper(self.registries, self._store, self._lockfile, self._proofs, policy)
        self._network = network or Network()
        self._clock = clock
        self._http = self._network.client(timeout=timeout)
        self._given_resolver = resolver
        self._sources: dict[str, Sources] = {}
        """By origin; only trusted registries are in it."""
        self._answers = Answers(self.registries, self._lockfile, policy, self.client, self._now)
        self._verified: dict[str, VerifiedProtocol] = {}
        self._compared: dict[str, tuple[VerifiedProtocol, tuple[int, int]]] = {}
        """By URI: the protocol that was compared last, and the version of the memory then."""
        cache = TopicCache(home, self._store, self.registries, policy, self._now)
        self._topics = Topics(self._answers, cache, self.registries, policy, self._stored_about)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # weak, because peers name the URIs

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the HTTP client and the memory of what registries proved."""
        await self._topics.aclose()
        # The client first, so that a late answer does not open the memory again.
        await self._http.aclose()
        if self._afterwards is not None:  # before the memory is closed, with which they compare
            await self._afterwards.aclose()
        self.registries.memory.close()

    def client(self, origin: str) -> RegistryClient:
        """Return the HTTP API of a trusted registry and its mirrors, over this fetcher's client. Raises `Untrusted`."""
        base_url = self.registries.get(origin).name.base_url
        source = self._sources.get(origin)
        # Kept among requests: an address that is down must not delay each of them.
        if source is None or source.registry != base_url:
            source = self._sources[origin] = Sources(base_url, self.policy.mirrors.get(origin, ()))
        return RegistryClient(source, self._network, client=self._http)

    def head(self, origin: str) -> LogHead:
        """Return the head of a trusted registry's log. Raises `Untrusted`."""
        return LogHead(self.client(origin), self.registries, origin, copies=self.policy.copies)

    def stamping(self, origin: str, via: Sequence[str] = ()) -> Stamping | None:
        """Return the witnesses by which statements of this home go to a log. `via`: URL#KEY of each, in place of the policy's.

        None where neither names any. Raises as `StampingWitness.parse`.
        """
        from .stamping import StampedFolder, Stamping, StampingWitness  # most agents fetch, and state nothing

        named = via or self.policy.via.get(origin, ())
        witnesses = [StampingWitness.parse(text) for text in named]
        return Stamping(witnesses, self._network, StampedFolder(self._home / "stamped", origin), self._clock) if named else None

    async def fetch(
        self, name: str, *, fresh: bool = False, accept: Collection[Change] = (), progress: Progress = _silent
    ) -> VerifiedProtocol:
        """Return a protocol and the handler that the policy selects, after all ten steps.

        `name`: a protocol URI, or a name that the policy's registries resolve to exactly one verified protocol (`sha256:HEX`, the
        canonical URI of a standard). `fresh`: ask the registry even if the stored proof is young enough. `accept`: ask it, and
        let step 10 accept these changes since the last fetch; a contradiction of the log is never accepted.

        Raises `VerificationFailed`, and `Unavailable` if the registry does not answer. After an error only the memory of the log
        may have changed.
        """
        uri, expected = await resolve(name, self.registries, self.policy, self.client)
        # One fetch of a URI at a time, so that a second caller finds the result of the first one.
        async with self._turns.setdefault(str(uri), asyncio.Lock()):
            cached_protocol = None if fresh or accept else self._known(uri)
            if cached_protocol is not None and expected in (None, cached_protocol.hash):
                progress(Step.STATUS, f"verified {cached_protocol.age(self._now())} s ago, which the policy allows")
                return cached_protocol
            # CPU-bound and disk work runs in threads, so that the event loop stays responsive.
            later = None if accept else self._afterwards
            async with self._answers.advising(uri.origin):
                verified = await self._verify(uri, name, expected, progress, compare=later is not None)
            # After all steps: code that a step refused is never in the lock.
            if later is None:
                await asyncio.to_thread(self._keeper.keep, uri, verified, accept)
            else:
                later.add(partial(self._keep_later, uri, verified))
            progress(Step.LOCK, f"kept, and {verified.publisher} {'is' if self.policy.frozen else 'recorded'} in treaty.lock")
            self._verified[verified.uri] = verified
            return verified

    async def preview(self, name: str) -> VerifiedProtocol:
        """Return what `fetch` would verify now, after nine steps, and after the part of the tenth about the log. The registry is
        asked, and only the memory of its log changes. Raises as `fetch`."""
        uri, expected = await resolve(name, self.registries, self.policy, self.client)
        return await self._verify(uri, name, expected, _silent, compare=False)

    async def renew(self, uri: str) -> VerifiedProtocol:
        """Return the protocol of a URI, verified now, also if the stored proof is young. Raises as `fetch`."""
        return await self.fetch(uri, fresh=True)

    def cached(self, document_hash: str) -> VerifiedProtocol | None:
        """Return a fetched protocol with that hash, or None. Makes no request.

        It must be younger than the policy's `max_age`, and no leaf seen since may contradict it. Bytes from the disk are verified
        again; damage, or a policy that no longer admits it, gives None.
        """
        for verified in list(self._verified.values()):
            if verified.hash == document_hash and self._is_fresh(verified) and self._still_holds(verified):
                return verified
        try:
            locked_lines = self._lockfile.read()
        except TreatyError:  # ignored here: a fetch reports it at step 10
            return None
        for line, locked in locked_lines.items():
            for version, entry in locked.versions.items():
                if entry.document == document_hash:
                    verified_again = self._known(parse_protocol_uri(f"{line}/{version}"))
                    if verified_again is not None and verified_again.hash == document_hash:
                        return verified_again
        return None

    def holds(self, uri: str) -> bool:
        """Return whether no leaf seen since contradicts the last `fetch` of a protocol URI, of any age. Makes no request.

        Return False for a URI that this object has not fetched. Reads the disk only if a leaf was learned since the last call.
        """
        verified = self._verified.get(uri)
        return verified is not None and self._still_holds(verified)

    async def document(self, uri: str) -> bytes:
        """Return the document of a protocol URI, to read and not to run. Raises as `fetch`.

        The policy's publishers do not matter for this. Only the memory of the log changes.
        """
        with taking(Step.RESOLVE):
            parsed = parse_protocol_uri(uri)
        cached_protocol = self._known(parsed)
        if cached_protocol is not None:
            return cached_protocol.document
        answer = await self._answers.protocol(parsed)
        return prove_document(answer.bundle, parsed, answer.evidence)

    async def candidates(self, topic: str, *, fresh: bool = False) -> Candidates:
        """Return a topic's protocols at all registries of the policy, from the store if its proofs are young enough and not
        `fresh`. Raises as `topic`."""
        return await self._topics.candidates(topic, fresh=fresh)

    async def topic(self, topic: str) -> list[TopicView]:
        """Return the verified view of a topic at each registry of the policy, asked now. Raises `VerificationFailed`, and
        `NotFound` or `Unavailable` if no view remains."""
        return await self._topics.ask(topic)

    def _stored_about(self, topic: str) -> list[str]:
        """Return the verified protocols of the store about a topic whose proof is young enough."""
        try:
            lines = self._lockfile.read()
        except TreatyError:  # ignored here: a fetch reports it at step 10
            return []
        uris = [parse_protocol_uri(f"{line}/{version}") for line, locked in lines.items() for version in locked.versions]
        cached_protocols = [self._known(uri) for uri in uris if self.policy.admits_registry(uri.origin)]
        return [verified.uri for verified in cached_protocols if verified is not None and verified.topic == topic]

    async def _verify(
        self, uri: ProtocolUri, name: str, expected: str | None, progress: Progress, *, compare: bool
    ) -> VerifiedProtocol:
        """Take steps 1 to 9, and the part of step 10 about the log. `compare`: that about treaty.lock too."""
        pinned = await asyncio.to_thread(self._keeper.pinned, uri)
        answer = await self._answers.protocol(uri)
        proven = await asyncio.to_thread(
            choose_handler, answer.bundle, uri, answer.evidence, self.policy, expected_hash=expected, pinned=pinned
        )
        if expected is None and name != str(uri):
            check_claim(name, proven)
        if self.policy.resolve_publishers:
            await self._check_own_host(proven.handler.publisher, answer.evidence)
        _narrate(proven, self.policy.witnesses, progress)
        # Step 8 needs no wheel, so it is taken beside the download. Its outcome is looked at after step 7, as without it.
        signing = asyncio.ensure_future(asyncio.to_thread(outcome, partial(verify_signer, proven, self.policy)))
        # The wheel is fetched only now, because steps 1 to 6 need no code and may refuse it.
        wheel = await self._wheel(self.client(uri.origin), proven.handler.body.wheel)
        signed = await signing
        verified = await asyncio.to_thread(self._verify_handler, uri, proven, wheel, signed, answer.data, compare)
        progress(Step.WHEEL, f"{verified.package.filename}, {len(wheel)} bytes, keeps the rules")
        progress(Step.ATTESTATION, f"signed by {verified.signer.identity}, for this URI, hash and entry point")
        progress(Step.STATUS, " ".join(verified.warnings) or "neither yanked, revoked nor withdrawn")
        return verified

    def _verify_handler(
        self,
        uri: ProtocolUri,
        proven: ProvenProtocol,
        wheel: bytes,
        signed: Signed,
        bundle: bytes,
        compare: bool,
    ) -> VerifiedProtocol:
        verified = verify_handler(proven, wheel, self.policy, bundle=bundle, signed=signed)
        if compare:
            self._keeper.compare(uri, verified)
        return verified

    async def _check_own_host(self, publisher: str, evidence: Evidence) -> None:
        """Compare the keys that the log has for a DID with the document at its own host. A did:key has no document.

        Raises `VerificationFailed` (step 4, `publisher.other-keys`), and the errors of the resolver.
        """
        identities = evidence.identities(publisher)
        if not identities:
            return
        check_host_keys(publisher, identities, await self._resolver.resolve(parse_did(publisher)))

    @cached_property
    def _resolver(self) -> DidResolver:
        return self._given_resolver or DidResolver(partial(fetch_did_document, guard=EgressGuard(self._network)))

    async def _wheel(self, client: RegistryClient, blob: Blob) -> bytes:
        stored = self._store.get(blob.sha256)
        if stored is not None:
            return stored
        with answering(Step.WHEEL):
            return await client.blob(blob)

    def _known(self, uri: ProtocolUri) -> VerifiedProtocol | None:
        """Return a fetch that is still fresh and not contradicted: from memory, or from the store after steps 1 to 9 and the
        lock.
        """
        verified = self._verified.get(str(uri))
        if verified is None or not self._is_fresh(verified) or not self._still_holds(verified):
            try:
                verified = self._load(uri, now=self._now())
            except TreatyError:  # stale, or no longer admitted: a fetch from the registry reports it
                verified = None
            if verified is None or not self._still_holds(verified):
                return None
        self._verified[verified.uri] = verified
        return verified

    def _still_holds(self, verified: VerifiedProtocol) -> bool:
        """Return whether no leaf seen or lock entry changed since contradicts it. Reads nothing if the memory has not changed
        since.
        """
        try:
            # Before comparing: a leaf that another process learns meanwhile makes the next call compare again.
            version = self.registries.memory.version()
            compared, with_version = self._compared.get(verified.uri, (None, None))
            if compared is not verified or with_version != version:
                self._answers.check_again(verified)
                self._compared[verified.uri] = (verified, version)
        except TreatyError:  # ignored here: a fetch from the registry reports it
            self._verified.pop(verified.uri, None)
            return False
        return True

    def stored(self, uri: ProtocolUri) -> VerifiedProtocol | None:
        """Return the version that treaty.lock pins, by stored bytes with a proof of any age; None where bytes are missing. Blocks
        on the disk. Raises `VerificationFailed` for what the policy or a leaf seen since refuses."""
        verified = self._load(uri, now=None)
        if verified is not None:
            self._answers.check_again(verified)
        return verified

    def _load(self, uri: ProtocolUri, *, now: int | None) -> VerifiedProtocol | None:
        locked = self._lockfile.read().get(line_of(uri))
        data = self._proofs.get(str(uri))
        if locked is None or uri.version not in locked.versions or data is None:
            return None
        # Without `seen`: the checkpoint was consistent when it was stored, and is older than the newest one now.
        with taking(Step.RESOLVE):
            registry = dataclasses.replace(self.registries.get(uri.origin), seen=None)
        pinned = self._keeper.pinned(uri)
        proven = verify_bundle(read_bundle(data, uri=str(uri)), uri, registry, self.policy, now=now, pinned=pinned)
        wheel = self._store.get(proven.handler.body.wheel.sha256)
        if wheel is None:
            return None
        verified = verify_handler(proven, wheel, self.policy, bundle=data)
        check_handler(verified, uri, locked)
        return verified

    def _keep_later(self, uri: ProtocolUri, verified: VerifiedProtocol) -> None:
        """Take the last part of step 10 for a handler that is in use already."""
        try:
            self._keeper.keep(uri, verified)
        except TreatyError as error:
            # Another process pinned something else meanwhile. From now on `holds` is false, and sessions end.
            self._verified.pop(verified.uri, None)
            _log.error("%s does not hold any more: %s (%s)", verified.uri, error, error.code)
        except OSError as error:
            # The handler was verified and stays in use. It is not pinned, as before its first fetch.
            _log.warning("%s cannot be recorded in treaty.lock: %s", verified.uri, error)

    def _is_fresh(self, verified: VerifiedProtocol) -> bool:
        return verified.age(self._now()) <= self.policy.max_age

    def _now(self) -> int:
        return int(self._clock())


def _narrate(proven: ProvenProtocol, witnesses: WitnessRule | None, progress: Progress) -> None:
    head = proven.evidence.checkpoint.checkpoint
    progress(Step.RESOLVE, f"{proven.uri}, at {proven.uri.origin}")
    witness_count = f"{witnesses.needed} of your witnesses" if isinstance(witnesses, Quorum) else "the quorum of your witnesses"
    who = f"its clock and {witness_count}" if witnesses else "its clock"
    progress(Step.CHECKPOINT, f"{head.size} leaves, signed by the key you trust, cosigned by {who}")
    progress(Step.INCLUSION, f"{len(proven.evidence.statements)} statements are in the log")
    progress(Step.STATEMENTS, f"signed and admissible; published by {proven.author}")
    progress(Step.DOCUMENT, f"{len(proven.document)} bytes, SHA-256 {proven.publish.document.sha256}")
    progress(Step.HANDLER, f"{proven.handler.body.filename} by {proven.handler.publisher}, a publisher of the policy")


class Keeper:
    """Keep what was verified, in one home. The methods block on the disk."""

    def __init__(self, registries: TrustedRegistries, store: Store, lockfile: Lockfile, proofs: Proofs, policy: Policy) -> None:
        self._registries, self._store, self._lockfile, self._proofs = registries, store, lockfile, proofs
        self._policy = policy

    def pinned(self, uri: ProtocolUri) -> LockedVersion | None:
        """Return the version that must be used, where the policy is frozen, else None. Raises `VerificationFailed`
        (`policy.refused`) if treaty.lock does not pin the protocol."""
        if not self._policy.frozen:
            return None
        with taking(Step.LOCK):
            locked = self._lockfile.read().get(line_of(uri))
            if locked is None or uri.version not in locked.versions:
                raise Refused(
                    PolicyCode.REFUSED,
                    f"treaty.lock does not pin {uri}, and the policy is frozen.",
                    fix=f"Pin it: treaty lock {uri}",
                )
            return locked.versions[uri.version]

    def compare(self, uri: ProtocolUri, verified: VerifiedProtocol) -> None:
        """Compare a handler with treaty.lock and with the leaves that were seen. Raises `VerificationFailed`; changes nothing."""
        self._compare(uri, verified, self._lockfile.read().get(line_of(uri)))

    def keep(self, uri: ProtocolUri, verified: VerifiedProtocol, accept: Collection[Change] = ()) -> None:
        """Compare the handler, store the bytes, and pin them in the lock, unless the policy is frozen. Durable on return. Raises
        `VerificationFailed` and OSError; then the lock is unchanged. `accept`: as in `Fetcher.fetch`."""
        line = line_of(uri)
        with taking(Step.LOCK), self._lockfile.changing() as entries:
            locked = entries.get(line)
            self._compare(uri, verified, locked, accept)
            # Blobs before the lock entry that names them: a crash in between leaves only unused blobs.
            self._store.put(verified.wheel)
            self._proofs.put(verified.uri, verified.bundle)
            if not self._policy.frozen:
                entries[line] = _with_version(locked, uri.version, verified)

    def _compare(
        self, uri: ProtocolUri, verified: VerifiedProtocol, locked: LockedProtocol | None, accept: Collection[Change] = ()
    ) -> None:
        with taking(Step.LOCK):
            seen = self._registries.memory.about(uri.origin, {f"protocol/{uri}"})
            check_handler(verified, uri, locked, seen, accept)


def _with_version(locked: LockedProtocol | None, version: str, verified: VerifiedProtocol) -> LockedProtocol:
    """Return a lock entry with a verified version in it. The other versions stay."""
    entry = lock_entry(verified)
    versions = dict(locked.versions) if locked is not None else {}
    is_same = locked is not None and not changes_of(locked, entry)
    if not is_same:  # documents stay pinned; the handlers were the old publisher's
        versions = {
            other: msgspec.structs.replace(version_entry, handler=None, handler_status=None)
            for other, version_entry in versions.items()
        }
    replaced = versions.get(version)
    is_same_handler = replaced is not None and is_same and replaced.wheel == verified.package.digest
    versions[version] = LockedVersion(
        document=verified.hash,
        entry_point=str(verified.package.entry_point),
        filename=verified.package.filename,
        wheel=verified.package.digest,
        published=verified.evidence.published(verified.uri).index,
        handler=verified.handler_index,
        status=replaced.status if replaced is not None else None,
        handler_status=replaced.handler_status if replaced is not None and is_same_handler else None,
    )
    return msgspec.structs.replace(entry, versions=versions)


async def resolve(
    name: str, registries: TrustedRegistries, policy: Policy, client: Callable[[str], RegistryClient]
) -> tuple[ProtocolUri, str | None]:
    """Return the URI that a name means, and the document's hash if the name is a hash.

    `client`: returns the API of a registry, by origin. Raises `VerificationFailed` (`resolve.unknown`, `resolve.ambiguous`,
    `registry.not-trusted`) and `Unavailable`.
    """
    try:
        uri = parse_protocol_uri(name)
    except TreatyError:
        uri = None
    # A URI of a trusted registry needs no question: its own log answers for it.
    if uri is not None and uri.origin in registries.all():
        return uri, None
    expected = _hash_in(name)
    uris: dict[str, ProtocolUri] = {}
    origins = [origin for origin in registries.all() if policy.admits_registry(origin)]
    # All of them, also after a first match: a second one makes the name ambiguous, and none of the registries may decide that.
    for matches in await asyncio.gather(*(_matches(client(origin), origin, name) for origin in origins)):
        uris |= matches
    if len(uris) == 1:
        return next(iter(uris.values())), expected
    if uri is not None:
        with taking(Step.RESOLVE):
            registries.get(uri.origin)  # raises the error whose fix says how to trust it
    if uris:
        raise VerificationFailed(
            Step.RESOLVE, ResolveCode.AMBIGUOUS, f"{name} may be {', '.join(uris)}.", "Name the one you mean by its URI."
        )
    raise VerificationFailed(
        Step.RESOLVE, ResolveCode.UNKNOWN, f"No registry of the policy has a protocol that is known to be {name[:200]}.",
        "Search for it: treaty search WORDS",
    )  # fmt: skip


def check_claim(name: str, proven: ProvenProtocol) -> None:
    """Check that a foreign URI may name this protocol. Raises `VerificationFailed` (`resolve.ambiguous`).

    Its publisher must claim it, and the URI's host must be the publisher's domain.
    """
    # Checked on the proven statement: the registry's own `verified` is only its word.
    if name not in proven.publish.aliases or not is_verified_alias(name, parse_did(proven.author)):
        raise VerificationFailed(
            Step.RESOLVE,
            ResolveCode.AMBIGUOUS,
            f"{proven.author}, who publishes {proven.uri}, cannot say that it is {name[:200]}.",
            "Use the protocol's own URI if you trust its publisher.",
        )


async def _matches(client: RegistryClient, origin: str, name: str) -> dict[str, ProtocolUri]:
    """Return the registry's own protocols that it resolves `name` to as verified."""
    with answering(Step.RESOLVE):
        matches = await client.resolve(name)
    with taking(Step.RESOLVE):
        uris = {match.uri: parse_protocol_uri(match.uri) for match in matches if match.verified}
    # A registry resolves names to its own protocols only; it cannot answer for another origin.
    return {text: uri for text, uri in uris.items() if uri.origin == origin}


def _hash_in(name: str) -> str | None:
    try:
        return parse_digest(name.removeprefix("sha256:"))
    except Malformed:
        return None
