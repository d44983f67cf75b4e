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
    IDENTITY = (
        "authentication.identity",
        "The signer's DID document cannot be used, or does not list the key for authentication.",
        Unauthorized,
    )
    MISSING = (
        "authentication.missing",
        "The request has no signature, or one in the older header that the listener does not accept.",
        Unauthorized,
    )
    REPLAYED = "authentication.replayed", "The signature was accepted before.", Unauthorized
    SIGNATURE = (
        "authentication.signature",
        "The signature does not parse, does not cover what it must, or does not verify.",
        Unauthorized,
    )
    TIME = "authentication.time", "The signature is too old, older than the replay record, or made in the future.", Unauthorized
    URL = (
        "authentication.url",
        "The request to sign, or the listener, has no absolute http or https URL of its own.",
        Malformed,
        Unauthorized,
        Origin.CALLER,
    )


class ClientDidCode(Code, origin=Origin.PEER):
    BINDING = "did.binding", "The document of a bound DID has no valid proof by the bound key.", Malformed, Unauthorized
    DEACTIVATED = "did.deactivated", "The owner deactivated the DID.", Refused


class ConnectionCode(Code, origin=Origin.PEER):
    BUSY = (
        "connection.busy",
        "The agent takes no request now: it has too many, it stops, or the body came too slowly.",
        Unavailable,
    )
    FAILED = (
        "connection.failed",
        "No agent answers at the address, or no session was open within the time for connecting.",
        Unavailable,
        Origin.NETWORK,
    )
    LISTEN = "connection.listen", "The address and port cannot be listened on.", Unavailable, Origin.CALLER, Retry.NO
    LOST = "connection.lost", "The connection to the other agent is closed.", Unavailable, Origin.NETWORK
    ORIGIN = "connection.origin", "A web page sent the request.", Refused
    PATH = "connection.path", "Nothing is served at the path.", NotFound
    REFUSED = "connection.refused", "The agent refused the request; the message has its code.", Refused, Origin.CALLER
    REQUEST = "connection.request", "The body, a parameter or the Content-Type of the request is wrong.", Malformed
    SESSION = (
        "connection.session",
        "There is no such session of this DID, it is over, or a message of it is missing. Open another one.",
        NotFound,
        Gone,
        Conflict,
        Refused,
    )
    TOO_LARGE = "connection.too-large", "A body, a message in it or a query is over its cap.", TooLarge


class DirectoryCode(Code, origin=Origin.CALLER):
    CHANGED = "directory.changed", "A file of an export is absent, or does not match its proofs.", NotFound, Untrusted


class DiscoveryCode(Code, origin=Origin.PEER):
    DOCUMENT = (
        "discovery.document",
        "The document is not of the kind that is due, is over a cap, or is of another DID or host.",
        Malformed,
        TooLarge,
        Refused,
    )
    NOTHING = "discovery.nothing", "The domain, the DID document or the description names no agent that can be called.", NotFound
    TOO_MANY = "discovery.too-many", "There are more pages or agents than are read.", TooLarge


class EgressCode(Code, origin=Origin.NETWORK):
    ANSWER = (
        "egress.answer",
        "The host answered with a redirect, or with a body that is encoded, over its cap or in tiny pieces.",
        Malformed,
        TooLarge,
        Refused,
        Origin.PEER,
    )
    NOT_FOUND = "egress.not-found", "The host answered 404 or 410.", NotFound, Origin.PEER
    UNREACHABLE = (
        "egress.unreachable",
        "The host of a document has no public address that answers in time and with success, or too many requests wait for it.",
        Unavailable,
    )


class ModelCode(Code, origin=Origin.CALLER):
    ANSWER = (
        "model.answer",
        "The model refuses, no allowed attempt gave a usable answer, or the request or the answer is over 2 MiB.",
        Malformed,
        TooLarge,
        Refused,
    )
    BUDGET = "model.budget", "The share of the model's budget is used up for now.", Unavailable
    UNAVAILABLE = (
        "model.unavailable",
        "The model cannot be reached, is busy, failed or did not answer in time.",
        Unavailable,
        Origin.NETWORK,
    )


class NetworkCode(Code, origin=Origin.NETWORK):
    DEADLINE = "network.deadline", "The exchange was not over in time.", Unavailable
    URL = "network.url", "The text is not a URL, a domain or a DID that can be asked here.", Malformed, Refused, Origin.CALLER


class RpcCode(Code, origin=Origin.PEER):
    ANSWER = (
        "rpc.answer",
        "The answer, the description of the interface or the result has another form, or is over a cap.",
        Malformed,
        TooLarge,
        Refused,
    )
    ARGUMENTS = "rpc.arguments", "The arguments break the schema of the method; nothing was sent.", Malformed
    ERROR = "rpc.error", "The agent answered with an error.", Refused
    NOTHING = "rpc.nothing", "The agent describes no such method, or no interface that can be called.", NotFound
    UNAUTHORIZED = "rpc.unauthorized", "The agent refuses the caller (401 or 403).", Unauthorized
    UNREACHABLE = "rpc.unreachable", "The agent does not answer, or not with a status of success.", Unavailable


class SecureCode(Code, origin=Origin.PEER):
    HELLO = (
        "secure.hello",
        "A message of the handshake has another form, type or signer, is over 32 KiB, or does not verify.",
        Malformed,
        TooLarge,
        Unauthorized,
    )
    IDENTITY = "secure.identity", "The signing key is not one of the DID, or its document cannot be used.", Unauthorized
    KEY = "secure.key", "The key cannot sign Hellos, or this side sends before there are keys.", Malformed, Refused, Origin.CALLER
    NO_COMMON = "secure.no-common", "There is no common version, cipher suite or group.", Refused
    RECORD = (
        "secure.record",
        "The message is not a record of this session that is due now, or does not decrypt.",
        Malformed,
        Unauthorized,
        Refused,
    )
    REPLAYED = "secure.replayed", "A nonce or a Hello was used before.", Unauthorized
    REQUIRED = "secure.required", "The peer does not encrypt, and the policy requires it.", Refused
    STALE = "secure.stale", "The Hello was not made within 330 seconds of now.", Refused
    TRUNCATED = "secure.truncated", "The connection broke off: the other side did not close it.", Unavailable
