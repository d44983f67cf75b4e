"""Publish a project: sign and log the protocol, then build, attest, sign and log its handler.

    1 build       the handler's wheel, so that all its rules and those of the document are checked before anything is public
    2 try         replay the project's vectors in the sandbox, also with hostile messages; check that they reach every operation
    3 compare     with the version before it, also by sessions of both: a breaking change needs the next major version
    4 publish     sign the `publish` statement, upload document and card, log it, check the receipt
    5 check       read the protocol back with all proofs, like a stranger
    6 attest      have the wheel attested by the registry's Sigstore authority, and verify that with the root in the genesis
    7 attach      sign the `handler` statement, upload wheel and attestation, log it, check the receipt

A step that an earlier run completed is not repeated. So publishing may be repeated after a crash until it succeeds.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Literal

from packaging.version import Version

from treaty_consensus import canonical
from treaty_consensus.codes import PublishCode, TrustedRootCode
from treaty_consensus.errors import Conflict, NotFound, Refused, Untrusted
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_consensus.handler.comparison import OperationChange, operation_changes, operation_views
from treaty_consensus.handler.compatibility import Compatibility, check_continues
from treaty_consensus.handler.wheel import following
from treaty_consensus.kinds import Base, Blob, Body, Handler, Publish
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri
from treaty_consensus.statement import Statement
from treaty_io.codes import VectorCode
from treaty_io.identity import Identity
from treaty_io.network.hosts import Network
from treaty_io.network.requests_adapter import session_setup
from treaty_sandbox import SandboxPool
from treaty_sandbox.compatibility.versions import compatibility

from ..authoring.check import check_package
from ..authoring.document import document_problems
from ..policy import DEFAULT_MAX_AGE
from ..protocols.answers import hold
from ..protocols.attestation import Binding, Trust, attest, identity_token, logged_leaves, verify_attestation
from ..protocols.log_head import LogHead
from ..protocols.project import Project
from ..protocols.verification.blobs import trusted_root_of
from ..protocols.verification.completeness import RegistryAnswer
from ..protocols.verification.records import Evidence
from ..protocols.verification.steps import Step, taking
from ..protocols.verification.ten_steps import examine, read_bundle
from ..registries.api import RegistryClient
from ..registries.bundle import Bundle
from ..registries.trust import TrustedRegistries

What = Literal[
    "built", "tried", "compared", "unpublished", "published", "found-published", "attested", "attached", "found-attached"
]


@dataclass(frozen=True)
class Published:
    """A completed step. `index`: the leaf, if there is one; `digest`: of the wheel, document or attestation. `changes`,
    `compatibility`: since the version before. `base`: of a version that continues it."""

    what: What
    uri: str
    said: str
    digest: str
    index: int | None = None
    changes: tuple[OperationChange, ...] = ()
    compatibility: Compatibility | None = None
    base: Base | None = None


class Publisher:
    """Publish in the name of one identity at one trusted registry. For one event loop."""

    def __init__(
        self,
        identity: Identity,
        client: RegistryClient,
        registries: TrustedRegistries,
        origin: str,
        network: Network,
        *,
        copies: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the registry. `network`: for its Sigstore services. `copies`: of the policy. `clock`: Unix seconds."""
        self._identity, self._client, self._registries, self._origin = identity, client, registries, origin
        self._network, self._clock = network, clock
        self._head = LogHead(client, registries, origin, copies=copies)

    async def publish(
        self,
        project: Project,
        *,
        namespace: str | None = None,
        allow_uncovered: bool = False,
        is_agreed: bool = False,
        dry_run: bool = False,
    ) -> AsyncIterator[Published]:
        """Publish a project, and yield each step after it is done.

        `namespace`: another namespace than the identity's own, by a grant of its owner. `allow_uncovered`: publish although no
        vector reaches an operation. `is_agreed`: two agents have negotiated the document, so nobody may change it: neither its
        form nor its coverage is checked. `dry_run`: only the steps before the first statement; sign and send nothing.

        Raises the errors of the steps. All yielded steps stay done.
        """
        namespace = namespace or self._identity.parsed.namespace
        uri = parse_protocol_uri(f"https://{self._origin}/protocols/{namespace}/{project.name}/{project.version}")
        wheel = project.build_wheel(str(uri)) if project.handler is not None else None
        package = read_wheel(*wheel) if wheel is not None else None
        if package is not None and wheel is not None:
            yield Published("built", str(uri), f"{package.filename}, {len(wheel[1])} bytes", package.digest)
            # Before the document is published: a version is immutable, so a handler that fails would cost a version number.
            yield await _try(uri, package, allow_uncovered=allow_uncovered or is_agreed)
        for problem in () if is_agreed else document_problems(project, package):
            raise problem.error
        # Asked first, so that a repeated run after a crash finds the document that it logged.
        publication = await self._found(uri, project)
        compared = None if publication or package is None else await self._compared(uri, project.topic, package)
        if compared is not None and compared.compatibility is not None:
            yield compared
            check_continues(uri, compared.compatibility)
        if dry_run:
            yield publication or Published(
                "unpublished", str(uri), "this version is free; nothing was sent", project.protocol_hash
            )
            return
        yield publication or await self._publish_document(uri, project, compared.base if compared else None)
        if wheel is not None:
            async for done in self._publish_handler(uri, project, *wheel):
                yield done

    async def _publish_document(self, uri: ProtocolUri, project: Project, base: Base | None) -> Published:
        card = project.card.encode()
        blobs = _blob(project.document), _blob(card)
        body = Publish(str(uri), project.topic, *blobs, project.origin, project.aliases, base)
        index = await self._log(body, project.document, card)
        sentence = f"leaf {index}, in the topic {project.topic}"
        return Published("published", str(uri), sentence, project.protocol_hash, index)

    async def _found(self, uri: ProtocolUri, project: Project) -> Published | None:
        """Return the step if the document is published already, or None. Raises `Conflict` (`publish.version-exists`)."""
        document = project.protocol_hash
        try:
            _, evidence = await self._evidence(uri)
        except NotFound:
            return None
        published = evidence.published(str(uri))
        assert isinstance(published.statement.body, Publish)
        if published.statement.author.text != self._identity.did or published.statement.body.document.sha256 != document:
            raise Conflict(
                PublishCode.VERSION_EXISTS,
                f"{uri} is already published, with another document or by another publisher. A version is immutable.",
                fix="Raise `version` in protocol.toml.",
            )
        return Published("found-published", str(uri), "this document was published before", document, published.index)

    async def _compared(self, uri: ProtocolUri, topic: str, package: HandlerPackage) -> Published | None:
        """Compare with the version before: the newest one of this line that is in use and has a handler of its publisher, else
        the newest such one. None if there is none among the newest `MAX_EARLIER`."""
        try:
            summaries = await self._client.versions(uri)
        except NotFound:
            return None
        others = [parse_protocol_uri(summary.uri) for summary in summaries if summary.status in ("active", "deprecated")]
        earlier = [other for other in others if Version(other.version) < Version(uri.version)]
        line = [other for other in earlier if uri.continues(other)]
        newest = sorted(line or earlier, key=lambda other: Version(other.version), reverse=True)
        for before in newest[:MAX_EARLIER]:
            _, evidence = await self._evidence(before)
            publisher = evidence.published(str(before)).statement.author.text
            own = [
                logged.statement
                for logged in evidence.statements
                if isinstance(logged.statement.body, Handler) and logged.statement.author.text == publisher
            ]
            if own:
                return await self._compare(uri, topic, package, own[-1], evidence)
        return None

    async def _compare(
        self, uri: ProtocolUri, topic: str, package: HandlerPackage, attached: Statement, evidence: Evidence
    ) -> Published:
        """Compare with a handler of an earlier version, which `evidence` proves."""
        assert isinstance(attached.body, Handler), "it attaches"
        before, is_own = parse_protocol_uri(attached.body.uri), attached.author.text == self._identity.did
        old = read_wheel(attached.body.filename, await self._client.blob(attached.body.wheel))
        changes = operation_changes(operation_views(old.manifest), operation_views(package.manifest))
        async with SandboxPool() as pool:
            names = before.version, uri.version
            # Code runs only if this identity signed it.
            verdict = await compatibility(old, package, names, pool, before=str(before), runs_code=is_own)
        difference = f"{len(changes)} of its operations differ" if changes else "no change"
        sentence = f"with {before.version}: {difference}; for its callers {verdict.backward.verdict}"
        is_continued = uri.continues(before) and verdict.backward.verdict == "compatible"
        base = _base(before, topic, evidence) if is_continued else None
        return Published("compared", str(before), sentence, old.digest, None, tuple(changes), verdict, base)

    async def _publish_handler(self, uri: ProtocolUri, project: Project, filename: str, wheel: bytes) -> AsyncIterator[Published]:
        assert project.handler is not None
        bundle, evidence = await self._evidence(uri)
        digest = canonical.hex_digest(wheel)
        own = [
            (logged.index, logged.statement.body)
            for logged in evidence.statements
            if isinstance(logged.statement.body, Handler) and logged.statement.author.text == self._identity.did
        ]
        # A run that was cut off after the last step attached the wheel already.
        for index, body in own:
            if (body.uri, body.wheel.sha256) == (str(uri), digest):
                yield Published("found-attached", str(uri), "this wheel was attached before", digest, index)
                return
        # Before the attestation, whose two leaves would stay.
        if filename in (body.filename for _, body in own):
            raise Conflict(
                PublishCode.VERSION_EXISTS,
                f"You have published another wheel named {filename}, and a file name has one content.",
                fix=f'Publish it as the next version: version = "{following(filename, 1)[0][0]}" in [handler] of protocol.toml.',
            )
        binding = Binding(digest, str(uri), project.protocol_hash, project.handler.entry_point)
        attestation = await self._attest(binding, filename, trusted_root_of(bundle, evidence))
        sentence = f"signed as {self._identity.did} by a certificate of {self._origin}"
        yield Published("attested", str(uri), sentence, canonical.hex_digest(attestation))
        handler = Handler(str(uri), project.protocol_hash, filename, _blob(wheel), binding.entry_point, _blob(attestation))
        index = await self._log(handler, wheel, attestation)
        yield Published("attached", str(uri), f"leaf {index}", digest, index)

    async def _evidence(self, uri: ProtocolUri) -> tuple[Bundle, Evidence]:
        """Return the protocol after the verification steps 1 to 4. Raises `NotFound` before it is published."""
        bundle = read_bundle(await self._client.bundle(uri), uri=str(uri))
        # Consistency first: a publisher that was shown a fork must not build on it.
        await self._head.observe(bundle.checkpoint)
        registry = replace(self._registries.get(self._origin), seen=None)  # `observe` has proved the consistency
        evidence = examine(bundle, registry, now=self._now(), max_age=DEFAULT_MAX_AGE)
        with taking(Step.LOCK):
            # Remembered as for a reader: the leaves of the own publication count in later answers too.
            await asyncio.to_thread(hold, self._registries, registry, bundle, RegistryAnswer(evidence, uri=str(uri)))
        return bundle, evidence

    async def _attest(self, binding: Binding, filename: str, trusted_root: bytes) -> bytes:
        config = await self._client.trust_config()
        value = canonical.parse_json(config, limit=len(config), name="trust configuration")
        # The addresses of the services are not pinned, but the root is. A certificate of another authority would be worth nothing
        # to readers.
        if not isinstance(value, dict) or canonical.dumps(value.get("trustedRoot")) != trusted_root:
            raise Untrusted(
                TrustedRootCode.DIGEST, f"{self._origin} offers a signing authority that its log's genesis does not name."
            )

        def token(csr_key_digest: str) -> str:
            return identity_token(
                self._identity.key_id,
                self._identity.sign,
                origin=self._origin,
                now=self._now(),
                # Fresh, because the authority accepts each token once.
                jti=secrets.token_urlsafe(24),
                csr_key_digest=csr_key_digest,
            )

        setup = session_setup(self._network)
        # In a thread: Sigstore's client blocks.
        attestation = await asyncio.to_thread(attest, binding, filename, trust_config=config, token=token, setup=setup)
        did = self._identity.did
        # Verified as readers will: an attestation that fails there must not reach the log.
        verify_attestation(
            attestation, binding, publisher=did, trust=[Trust.registry(trusted_root, origin=self._origin, publisher=did)]
        )
        # Only now are its two leaves known. After a crash before this line the watch of this home calls them unexpected.
        await asyncio.to_thread(self._registries.signed.add, *logged_leaves(attestation))
        return attestation

    async def _log(self, body: Body, *blobs: bytes) -> int:
        """Sign a statement, upload its blobs, log it and check the receipt. Return its leaf index."""
        statement = self._identity.statement(body, log=self._origin, issued=self._now())
        # Blobs first: a logged statement must not name missing content.
        for data in blobs:
            await self._client.put_blob(data, statement)
        receipt = await self._head.submit(statement)
        return receipt.index

    def _now(self) -> int:
        return int(self._clock())


MAX_EARLIER = 8
"""Earlier versions that are asked for a handler. Each is a bundle to fetch."""
MAX_BASES = 8
"""Documents that a document may rest on. A registry refuses more."""


def _base(before: ProtocolUri, topic: str, evidence: Evidence) -> Base | None:
    """Return the base that continues the line of a version in a topic: that version, or the base of one that rests on many."""
    body = evidence.published(str(before)).statement.body
    assert isinstance(body, Publish), "it publishes"
    if body.topic != topic:
        return None
    own, below = Base(body.uri, body.document.sha256), body.base
    count = 1
    while below is not None and count <= MAX_BASES:
        lower = evidence.published(below.uri).statement.body
        assert isinstance(lower, Publish), "it publishes"
        count, below = count + 1, lower.base
    return own if count <= MAX_BASES else body.base


async def _try(uri: ProtocolUri, package: HandlerPackage, *, allow_uncovered: bool) -> Published:
    """Replay the vectors. Raises `Refused` (`vector.differs`) at the first mismatch, or for an operation that none reaches, and
    the errors of loading."""
    checked = await check_package(package, allow_uncovered=allow_uncovered)
    if checked.mismatches:
        raise Refused(VectorCode.DIFFERS, str(checked.mismatches[0]), fix="Correct the handler or the vector. Nothing was sent.")
    if checked.problems:
        raise checked.problems[0].error
    assert checked.coverage is not None and checked.hostile is not None
    where = "without code" if package.is_declarative else "in the sandbox"
    sentence = f"{where}: {len(checked.vectors)} vectors reach {checked.coverage.summary}, {checked.hostile.summary}"
    return Published("tried", str(uri), sentence, package.digest)


def _blob(data: bytes) -> Blob:
    return Blob(canonical.hex_digest(data), len(data))
