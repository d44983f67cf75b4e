"""Fetching a protocol: all ten steps, with their I/O, and what is kept of the result.

Cold, a fetch is two requests: the bundle and the wheel. Warm, with the wheel in the store, it is the bundle alone; and while the
checkpoint that proved a protocol is younger than the policy's `max_age`, nothing is asked at all: the stored bytes are verified
again (once a process, then remembered), and compared with whatever was seen of the registry since. Nothing is kept to run before
the tenth step, which keeps everything: blobs first, treaty.lock last. The leaves that an answer proved are remembered as soon as
they are proved (`answers`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Collection
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from treaty_consensus.did import decode_multikey, parse_did
from treaty_consensus.errors import NotFound, Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import Blob, Handler, Identity
from treaty_consensus.log.witness import Quorum
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri

from .answers import Answers, answering
from .network.egress import EgressGuard
from .network.hosts import Network
from .network.resolver import DidResolver, fetch_did_document
from .policy import Policy
from .registries.api import RegistryClient
from .registries.head import LogHead
from .registries.trust import TrustedRegistries
from .resolution import check_claim, resolve
from .store import LockedIdentity, LockedProtocol, LockedVersion, Lockfile, Signer, Store, check_unchanged, line_of
from .verification.evidence import Evidence
from .verification.protocol import (
    ProvenProtocol,
    VerifiedProtocol,
    choose_handler,
    prove_document,
    read_bundle,
    verify_bundle,
    verify_handler,
)
from .verification.steps import Step, taking
from .verification.topic import TopicView, view_topic

Progress = Callable[[Step, str], None]
"""Told of each step once it holds, with a sentence for a person."""

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
        self,
        home: Path,
        policy: Policy,
        network: Network | None = None,
        *,
        clock: Callable[[], float] = time.time,
        resolver: DidResolver | None = None,
    ) -> None:
        """`resolver`: for the documents of publishers, where the policy asks for them; by default over `network`."""
        self.policy = policy
        self.registries = TrustedRegistries(home)
        self._store, self._lockfile = Store(home), Lockfile(home)
        self._network = network or Network()
        self._clock = clock
        self._http = self._network.client()
        self._given_resolver = resolver
        self._answers = Answers(self.registries, self._lockfile, policy, self.client, self._now)
        self._verified: dict[str, VerifiedProtocol] = {}
        self._compared: dict[str, tuple[VerifiedProtocol, tuple[int, int]]] = {}
        """By URI: what was compared with the memory last, and with which version of the memory."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # peers name the URIs: kept while in use

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the HTTP client and the memory of what registries proved."""
        await self._http.aclose()
        self.registries.memory.close()

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
        and let step 10 replace a changed publisher, tenure or signer, or go back to an older handler; never does it accept what
        contradicts the log. Raises `VerificationFailed`, and `Unavailable` when the registry does not answer; then nothing has
        changed but what is known of the log.
        """
        uri, expected = await resolve(name, self.registries, self.policy, self.client)
        async with self._turns.setdefault(str(uri), asyncio.Lock()):
            known = None if fresh or accept_change else self._known(uri)
            if known is not None and expected in (None, known.hash):
                progress(Step.STATUS, f"verified {known.age(self._now())} s ago, which the policy allows")
                return known
            verified = await self._verify(uri, name, expected, progress)
            await asyncio.to_thread(self._keep, uri, verified, accept_change)
            progress(Step.LOCK, f"kept, and {verified.publisher} recorded in treaty.lock")
            self._verified[verified.uri] = verified
            return verified

    def cached(self, document_hash: str) -> VerifiedProtocol | None:
        """A protocol with that hash, if it was fetched before, what proves it is younger than the policy's `max_age`, and nothing
        that was seen of the registry since contradicts it.

        No request is made. What comes from disk is verified anew; damage, or a policy that no longer admits it, gives None.
        """
        for verified in list(self._verified.values()):
            if verified.hash == document_hash and self._is_fresh(verified) and self._still_holds(verified):
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

    def holds(self, uri: str) -> bool:
        """Whether nothing that was seen of the registry since contradicts the last `fetch` of a protocol URI; its age does not
        matter. False for a URI that this object has not fetched. No request is made, and nothing is read unless something was
        learned."""
        verified = self._verified.get(uri)
        return verified is not None and self._still_holds(verified)

    async def document(self, uri: str) -> bytes:
        """What is published under a protocol URI, to read and not to run: whose handlers the policy admits does not matter, and
        nothing is kept but what is known of the log. Raises as `fetch`."""
        with taking(Step.RESOLVE):
            parsed = parse_protocol_uri(uri)
        known = self._known(parsed)
        if known is not None:
            return known.document
        answer = await self._answers.protocol(parsed)
        return prove_document(answer.bundle, parsed, answer.evidence)

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
        asked = [origin for origin in self.registries.all() if self.policy.admits_registry(origin)]
        tasks = [asyncio.create_task(self._topic_at(origin, topic)) for origin in asked]
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

    async def _topic_at(self, origin: str, topic: str) -> TopicView:
        answer = await self._answers.topic(origin, topic)
        with taking(Step.STATEMENTS):
            return view_topic(answer.bundle, topic, answer.evidence)

    async def _verify(self, uri: ProtocolUri, name: str, expected: str | None, progress: Progress) -> VerifiedProtocol:
        """Steps 1 to 9, and the part of step 10 that concerns the log."""
        answer = await self._answers.protocol(uri)
        proven = await asyncio.to_thread(choose_handler, answer.bundle, uri, answer.evidence, self.policy, expected_hash=expected)
        if expected is None and name != str(uri):
            check_claim(name, proven)
        if self.policy.resolve_publishers:
            await self._check_own_host(proven.handler.publisher, answer.evidence)
        _narrate(proven, self.policy.witnesses, progress)
        wheel = await self._wheel(self.client(uri.origin), proven.handler.body.wheel)
        verified = await asyncio.to_thread(verify_handler, proven, wheel, self.policy, bundle=answer.data)
        progress(Step.WHEEL, f"{verified.package.filename}, {len(wheel)} bytes, keeps the rules")
        progress(Step.ATTESTATION, f"signed by {verified.signer.identity}, for this URI, hash and entry point")
        progress(Step.STATUS, " ".join(verified.warnings) or "neither yanked, revoked nor withdrawn")
        return verified

    async def _check_own_host(self, publisher: str, evidence: Evidence) -> None:
        """Compare the keys that the log has for a DID with the document at the DID's own host; a did:key has neither.

        Raises `VerificationFailed` (step 4, `publisher.other-keys`), and what the resolver raises.
        """
        identities = evidence.identities(publisher)
        if not identities:
            return
        document = await self._resolver.resolve(parse_did(publisher))
        identity = identities[-1].statement.body
        assert isinstance(identity, Identity)
        foreign = [key.id for key in identity.keys if document.keys.get(key.id) != decode_multikey(key.multikey)]
        if foreign:
            with taking(Step.STATEMENTS):
                raise Untrusted(
                    "publisher.other-keys",
                    f"The log says that {', '.join(foreign)} speaks for {publisher}; the document at its own host does not.",
                    fix="If the publisher has just changed its keys, try again once they are logged. Else do not use it.",
                )

    @cached_property
    def _resolver(self) -> DidResolver:
        return self._given_resolver or DidResolver(partial(fetch_did_document, guard=EgressGuard(self._network)))

    async def _wheel(self, client: RegistryClient, blob: Blob) -> bytes:
        kept = self._store.get(blob.sha256)
        if kept is not None:
            return kept
        with answering(Step.WHEEL):
            return await client.blob(blob)

    def _known(self, uri: ProtocolUri) -> VerifiedProtocol | None:
        """A fetch that is still fresh, and that nothing seen since contradicts: from memory, or from the store after steps 1 to 9
        and the lock."""
        verified = self._verified.get(str(uri))
        if verified is None or not self._is_fresh(verified) or not self._still_holds(verified):
            try:
                verified = self._load(uri)
            except TreatyError:  # stale, or no longer admitted: a fetch that asks the registry will say which
                verified = None
            if verified is None or not self._still_holds(verified):
                return None
        self._verified[verified.uri] = verified
        return verified

    def _still_holds(self, verified: VerifiedProtocol) -> bool:
        """Whether nothing contradicts it that was seen or locked since; nothing is read where nothing was learned since the last
        time."""
        try:
            version = self.registries.memory.version()
            compared, with_version = self._compared.get(verified.uri, (None, None))
            if compared is not verified or with_version != version:
                self._answers.check_again(verified)
                self._compared[verified.uri] = (verified, version)
        except TreatyError:  # a fetch that asks the registry will say what is wrong
            self._verified.pop(verified.uri, None)
            return False
        return True

    def _load(self, uri: ProtocolUri) -> VerifiedProtocol | None:
        locked = self._lockfile.read().get(line_of(uri))
        kept = locked.versions.get(uri.version) if locked else None
        data = self._store.get(kept.bundle) if kept else None
        if data is None:
            return None
        # The stored checkpoint was consistent with what had been seen when it was stored; it stays as young as it is.
        with taking(Step.RESOLVE):
            registry = dataclasses.replace(self.registries.get(uri.origin), seen=None)
        proven = verify_bundle(read_bundle(data, uri=str(uri)), uri, registry, self.policy, now=self._now())
        wheel = self._store.get(proven.handler.body.wheel.sha256)
        if wheel is None:
            return None
        verified = verify_handler(proven, wheel, self.policy, bundle=data)
        check_unchanged(locked, _locked(verified), line_of(uri))
        return verified

    def _keep(self, uri: ProtocolUri, verified: VerifiedProtocol, accept_change: bool) -> None:
        """The last part of step 10."""
        line, found = line_of(uri), _locked(verified)
        with taking(Step.LOCK), self._lockfile.changing() as entries:
            locked = entries.get(line)
            version = locked.versions.get(uri.version) if locked is not None else None
            if not accept_change:
                check_unchanged(locked, found, line)
                self._check_not_older(uri, verified, version)
            same = locked is not None and (locked.publisher, locked.tenure, locked.signer) == (
                found.publisher,
                found.tenure,
                found.signer,
            )
            versions = dict(locked.versions) if locked is not None else {}
            if not same:  # documents and publications stay pinned; the handlers were those of the one before
                versions = {
                    other: msgspec.structs.replace(kept, handler=None, handler_status=None) for other, kept in versions.items()
                }
            replaced = versions.get(uri.version)
            self._store.put(verified.wheel)
            versions[uri.version] = LockedVersion(
                bundle=self._store.put(verified.bundle),
                document=verified.hash,
                entry_point=str(verified.package.entry_point),
                filename=verified.package.filename,
                wheel=verified.package.digest,
                published=verified.evidence.published(verified.uri).index,
                handler=verified.handler_index,
                status=replaced.status if replaced is not None else None,
                handler_status=replaced.handler_status
                if replaced is not None and same and replaced.wheel == verified.package.digest
                else None,
            )
            entries[line] = msgspec.structs.replace(found, versions=versions)
        if replaced is not None and replaced.bundle != versions[uri.version].bundle:
            self._store.discard(replaced.bundle)

    def _check_not_older(self, uri: ProtocolUri, verified: VerifiedProtocol, version: LockedVersion | None) -> None:
        """A handler that was seen, by the same publisher and newer than the chosen one, is among those that were chosen from.

        Where a full list has no room for it this is no lie of the registry, but still a way back to an older handler.
        """
        known = {version.handler} if version is not None and version.handler is not None else set()
        for leaf in self.registries.memory.about(uri.origin, {f"protocol/{uri}"}):
            if isinstance(leaf.statement.body, Handler) and leaf.statement.author.text == verified.publisher:
                known.add(leaf.index)
        newer = {index for index in known if index > verified.handler_index}
        left = newer - {logged.index for logged in verified.evidence.statements}
        if left:
            raise Refused(
                "lock.older-handler",
                f"The handler of leaf {max(left)} is newer than that of leaf {verified.handler_index}, and was not shown.",
                fix="If you mean to go back, fetch it again with --accept-change.",
            )

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


def _locked(verified: VerifiedProtocol) -> LockedProtocol:
    identities, pinned = verified.evidence.identities(verified.publisher), None
    if identities:
        newest = identities[-1]
        assert isinstance(newest.statement.body, Identity)
        keys = tuple(key.multikey for key in newest.statement.body.keys)
        pinned = LockedIdentity(newest.index, keys, newest.statement.id)
    signer = Signer(verified.signer.identity, verified.signer.issuer)
    return LockedProtocol(verified.publisher, verified.tenure, signer, identity=pinned)


def _narrate(proven: ProvenProtocol, witnesses: Quorum | None, progress: Progress) -> None:
    head = proven.evidence.checkpoint.checkpoint
    progress(Step.RESOLVE, f"{proven.uri}, at {proven.uri.origin}")
    who = f"its clock and {witnesses.needed} of your witnesses" if witnesses else "its clock"
    progress(Step.CHECKPOINT, f"{head.size} leaves, signed by the key you trust, cosigned by {who}")
    progress(Step.INCLUSION, f"{len(proven.evidence.statements)} statements are in the log")
    progress(Step.STATEMENTS, f"signed and admissible; published by {proven.author}")
    progress(Step.DOCUMENT, f"{len(proven.document)} bytes, SHA-256 {proven.publish.document.sha256}")
    progress(Step.HANDLER, f"{proven.handler.body.filename} by {proven.handler.publisher}, whom the policy names")
