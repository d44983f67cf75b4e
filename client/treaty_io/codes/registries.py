"""The error codes of what asks registries and checks their answers; see `treaty_consensus.codes`."""

from __future__ import annotations

from treaty_consensus.codes import Code, Retry
from treaty_consensus.errors import Conflict, Malformed, NotFound, Origin, Refused, TooLarge, Unavailable, Untrusted


class AnchorsCode(Code, origin=Origin.CALLER):
    FILE = "anchors.file", "The file of anchors is missing, malformed or over its cap.", Malformed, TooLarge, NotFound


class AttestationCode(Code, origin=Origin.REGISTRY):
    IDENTITY = "attestation.identity", "The signer is not one that the policy allows.", Untrusted, Origin.CALLER
    NOT_SIGNED = "attestation.not-signed", "A signing service refused or failed.", Unavailable, Origin.NETWORK
    SIGNATURE = (
        "attestation.signature",
        "The attestation is no Sigstore bundle of this form, does not verify, or is for another wheel, URI, hash or entry point.",
        Untrusted,
    )


class BundleCode(Code, origin=Origin.REGISTRY):
    FORM = (
        "bundle.form",
        "The bytes are not a bundle, leaf 0 first and in order, of exactly the statements that prove the protocol.",
        Malformed,
        NotFound,
        Refused,
    )
    OTHER = "bundle.other", "The registry answered with another protocol.", Untrusted


class ClientAuditCode(Code, origin=Origin.REGISTRY):
    FAILED = "audit.failed", "A disk, a process or the cluster of the audit failed.", Unavailable, Origin.CALLER
    FORK = (
        "audit.fork",
        "A checkpoint of a statement or of an earlier audit, or the key in the genesis, is of another history of the log.",
        Untrusted,
    )
    LEFT_OUT = "audit.left-out", "The log left out a statement that witnesses had stamped in time.", Untrusted


class ClientCheckpointCode(Code, origin=Origin.REGISTRY):
    FUTURE = "checkpoint.future", "The checkpoint is dated in the future.", Untrusted
    STALE = "checkpoint.stale", "The checkpoint is older than the policy allows.", Untrusted, Retry.YES


class ClientDecisionCode(Code, origin=Origin.REGISTRY):
    CONSTITUTION = "decision.constitution", "The decision is made under another constitution than the pinned one.", Refused


class ClientIdentityCode(Code, origin=Origin.CALLER):
    FILE = (
        "identity.file",
        "The identity file is malformed, is open to other users, changed during the rotation, or has no key of the DID.",
        Malformed,
        Conflict,
        Refused,
    )
    MISSING = "identity.missing", "There is no identity file.", NotFound
    ROTATE = "identity.rotate", "The DID cannot change its key, or no kept key is one that the registry knows.", Refused


class ClientLogCode(Code, origin=Origin.REGISTRY):
    ROLLBACK = "log.rollback", "A newer log was signed before, and the registry does not show it.", Untrusted
    TOO_FEW_COPIES = "log.too-few-copies", "The log promises that a leaf is in fewer places than the policy asks for.", Refused


class ClientRegistryCode(Code, origin=Origin.REGISTRY):
    ANSWER = "registry.answer", "The answer is not one of this route.", Malformed, TooLarge
    BROKEN = (
        "registry.broken",
        "The connection to the registry broke, or it answered with an error status and no problem.",
        Unavailable,
    )
    NOT_TRUSTED = (
        "registry.not-trusted",
        "The registry is not among the trusted ones, none is trusted, or one of several must be named.",
        NotFound,
        Refused,
        Untrusted,
        Origin.CALLER,
    )
    OTHER_KEY = "registry.other-key", "The registry is trusted by another key.", Conflict, Origin.CALLER
    UNCERTAIN = "registry.uncertain", "Statements were sent, and no answer came: they may be logged or not.", Unavailable
    UNREACHABLE = "registry.unreachable", "The registry cannot be reached, and no mirror of the policy answers.", Unavailable
    URL = "registry.url", "The text is not the URL of a registry with the Ed25519 key of its log.", Malformed, Origin.CALLER


class ClientStatusCode(Code, origin=Origin.REGISTRY):
    REVOKED = "status.revoked", "The publisher revoked it.", Refused
    YANKED = "status.yanked", "The publisher yanked it.", Refused


class ClientTopicCode(Code, origin=Origin.REGISTRY):
    UNDECIDED = "topic.undecided", "No decision was made in the topic.", NotFound


class ContradictionCode(Code, origin=Origin.CALLER):
    FORM = "contradiction.form", "The bytes are not the proof of a contradiction of this log.", Malformed, Untrusted


class LockCode(Code, origin=Origin.REGISTRY):
    CONTRADICTED = (
        "lock.contradicted",
        "The log has another document, identity or status than the lock has proved, or leaves out a newer handler.",
        Refused,
        Untrusted,
    )
    PUBLISHER = "lock.publisher", "The handlers come from another publisher, tenure or signer than before.", Untrusted


class MemoryCode(Code, origin=Origin.REGISTRY):
    BEHIND = "memory.behind", "The answer is of an older log than a proved leaf or the lock.", Unavailable
    CONTRADICTED = "memory.contradicted", "A fact that the registry proved before is missing, differs or is denied."
    FULL = "memory.full", "The registry proved more revocations than are kept.", Refused, Origin.CALLER
    LOST = "memory.lost", "Proved leaves were lost: the file is missing, or older than registries.json.", Untrusted, Origin.CALLER
    NOTHING = (
        "memory.nothing",
        "The text is no protocol URI, topic or DID, or no trusted registry has proved anything of it.",
        Malformed,
        NotFound,
        Origin.CALLER,
    )


class MirrorCode(Code, origin=Origin.REGISTRY):
    BEHIND = "mirror.behind", "The mirror could not follow its registry for two minutes, or misses a blob of it.", Unavailable
    ROOT = "mirror.root", "The entries do not have the root of the checkpoint.", Untrusted


class PolicyCode(Code, origin=Origin.CALLER):
    FILE = (
        "policy.file",
        "The policy file cannot be read or edited, or a field of it has a value that is not allowed.",
        Malformed,
        Refused,
        Unavailable,
        Retry.NO,
    )
    REFUSED = (
        "policy.refused",
        "The policy does not allow the registry or the state of the protocol, no publisher that it names has a handler for this "
        "runtime, or it is frozen and treaty.lock does not pin the protocol.",
        Refused,
    )


class ProjectCode(Code, origin=Origin.CALLER):
    FILE = (
        "project.file",
        "A file of the project is missing, malformed, too large, one too many, a link that leads out, or a document that differs "
        "from its manifest.",
        Malformed,
        TooLarge,
        NotFound,
        Refused,
    )


class PublisherCode(Code, origin=Origin.REGISTRY):
    OTHER_KEYS = "publisher.other-keys", "The publisher's host does not list a key that the log lists.", Untrusted


class ResolveCode(Code, origin=Origin.CALLER):
    AMBIGUOUS = (
        "resolve.ambiguous",
        "Several protocols have the name, or their publishers cannot claim it. Name the protocol by its URI.",
        Refused,
    )
    UNKNOWN = "resolve.unknown", "No registry of the policy has a protocol with the name.", NotFound


class SigstoreBundleCode(Code, origin=Origin.REGISTRY):
    DIGEST = "sigstore-bundle.digest", "The bytes of the Sigstore bundle are not the published ones.", Untrusted


class VectorCode(Code, origin=Origin.CALLER):
    FORM = (
        "vector.form",
        "The file is not a test vector, is over its cap, or is of a role that the protocol lacks.",
        Malformed,
        TooLarge,
        Refused,
    )
    DIFFERS = (
        "vector.differs",
        "The handler does not pass its vectors or repeat a recorded session, or the vectors do not reach an operation.",
        Refused,
    )


class WatchCode(Code, origin=Origin.CALLER):
    FILE = (
        "watch.file",
        "The file of watches, or the secret or URL of a webhook in it, is missing, malformed or not safe.",
        Malformed,
        TooLarge,
        NotFound,
        Refused,
    )
    SHRUNK = "watch.shrunk", "The log is smaller than at an earlier time of its own clock.", Untrusted, Origin.REGISTRY
    WEBHOOK = "watch.webhook", "A webhook did not take a finding.", Unavailable


class WheelCode(Code, origin=Origin.REGISTRY):
    DIGEST = "wheel.digest", "The bytes of the wheel are not the published ones.", Untrusted
