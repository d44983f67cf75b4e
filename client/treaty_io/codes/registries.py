"""The error codes of what asks registries and checks their answers; see `treaty_consensus.codes`."""

from __future__ import annotations

from treaty_consensus.codes import Code, Retry
from treaty_consensus.errors import Conflict, Malformed, NotFound, Origin, Refused, TooLarge, Unavailable, Untrusted


class AnchorsCode(Code, origin=Origin.CALLER):
    FILE = "anchors.file", "The file of anchors is missing, malformed or over its cap.", Malformed, TooLarge, NotFound


class AttestationCode(Code, origin=Origin.REGISTRY):
    FORM = "attestation.form", "The bytes are not a Sigstore bundle of this form, or sign no handler attestation.", Untrusted
    IDENTITY = "attestation.identity", "The signer is not one that the policy allows.", Untrusted, Origin.CALLER
    NOT_SIGNED = "attestation.not-signed", "A signing service refused or failed.", Unavailable, Origin.NETWORK
    ROOT = "attestation.root", "The Sigstore trusted root cannot be read.", Untrusted
    SIGNATURE = (
        "attestation.signature",
        "The attestation does not verify, or is for another wheel, URI, hash or entry point.",
        Untrusted,
    )


class BundleCode(Code, origin=Origin.REGISTRY):
    FORM = "bundle.form", "The bytes are not a bundle: leaf 0 first, in order.", Malformed
    NO_PUBLISH = "bundle.no-publish", "The bundle has no statement that publishes the protocol.", NotFound
    OTHER = "bundle.other", "The registry answered with another protocol.", Untrusted
    STATEMENT = "bundle.statement", "The bundle has a statement of a kind that proves nothing here.", Refused


class ClientAuditCode(Code, origin=Origin.REGISTRY):
    FAILED = "audit.failed", "A disk, a process or the cluster of the audit failed.", Unavailable, Origin.CALLER
    FORK = (
        "audit.fork",
        "A statement or an earlier audit has a checkpoint of another history of this log, or its genesis names another key than the trusted one.",
        Untrusted,
    )
    LEFT_OUT = "audit.left-out", "The log left out a statement that witnesses had stamped in time.", Untrusted


class ClientCheckpointCode(Code, origin=Origin.REGISTRY):
    FUTURE = "checkpoint.future", "The checkpoint is dated in the future.", Untrusted
    STALE = "checkpoint.stale", "The checkpoint is older than the policy allows.", Untrusted, Retry.YES


class ClientDecisionCode(Code, origin=Origin.REGISTRY):
    CONSTITUTION = "decision.constitution", "The decision is made under another constitution than the pinned one.", Refused


class ClientIdentityCode(Code, origin=Origin.CALLER):
    EXISTS = "identity.exists", "There is an identity file already.", Conflict
    FILE = (
        "identity.file",
        "The identity file is malformed, its key is not one of the DID, other users can read it, or it changed during the rotation.",
        Malformed,
        Conflict,
        Refused,
    )
    MISSING = "identity.missing", "There is no identity file.", NotFound
    ROTATE = "identity.rotate", "The DID cannot change its key, or no kept key is one that the registry knows.", Refused


class ClientLogCode(Code, origin=Origin.REGISTRY):
    ROLLBACK = "log.rollback", "A newer log was signed before, and the registry does not show it.", Untrusted
    TOO_FEW_COPIES = "log.too-few-copies", "The log promises that a leaf is in fewer places than the policy asks for.", Refused


class ClientPublishCode(Code, origin=Origin.CALLER):
    TRUST_CONFIG = (
        "publish.trust-config",
        "The signing service is not the one that the genesis names.",
        Untrusted,
        Origin.REGISTRY,
    )
    VECTORS = "publish.vectors", "The handler does not pass its vectors, or they do not reach an operation.", Refused


class ClientRegistryCode(Code, origin=Origin.REGISTRY):
    ANSWER = "registry.answer", "The answer is not one of this route.", Malformed, TooLarge
    BROKEN = "registry.broken", "The connection to the registry broke before its answer was complete.", Unavailable
    FILE = "registry.file", "The list of trusted registries is malformed.", Malformed, Origin.CALLER
    NONE = "registry.none", "No registry is trusted yet.", NotFound, Origin.CALLER
    NOT_TRUSTED = "registry.not-trusted", "The registry is not among the trusted ones.", Untrusted, Origin.CALLER
    OTHER_KEY = "registry.other-key", "The registry is trusted by another key.", Conflict, Origin.CALLER
    SEVERAL = "registry.several", "Several registries are trusted; one must be named.", Refused, Origin.CALLER
    STATUS = "registry.status", "The registry answered with an error status and no problem."
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


class LocalCode(Code, origin=Origin.CALLER):
    NO_REGISTRY = "local.no-registry", "An agent without a registry does not publish or report.", Refused
    TWICE = "local.twice", "Two folders have the same protocol.", Malformed


class LockCode(Code, origin=Origin.REGISTRY):
    BEHIND = "lock.behind", "The answer is of an older log than the lock.", Unavailable
    CONTRADICTED = "lock.contradicted", "The log has another document, identity or status than the lock has proved.", Untrusted
    FILE = "lock.file", "The lock file is malformed or of another version.", Malformed, Origin.CALLER
    OLDER_HANDLER = "lock.older-handler", "The answer leaves out a newer handler that was seen before.", Refused
    PUBLISHER = "lock.publisher", "The handlers come from another publisher, tenure or signer than before.", Untrusted


class MemoryCode(Code, origin=Origin.REGISTRY):
    BEHIND = "memory.behind", "The answer is of an older log than a proved leaf."
    CONTRADICTED = "memory.contradicted", "A fact that the registry proved before is missing, differs or is denied."
    FILE = "memory.file", "The file of proved leaves is damaged or of another version.", Malformed, Origin.CALLER
    FULL = "memory.full", "The registry proved more revocations than are kept.", Refused, Origin.CALLER
    LOST = "memory.lost", "Proved leaves were lost: the file is missing, or older than registries.json.", Untrusted, Origin.CALLER
    NOTHING = "memory.nothing", "No trusted registry has proved anything of the subject.", NotFound, Origin.CALLER
    SUBJECT = "memory.subject", "The text is no protocol URI, no topic and no DID.", Malformed, Origin.CALLER
    UNAVAILABLE = "memory.unavailable", "The file of proved leaves cannot be read or written.", Unavailable, Origin.CALLER
    UNCONFIRMED = "memory.unconfirmed", "Proved facts are only forgotten after a confirmation.", Refused, Origin.CALLER


class MirrorCode(Code, origin=Origin.REGISTRY):
    ROOT = "mirror.root", "The entries do not have the root of the checkpoint.", Untrusted


class PolicyCode(Code, origin=Origin.CALLER):
    EDIT = "policy.edit", "The list of publishers in the policy file has a form that is not edited.", Refused
    FILE = "policy.file", "The policy file cannot be read or is malformed.", Malformed, Unavailable, Retry.NO
    PUBLISHER = "policy.publisher", "No publisher that the policy names has a handler for this runtime.", Refused
    REGISTRY = "policy.registry", "The policy does not allow protocols of the registry.", Refused
    UNCONFINED = "policy.unconfined", "The policy lets handlers run without a sandbox.", Refused
    VALUE = "policy.value", "A field of the policy has a value that is not allowed.", Malformed


class ProjectCode(Code, origin=Origin.CALLER):
    CHOICE = "project.choice", "A choice for a new project is not one of the legal ones.", Malformed
    EXISTS = "project.exists", "The folder of a new project is not empty.", Conflict
    FILE = (
        "project.file",
        "A file of the project is missing, too large, one too many, or a link that leads out.",
        TooLarge,
        NotFound,
        Refused,
    )
    HANDLER = "project.handler", "The project has no handler.", NotFound
    TOML = "project.toml", "The file protocol.toml or the manifest of the project is malformed.", Malformed


class PublisherCode(Code, origin=Origin.REGISTRY):
    OTHER_KEYS = "publisher.other-keys", "The publisher's host does not list a key that the log lists.", Untrusted


class ResolveCode(Code, origin=Origin.CALLER):
    AMBIGUOUS = "resolve.ambiguous", "Several protocols have the name."
    CLAIM = "resolve.claim", "The publisher of the protocol cannot claim the name."
    UNKNOWN = "resolve.unknown", "No registry of the policy has a protocol with the name."


class SigstoreBundleCode(Code, origin=Origin.REGISTRY):
    DIGEST = "sigstore-bundle.digest", "The bytes of the Sigstore bundle are not the published ones.", Untrusted


class TrustCode(Code, origin=Origin.CALLER):
    UNCONFIRMED = "trust.unconfirmed", "The key of a registry must be confirmed before it is trusted.", Refused


class TrustedRootCode(Code, origin=Origin.REGISTRY):
    DIGEST = "trusted-root.digest", "The bytes of the trusted root are not those that the genesis pins.", Untrusted


class VectorCode(Code, origin=Origin.CALLER):
    DIFFERS = "vector.differs", "The handler does not repeat a recorded session.", Refused
    EXISTS = "vector.exists", "The project has a vector of this name.", Conflict
    FORM = "vector.form", "The file is not a test vector, or is over its cap.", Malformed, TooLarge
    ROLE = "vector.role", "The role of the test vector is not one of the protocol.", Refused
    SLOW = "vector.slow", "The vectors of a published handler take too long.", Unavailable


class WatchCode(Code, origin=Origin.CALLER):
    FILE = "watch.file", "The file of watches is missing, malformed or over its caps.", Malformed, NotFound, TooLarge
    HELD = "watch.held", "Another process holds the cursors of this watch.", Conflict
    OPTION = "watch.option", "The options name nothing to watch, or do not fit.", Malformed
    SECRET = "watch.secret", "The secret of a webhook is missing, malformed, or readable by others.", Malformed, NotFound, Refused
    SHRUNK = "watch.shrunk", "The log is smaller than at an earlier time of its own clock.", Untrusted, Origin.REGISTRY
    STATE = "watch.state", "The file of the cursors is damaged.", Malformed
    WEBHOOK = "watch.webhook", "A webhook did not take a finding.", Unavailable
    WEBHOOK_URL = "watch.webhook-url", "The URL of a webhook is neither https nor on this machine.", Refused


class WheelCode(Code, origin=Origin.REGISTRY):
    DIGEST = "wheel.digest", "The bytes of the wheel are not the published ones.", Untrusted
