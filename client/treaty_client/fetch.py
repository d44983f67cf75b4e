"""Fetching a protocol: all ten steps, with their I/O, and what is kept of the result.

Cold, a fetch is two requests: the bundle and the wheel. Warm, with the wheel in the store, it is the bundle alone; and while the
checkpoint that proved a protocol is younger than the policy's `max_age`, nothing is asked at all: the stored bytes are verified
again (once a process, then remembered). Nothing is kept before the tenth step, which keeps everything: blobs first, treaty.lock
last.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, TooLarge, TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Blob
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.log.witness import Quorum
from treaty_consensus.protocol import ProtocolUri, is_verified_alias, parse_protocol_uri

from .network.hosts import Network
from .policy import Policy
from .registries.api import RegistryClient
from .registries.head import LogHead
from .registries.trust import TrustedRegistries, TrustedRegistry
from .store import LockedProtocol, LockedVersion, Lockfile, Signer, Store, check_unchanged, line_of
from .verification.bundle import Bundle
from .verification.evidence import missing_proof
from .verification.protocol import (
    ProvenProtocol,
    VerifiedProtocol,
    check_registry,
    read_bundle,
    verify_bundle,
    verify_document,
    verify_handler,
)
from .verification.steps import Step, VerificationFailed, taking
from .verification.topic import TopicView, verify_topic

Progress = Callable[[Step, str], None]
"""Told of each step once it holds, with a sentence for a person."""

_ATTEMPTS = 8
_LATE = 5.0
"""Seconds that a registry may answer later than another one: one that hangs must not hold those that answer."""


def _silent(step: Step, said: str) -> None:
    """The progress of who does not listen."""


class Candidates(NamedTuple):
    """What to offer for a topic: URIs, best first, and those of them that are the consensus at their registry."""

    uris: tuple[str, ...] = ()
    consensus: frozenset[str] = frozenset()


class Fetcher:
    """One long-lived object an agent: it keeps one HTTP client. Safe for concurrent use on one event loop; close it.

    `home`: where registries.json, treaty.lock and the store are. `clock`: Unix seconds.
    """

    def __init__(
        self, home: Path, policy: Policy, network: Network | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.policy = policy
        self.registries = TrustedRegistries(home)
        self._store, self._lockfile = Store(home), Lockfile(home)
        self._network = network or Network()
        self._clock = clock
        self._http = self._network.client()
        self._verified: dict[str, VerifiedProtocol] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # peers name the URIs: kept while in use

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the HTTP client."""
        await self._http.aclose()

    def client(self, origin: str) -> RegistryClient:
        """The HTTP API of a trusted registry, over this fetcher's client. Raises `Untrusted`."""
        return RegistryClient(self.registries.get(origin).name.base_url, self._network, client=self._http)

    def head(self, origin: str) -> LogHead:
        """The head of a trusted registry's log. Raises `Untrusted`."""
        return LogHead(self.client(origin), self.registries, origin)

    async def fetch(
        self, name: str, *, fresh: bool = False, accept_change: bool = False, progress: Progress = _silent
    ) -> VerifiedProtocol:
        """The protocol of that URI and the handler that the policy allows, after all ten steps.

        `name`: a protocol URI, or whatever the policy's registries resolve to exactly one verified protocol: `sha256:HEX`, the
        canonical URI of a standard. `fresh`: ask the registry even if what is here is young enough. `accept_change`: ask it,
        and let step 10 replace a changed publisher, tenure or signer. Raises `VerificationFailed`, and `Unavailable` when the
        registry does not answer; then nothing has changed.
        """
        uri, expected = await self._resolve(name)
        async with self._turns.setdefault(str(uri), asyncio.Lock()):
            known = None if fresh or accept_change else self._known(uri)
            if known is not None and expected in (None, known.hash):
                progress(Step.STATUS, f"verified {known.age(self._now())} s ago, which the policy allows")
                return known
            for _ in range(_ATTEMPTS):
                registry = self._trusted(uri.origin)
                verified = await self._verify(uri, name, registry, expected, progress)
                if await asyncio.to_thread(self._keep, uri, registry, verified, accept_change):
                    progress(Step.LOCK, f"kept, and {verified.publisher} recorded in treaty.lock")
                    self._verified[str(uri)] = verified
                    return verified
        raise _busy(uri.origin)

    def cached(self, document_hash: str) -> VerifiedProtocol | None:
        """A protocol with that hash, if it was fetched before and what proves it is younger than the policy's `max_age`.

        No request is made. What comes from disk is verified anew; damage, or a policy that no longer admits it, gives None.
        """
        for verified in self._verified.values():
            if verified.hash == document_hash and self._is_fresh(verified):
                return verified
        try:
            locked_lines = self._lockfile.read()
        except TreatyError:  # a fetch will say so, at step 10
            return None
        for line, locked in locked_lines.items():
            for version, kept in locked.versions.items():
                if kept.document == document_hash:
                    verified_again = self._known(parse_protocol_uri(f"{line}/{version}"))
                    if verified_again is not None and verified_again.hash == document_hash:
                        return verified_again
        return None

    async def document(self, uri: str) -> bytes:
        """What is published under a protocol URI, to read and not to run: whose handlers the policy admits does not matter, and
        nothing but the log's newest checkpoint is kept. Raises as `fetch`."""
        with taking(Step.RESOLVE):
            parsed = parse_protocol_uri(uri)
        known = self._known(parsed)
        if known is not None:
            return known.document
        for _ in range(_ATTEMPTS):
            registry = self._trusted(parsed.origin)
            check_registry(registry, self.policy)
            with _answering(Step.RESOLVE):
                data = await self.client(parsed.origin).bundle(parsed, since=_size(registry))
            bundle = read_bundle(data, uri)
            bridge = await self._bridge(bundle, registry)
            async with self._documenting(parsed.origin):
                document, checkpoint = await asyncio.to_thread(
                    verify_document, bundle, parsed, registry, self.policy, now=self._now(), bridge=bridge
                )
            if self._advance(registry, checkpoint):
                return document
        raise _busy(parsed.origin)

    async def candidates(self, topic: str) -> Candidates:
        """A topic's protocols at all registries of the policy. Raises as `topic`."""
        found = [(protocol.uri, protocol.state == "consensus") for view in await self.topic(topic) for protocol in view.protocols]
        found.sort(key=lambda protocol: not protocol[1])
        return Candidates(tuple(uri for uri, _ in found), frozenset(uri for uri, is_consensus in found if is_consensus))

    async def topic(self, topic: str) -> list[TopicView]:
        """What each registry of the policy proves of a topic. Those that do not know it, or do not answer, are left out; so are
        those that have not answered `_LATE` seconds after another one did.

        Raises `VerificationFailed`, and `NotFound` or `Unavailable` when that leaves none.
        """
        asked = [registry for origin, registry in self.registries.all().items() if self.policy.admits_registry(origin)]
        tasks = {asyncio.create_task(self._topic_at(registry, topic)): None for registry in asked}
        await _first_and_prompt(tasks)
        views: list[TopicView] = []
        failure: TreatyError | None = None
        for task in tasks:
            try:
                views.append(task.result())
            except (NotFound, Unavailable) as error:
                failure = error
            except asyncio.CancelledError:
                continue
        if not views:
            raise failure or NotFound("registry.none", "There is no registry to ask.", fix="Trust one: treaty trust add URL#KEY")
        return views

    async def _topic_at(self, registry: TrustedRegistry, topic: str) -> TopicView:
        origin = registry.name.origin
        for _ in range(_ATTEMPTS):
            registry = self._trusted(origin)
            data = await self.client(origin).topic_bundle(topic, since=_size(registry))
            bundle = read_bundle(data, topic)
            bridge = await self._bridge(bundle, registry)
            async with self._documenting(origin):
                view = verify_topic(bundle, topic, registry, self.policy, now=self._now(), bridge=bridge)
            if self._advance(registry, view.evidence.checkpoint):
                return view
        raise _busy(origin)

    async def _resolve(self, name: str) -> tuple[ProtocolUri, str | None]:
        """Step 1 for a name: the URI it means, and the document's hash if the name is one."""
        try:
            uri = parse_protocol_uri(name)
        except TreatyError:
            uri = None
        if uri is not None and uri.origin in self.registries.all():
            return uri, None
        expected = _hash_in(name)
        found: dict[str, ProtocolUri] = {}
        asked = [origin for origin in self.registries.all() if self.policy.admits_registry(origin)]
        for matches in await asyncio.gather(*(self._matches(origin, name) for origin in asked)):
            found |= matches
        if len(found) == 1:
            return next(iter(found.values())), expected
        if uri is not None:
            with taking(Step.RESOLVE):
                self.registries.get(uri.origin)  # says what to do about a registry that is not trusted
        if found:
            raise VerificationFailed(
                Step.RESOLVE, "resolve.ambiguous", f"{name} may be {', '.join(found)}.", "Name the one you mean by its URI."
            )
        raise VerificationFailed(
            Step.RESOLVE, "resolve.unknown", f"No registry of the policy has a protocol that is known to be {name[:200]}.",
            "Search for it: treaty search WORDS",
        )  # fmt: skip

    async def _matches(self, origin: str, name: str) -> dict[str, ProtocolUri]:
        """The protocols of its own that a registry says are verified to be `name`."""
        with _answering(Step.RESOLVE):
            matches = await self.client(origin).resolve(name)
        with taking(Step.RESOLVE):
            found = {match.uri: parse_protocol_uri(match.uri) for match in matches if match.verified}
        return {text: uri for text, uri in found.items() if uri.origin == origin}

    async def _verify(
        self, uri: ProtocolUri, name: str, registry: TrustedRegistry, expected: str | None, progress: Progress
    ) -> VerifiedProtocol:
        """Steps 1 to 9."""
        check_registry(registry, self.policy)
        client = self.client(uri.origin)
        with _answering(Step.RESOLVE):
            data = await client.bundle(uri, since=_size(registry))
        bundle = read_bundle(data, str(uri))
        bridge = await self._bridge(bundle, registry)
        async with self._documenting(uri.origin):
            proven = await asyncio.to_thread(
                verify_bundle, bundle, uri, registry, self.policy, now=self._now(), expected_hash=expected, bridge=bridge
            )
        if expected is None and name != str(uri):
            _check_claim(name, proven)
        _narrate(proven, self.policy.witnesses, progress)
        wheel = await self._wheel(client, proven.handler.body.wheel)
        verified = await asyncio.to_thread(verify_handler, proven, wheel, self.policy, bundle=data)
        progress(Step.WHEEL, f"{verified.package.filename}, {len(wheel)} bytes, keeps the rules")
        progress(Step.ATTESTATION, f"signed by {verified.signer.identity}, for this URI, hash and entry point")
        progress(Step.STATUS, " ".join(verified.warnings) or "neither yanked, revoked nor withdrawn")
        return verified

    @asynccontextmanager
    async def _documenting(self, origin: str) -> AsyncIterator[None]:
        """A fork that is found inside is documented (`LogHead.documented`)."""
        try:
            yield
        except VerificationFailed as error:
            raise await self.head(origin).documented(error) from error.__cause__

    async def _wheel(self, client: RegistryClient, blob: Blob) -> bytes:
        kept = self._store.get(blob.sha256)
        if kept is not None:
            return kept
        with _answering(Step.WHEEL):
            return await client.blob(blob)

    async def _bridge(self, bundle: Bundle, registry: TrustedRegistry) -> list[bytes] | None:
        sizes = missing_proof(bundle, registry)
        if sizes is None:
            return None
        assert registry.seen is not None
        try:
            return await self.head(registry.name.origin).consistency(*sizes)
        except Untrusted as error:
            raise VerificationFailed(
                Step.CHECKPOINT, error.code, error.message, error.fix, evidence=(registry.seen, bundle.checkpoint)
            ) from error

    def _known(self, uri: ProtocolUri) -> VerifiedProtocol | None:
        """A fetch that is still fresh: from memory, or from the store after steps 1 to 9 and a look at the lock."""
        verified = self._verified.get(str(uri))
        if verified is None or not self._is_fresh(verified):
            try:
                verified = self._load(uri)
            except TreatyError:  # stale, or no longer admitted: what is wrong is for the long way to say
                verified = None
        if verified is not None:
            self._verified[str(uri)] = verified
        return verified

    def _load(self, uri: ProtocolUri) -> VerifiedProtocol | None:
        locked = self._lockfile.read().get(line_of(uri))
        kept = locked.versions.get(uri.version) if locked else None
        data = self._store.get(kept.bundle) if kept else None
        if data is None:
            return None
        # The stored checkpoint was consistent with what had been seen when it was stored; it stays as young as it is.
        registry = dataclasses.replace(self._trusted(uri.origin), seen=None)
        proven = verify_bundle(read_bundle(data, str(uri)), uri, registry, self.policy, now=self._now())
        wheel = self._store.get(proven.handler.body.wheel.sha256)
        if wheel is None:
            return None
        verified = verify_handler(proven, wheel, self.policy, bundle=data)
        check_unchanged(locked, _locked(verified), line_of(uri))
        return verified

    def _keep(self, uri: ProtocolUri, registry: TrustedRegistry, verified: VerifiedProtocol, accept_change: bool) -> bool:
        """Step 10. False when another process has seen another checkpoint meanwhile, with which this one was not compared."""
        line, found = line_of(uri), _locked(verified)
        with taking(Step.LOCK), self._lockfile.changing() as entries:
            locked = entries.get(line)
            if not accept_change:
                check_unchanged(locked, found, line)
            if not self._advance(registry, verified.checkpoint):
                return False
            same = locked is not None and msgspec.structs.replace(locked, versions={}) == found
            versions = dict(locked.versions) if locked is not None and same else {}
            replaced = versions.get(uri.version)
            self._store.put(verified.wheel)
            versions[uri.version] = LockedVersion(
                bundle=self._store.put(verified.bundle),
                document=verified.hash,
                entry_point=str(verified.package.entry_point),
                filename=verified.package.filename,
                wheel=verified.package.digest,
            )
            entries[line] = LockedProtocol(found.publisher, found.tenure, found.signer, versions)
        if replaced is not None and replaced.bundle != versions[uri.version].bundle:
            self._store.discard(replaced.bundle)
        return True

    def _advance(self, registry: TrustedRegistry, checkpoint: SignedCheckpoint) -> bool:
        """Remember a checkpoint that was proved consistent with `registry.seen`, if it is larger."""
        newest = registry.newest
        if newest is None or checkpoint.checkpoint.size > newest.checkpoint.size:
            newest = checkpoint
        return self.registries.advance(registry.name.origin, registry.seen, newest.note)

    def _trusted(self, origin: str) -> TrustedRegistry:
        with taking(Step.RESOLVE):
            return self.registries.get(origin)

    def _is_fresh(self, verified: VerifiedProtocol) -> bool:
        return verified.age(self._now()) <= self.policy.max_age

    def _now(self) -> int:
        return int(self._clock())


async def _first_and_prompt(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until a task has succeeded, and `_LATE` seconds for the others; until all have failed where none does. Tasks that are
    not over then, or when the caller is cancelled, are cancelled."""
    waiting, bound = set(tasks), None
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            if None in [task.exception() for task in done]:
                bound = _LATE
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@contextmanager
def _answering(step: Step) -> Iterator[None]:
    """A registry that says no, or sends too much, fails the step; bytes that were withdrawn fail step 9."""
    try:
        yield
    except Gone as error:
        raise VerificationFailed(Step.STATUS, error.code, error.message, error.fix) from error
    except (NotFound, Malformed, TooLarge) as error:
        raise VerificationFailed(step, error.code, error.message, error.fix) from error


def _busy(origin: str) -> Conflict:
    return Conflict("registry.busy", f"Other processes keep changing what is known of {origin}.", fix="Try again.")


def _hash_in(name: str) -> str | None:
    try:
        return parse_digest(name.removeprefix("sha256:"))
    except Malformed:
        return None


def _check_claim(name: str, proven: ProvenProtocol) -> None:
    """A foreign URI is a protocol's name when its publisher says so and the URI's host is the publisher's domain."""
    if name not in proven.publish.aliases or not is_verified_alias(name, parse_did(proven.author)):
        raise VerificationFailed(
            Step.RESOLVE,
            "resolve.claim",
            f"{proven.author}, who publishes {proven.uri}, cannot say that it is {name[:200]}.",
            "Use the protocol's own URI if you trust its publisher.",
        )


def _locked(verified: VerifiedProtocol) -> LockedProtocol:
    return LockedProtocol(verified.publisher, verified.tenure, Signer(verified.signer.identity, verified.signer.issuer))


def _size(registry: TrustedRegistry) -> int | None:
    with taking(Step.CHECKPOINT):
        return registry.newest.checkpoint.size if registry.newest else None


def _narrate(proven: ProvenProtocol, witnesses: Quorum | None, progress: Progress) -> None:
    head = proven.evidence.checkpoint.checkpoint
    progress(Step.RESOLVE, f"{proven.uri}, at {proven.uri.origin}")
    who = f"its clock and {witnesses.needed} of your witnesses" if witnesses else "its clock"
    progress(Step.CHECKPOINT, f"{head.size} leaves, signed by the key you trust, cosigned by {who}")
    progress(Step.INCLUSION, f"{len(proven.evidence.statements)} statements are in the log")
    progress(Step.STATEMENTS, f"signed and admissible; published by {proven.author}")
    progress(Step.DOCUMENT, f"{len(proven.document)} bytes, SHA-256 {proven.publish.document.sha256}")
    progress(Step.HANDLER, f"{proven.handler.body.filename} by {proven.handler.publisher}, whom the policy names")
