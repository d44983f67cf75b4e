"""The error codes of transports, discovery, signed requests, encryption and models; see `treaty_consensus.codes`."""

from __future__ import annotations

from treaty_consensus.codes import Code, Retry
from treaty_consensus.errors import (
    Conflict,
    Gone,
    Malformed,
    NotFound,
    Origin,
    Refused,
    TooLarge,
    Unauthorized,
    Unavailable,
    Untrusted,
)


class AuthenticationCode(Code, origin=Origin.PEER):
    AUDIENCE = "authentication.audience", "The listener was not configured with its own URL.", Unauthorized, Origin.CALLER
    IDENTITY = (
        "authentication.identity",
        "The signer's DID document cannot be used, or does not list the key for authentication.",
        Unauthorized,
    )
    LEGACY = "authentication.legacy", "The listener does not accept the older header.", Unauthorized
    MISSING = "authentication.missing", "The request has no signature.", Unauthorized
    REPLAYED = "authentication.replayed", "The signature was accepted before.", Unauthorized
    SIGNATURE = (
        "authentication.signature",
        "The signature does not parse, does not cover what it must, or does not verify.",
        Unauthorized,
    )
    TIME = "authentication.time", "The signature is too old, older than the replay record, or made in the future.", Unauthorized
    URL = "authentication.url", "A request to sign has no absolute http or https URL.", Malformed, Origin.CALLER


class CaseCode(Code, origin=Origin.CALLER):
    FORM = (
        "test-cases.form",
        "The test cases have another form, or are too many; the message names the line.",
        Malformed,
        TooLarge,
    )


class ClientDidCode(Code, origin=Origin.PEER):
    BINDING = "did.binding", "The document of a bound DID has no valid proof by the bound key.", Malformed, Unauthorized
    DEACTIVATED = "did.deactivated", "The owner deactivated the DID.", Refused


class ConnectionCode(Code, origin=Origin.PEER):
    BUSY = "connection.busy", "There are too many connections or requests.", Unavailable
    CLOSED = "connection.closed", "The session is over.", Gone
    DRAINING = "connection.draining", "The agent stops, and takes no further sessions.", Unavailable
    FAILED = "connection.failed", "No agent answers at the address.", Unavailable, Origin.NETWORK
    LISTEN = "connection.listen", "The address cannot be listened on.", Unavailable, Origin.CALLER, Retry.NO
    LOST = "connection.lost", "The connection to the other agent is closed.", Unavailable, Origin.NETWORK
    ORIGIN = "connection.origin", "A web page sent the request.", Refused
    PATH = "connection.path", "Nothing is served at the path.", NotFound
    PEER = "connection.peer", "Another DID opened the session.", Refused
    REFUSED = "connection.refused", "The agent refused the request; the message has its code.", Refused, Origin.CALLER
    REQUEST = "connection.request", "The body, a parameter or the Content-Type of the request is wrong.", Malformed
    SEQUENCE = "connection.sequence", "A message is missing, or one was acknowledged that was not sent.", Conflict
    SESSION = "connection.session", "There is no such session, or it is over.", NotFound
    SLOW = "connection.slow", "The body of the request took too long to arrive.", Unavailable
    TIMEOUT = "connection.timeout", "No session was open within the time for connecting.", Unavailable
    TOO_LARGE = "connection.too-large", "A body, a message in it or a query is over its cap.", TooLarge
    URL = "connection.url", "The address is not a ws, wss, http or https URL.", Malformed, Origin.CALLER


class DirectoryCode(Code, origin=Origin.CALLER):
    CHANGED = "directory.changed", "A file of an export is absent, or does not match its proofs.", NotFound, Untrusted


class DiscoveryCode(Code, origin=Origin.PEER):
    DOCUMENT = "discovery.document", "The document is not of the kind that is due.", Malformed
    FACTS = "discovery.facts", "The agent cannot be described with these facts.", Malformed, Origin.CALLER
    NAME = "discovery.name", "The text is not a domain, a DID or a URL.", Malformed, Origin.CALLER
    NOTHING = "discovery.nothing", "The domain, the DID document or the description names no agent that can be called.", NotFound
    OTHER = "discovery.other", "The description names another DID, or the next page is at another host or repeats.", Refused
    TOO_LARGE = "discovery.too-large", "The document is over a cap.", TooLarge
    TOO_MANY = "discovery.too-many", "There are more pages or agents than are read.", TooLarge


class EgressCode(Code, origin=Origin.NETWORK):
    ANSWER = "egress.answer", "The host answered with a redirect, or with a body that is encoded.", Refused, Origin.PEER
    HOST_INTERVAL = "egress.host-interval", "Too many requests wait for the same host.", Unavailable, Origin.CALLER
    NOT_FOUND = "egress.not-found", "The host answered 404 or 410.", NotFound, Origin.PEER
    STATUS = "egress.status", "The host answered with an unexpected status.", Unavailable, Origin.PEER
    TOO_LARGE = "egress.too-large", "The body is over 64 KiB.", TooLarge, Origin.PEER
    UNREACHABLE = "egress.unreachable", "The host has no public address that answers in time.", Unavailable
    URL = "egress.url", "The URL is not https on port 443, or has user information.", Refused, Origin.CALLER


class ModelCode(Code, origin=Origin.CALLER):
    ANSWER = (
        "model.answer",
        "The model refuses, no allowed attempt gave a usable answer, or the request or the answer is over 2 MiB.",
        Malformed,
        TooLarge,
        Refused,
    )
    BUDGET = "model.budget", "The model allowance is used up.", Refused
    SETTINGS = "model.settings", "The URL, the name or the API key of the model is malformed.", Malformed
    UNAVAILABLE = (
        "model.unavailable",
        "The model cannot be reached, is busy, failed or did not answer in time.",
        Unavailable,
        Origin.NETWORK,
    )


class NetworkCode(Code, origin=Origin.NETWORK):
    DEADLINE = "network.deadline", "The exchange was not over in time.", Unavailable
    PIECES = "network.pieces", "The body comes in pieces of a few bytes.", Malformed
    TOO_LARGE = "network.too-large", "A signing service answered with more than 1 MiB.", TooLarge
    URL = "network.url", "The text is no URL with a host and no user, or not HOST=IP:PORT.", Malformed, Origin.CALLER


class RpcCode(Code, origin=Origin.PEER):
    ANSWER = "rpc.answer", "The answer, the description of the interface or the result has another form.", Malformed
    ARGUMENTS = "rpc.arguments", "The arguments break the schema of the method; nothing was sent.", Malformed
    ERROR = "rpc.error", "The agent answered with an error.", Refused
    NOTHING = "rpc.nothing", "The agent describes no such method, or no interface that can be called.", NotFound
    SCHEMA = "rpc.schema", "A schema of the method breaks the rules that bound its cost.", Refused
    TOO_LARGE = "rpc.too-large", "The answer or the number of methods is over its cap.", TooLarge
    UNAUTHORIZED = "rpc.unauthorized", "The agent refuses the caller (401 or 403).", Unauthorized
    UNREACHABLE = "rpc.unreachable", "The agent does not answer, or not with a status of success.", Unavailable


class SecureCode(Code, origin=Origin.PEER):
    DESTINATION = "secure.destination", "The Hello is for another DID, or another DID answers.", Refused
    EXPIRED = "secure.expired", "The keys of the session are used up.", Unavailable
    FINISHED = "secure.finished", "Another message came, or the peer saw other Hellos.", Malformed, Unauthorized
    HELLO = "secure.hello", "The Hello has another form, type or signer, or is over 32 KiB.", Malformed, TooLarge
    IDENTITY = "secure.identity", "The signing key is not one of the DID, or its document cannot be had.", Unauthorized
    KEY = "secure.key", "The key cannot sign Hellos.", Malformed, Origin.CALLER
    NO_COMMON = "secure.no-common", "There is no common version, cipher suite or group.", Refused
    PROOF = "secure.proof", "The signature of the Hello does not verify.", Unauthorized
    RECORD = (
        "secure.record",
        "The message is not a record of this session, or the key share is not a point of the group.",
        Malformed,
    )
    REPLAYED = "secure.replayed", "A nonce or a Hello was used before.", Unauthorized
    REQUIRED = "secure.required", "The peer does not encrypt, and the policy requires it.", Refused
    STALE = "secure.stale", "The Hello was not made within 330 seconds of now.", Refused
    TAMPERED = "secure.tampered", "A record does not decrypt, or was left out, repeated or moved.", Unauthorized
    TIMEOUT = "secure.timeout", "The handshake took too long.", Unavailable
    TRUNCATED = "secure.truncated", "The connection ended without a close record (only as a reason).", Unavailable
    UNEXPECTED = "secure.unexpected", "A message came when none is due, as a text, or for another Hello.", Refused
    UNREADY = "secure.unready", "This side sends before there are keys.", Refused, Origin.CALLER
