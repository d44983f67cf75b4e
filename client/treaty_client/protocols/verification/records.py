"""The records that the verification produces: a proven leaf, the evidence of a bundle, and a protocol at two stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeGuard

from treaty_consensus import __version__
from treaty_consensus.amendment import constitution_of
from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import NotFound, Refused
from treaty_consensus.handler import HandlerPackage
from treaty_consensus.kinds import NEGATIVE_STATES, Body, Decision, Genesis, Handler, Identity, Newer, Parameters, Publish, Status
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.protocol import Card, ProtocolUri
from treaty_consensus.rotation import Rotation
from treaty_consensus.statement import Statement
from treaty_io.codes import BundleCode

from ...registries.bundle import Bundle
from .log_keys import proven_keys

if TYPE_CHECKING:
    from ..attestation import SigningIdentity


def needs_newer(subject: str, meanwhile: str = "") -> Refused:
    """Return the error for a proof that rests on a statement which this release has no use of. `meanwhile`: further advice."""
    return Refused(
        RegistryCode.NEWER,
        f"{subject} is of a newer release than this one ({__version__}), and what is asked for rests on it.",
        fix=f"Install a newer release. {meanwhile}".rstrip(),
    )


def is_status(body: Body) -> TypeGuard[Status | Newer]:
    """Return whether a body states the status of a protocol or a handler."""
    return isinstance(body, Status) or (isinstance(body, Newer) and body.kind == "status")


def decides(body: Body) -> TypeGuard[Decision | Newer]:
    """Return whether a body stands in the place of a topic's decision. So does one of a critical type that names only a topic."""
    return isinstance(body, Decision) or (
        isinstance(body, Newer) and body.critical and not body.uri and body.kind not in ("publish", "report", "ballot")
    )


@dataclass(frozen=True)
class Logged:
    """A statement that is proved to be leaf `index`. `tenure`: its first author's at that leaf, 1 for a did:key."""

    index: int
    statement: Statement
    tenure: int


@dataclass(frozen=True)
class Evidence:
    """The result of steps 2 to 4.

    `checkpoint`: signed and cosigned; `checkpoint.time` is the clock's, in Unix seconds. `genesis`: leaf 0. `statements`: in the
    order of the log.
    """

    checkpoint: SignedCheckpoint
    genesis: Genesis
    statements: tuple[Logged, ...]

    @property
    def keys(self) -> LogKeys:
        """The keys of the log, as its genesis and the rotations before the checkpoint name them."""
        named = (logged for logged in self.statements if isinstance(logged.statement.body, Genesis | Rotation))
        return proven_keys((logged.index, logged.statement.leaf) for logged in named)

    def decision(self, topic: str) -> Decision | Newer | None:
        """Return the newest decision in a topic, or None. `Newer` is one that only a newer release understands."""
        bodies = [logged.statement.body for logged in self.statements]
        return next((body for body in reversed(bodies) if decides(body) and body.topic == topic), None)

    def constitution(self, decision: Decision) -> str:
        """Return the digest of the parameters under which a decision was made."""
        named = next(logged.statement.body for logged in self.statements if logged.statement.id == decision.parameters)
        # The decision was admitted with them, in the replay.
        assert isinstance(named, Parameters), "a decision names parameters"
        return constitution_of(named)

    @cached_property
    def out_of_use(self) -> frozenset[str]:
        """The protocols of which the log has a statement that only a newer release understands, other than a status: the newest
        one of these holds."""
        bodies = [logged.statement.body for logged in self.statements]
        return frozenset(
            body.uri
            for body in bodies
            if isinstance(body, Newer) and body.critical and body.uri and body.kind not in ("status", "handler")
        )

    def identities(self, did: str) -> list[Logged]:
        """Return the identities of a DID, in the order of the log."""
        bodies = [(logged, logged.statement.body) for logged in self.statements]
        return [logged for logged, body in bodies if isinstance(body, Identity) and body.did == did]

    def published(self, uri: str) -> Logged:
        """Return the statement that publishes `uri`. Raises `Refused` (`registry.newer`) if only a newer release can use the
        protocol, and `NotFound` (`bundle.form`)."""
        if uri in self.out_of_use:
            raise needs_newer(f"A statement about {uri}")
        for logged in self.statements:
            if isinstance(logged.statement.body, Publish) and logged.statement.body.uri == uri:
                return logged
        raise NotFound(BundleCode.FORM, f"The bundle holds no statement that publishes {uri}.")


@dataclass(frozen=True)
class OfferedHandler:
    """A handler that the log holds for a protocol. `status`: the newest one by its publisher, or None."""

    body: Handler
    publisher: str
    tenure: int
    index: int
    status: Status | Newer | None

    @property
    def is_negative(self) -> bool:
        """Whether its publisher took it back, or may have done so in a way that this release does not know."""
        return isinstance(self.status, Newer) or (self.status is not None and self.status.state in NEGATIVE_STATES)


@dataclass(frozen=True)
class ProvenProtocol:
    """A protocol after steps 1 to 6, with the selected handler. `card` is None when its bytes were withdrawn."""

    uri: ProtocolUri
    publish: Publish
    author: str
    document: bytes
    card: Card | None
    status: Status | Newer | None
    handler: OfferedHandler
    evidence: Evidence
    bundle: Bundle


@dataclass(frozen=True)
class VerifiedProtocol:
    """A protocol and the handler that may run for it, after all ten steps, or after the nine that need no store.

    `hash`: of `document`. `author`: the DID that published the document. `publisher`, `tenure`: the DID that attached the handler
    `package`, and its tenure at that leaf. `signer`: who attested the handler. `election`: the state of the document in the
    newest decision of its topic, or None. `handler_index`: the leaf of the handler statement. `warnings`: sentences for a person.
    `bundle`, `wheel`, `attestation`, `trusted_root`: the bytes of the proof, to be stored.
    """

    uri: str
    hash: str
    topic: str
    document: bytes = field(repr=False)
    card: Card | None
    author: str
    publisher: str
    tenure: int
    package: HandlerPackage = field(repr=False)
    signer: SigningIdentity
    election: str | None
    warnings: tuple[str, ...]
    handler_index: int
    evidence: Evidence = field(repr=False, compare=False)
    bundle: bytes = field(repr=False)
    wheel: bytes = field(repr=False)
    attestation: bytes = field(repr=False)
    trusted_root: bytes = field(repr=False)

    @property
    def checkpoint(self) -> SignedCheckpoint:
        """The checkpoint of the proof."""
        return self.evidence.checkpoint

    @property
    def aliases(self) -> tuple[str, ...]:
        """The foreign names that the proven publish statement claims."""
        body = self.evidence.published(self.uri).statement.body
        return tuple(body.aliases) if isinstance(body, Publish) else ()

    def age(self, now: int) -> int:
        """Return the seconds since the log's clock cosigned the checkpoint."""
        assert self.checkpoint.time is not None
        return now - self.checkpoint.time
