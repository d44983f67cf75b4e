"""Sign, encode and parse the messages of the flow profile: text, one JSON object (RFC 8259), signed.

    {"type": "meta-protocol",                        or the NAME of the agreed protocol, once a session runs
     "action": "initialize",                         see `payloads`; in a protocol its own, or "message"
     "messageId": "msg-Zk3J…",                       8 to 128 of A-Z a-z 0-9 . _ : -, fresh
     "sender": "did:wba:buyer.example",
     "recipient": "did:wba:shop.example",
     "replyTo": "msg-…",                             on replies: the messageId that is answered
     "sessionId": "session-…",                       of a protocol's message, and of negotiations about a running session
     "timestamp": "2026-11-20T14:05:00.123Z",        RFC 3339; written in UTC with none or three decimals
     "payload": {…},
     "callContext": {…},                             of a protocol's message in the byte form: the trace and the time of its call
     "signature": "eyJhbGciOiJFZERTQSIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19..…"}        see `signatures`

A message of the agreed protocol has a payload of its own, or `{"data": B64}` (see `transfer`), and at most 1 MiB. All other
messages have at most 64 KiB.

JSON is strict: UTF-8, no name twice, numbers within ±(2^53-1) however they are written, nested at most 32 deep, at most 20,000
values. Written is JCS. Members that are not listed are ignored, and signed.

Signatures of this profile: a JSON Web Signature with detached, unencoded content (RFC 7515 appendix F, RFC 7797).

    signature       = HEADER ".." BASE64URL(Ed25519(signing input))                 no padding, 86 characters after the dots
    HEADER          = eyJhbGciOiJFZERTQSIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19      {"alg":"EdDSA","b64":false,"crit":["b64"]}
    signing input   = HEADER "." JCS(the message without its member `signature`)

JCS is RFC 8785 of the message as it was received, unknown members included; numbers are IEEE doubles, written as ECMAScript
writes them. The header names no key: the key is one of those that the sender's DID document lists under `authentication` now.

The header is a constant, compared as text, and what remains is one Ed25519 operation, done with `cryptography`. joserfc makes
the same bytes (the tests compare them), but reads a signature in several base64 spellings, any other header that means the
same, and content of at most 125 KiB, and warns of `EdDSA` at each use, which RFC 9864 deprecates and the source asks for.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unauthorized
from treaty_consensus.protocol import is_name
from treaty_handler.values import MAX_INTEGER, decode_json
from treaty_io.codes import FlowCode
from treaty_io.identity import Identity

from ..call_metadata import CallMetadata, call_fields, parse_call_metadata
from ..frame import MAX_PAYLOAD
from .payloads import Identifier, Payload, encode_payload, parse_payload

HEADER = "eyJhbGciOiJFZERTQSIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19"
# Each key costs 0.1 ms for each message, and the sender chooses how many its document lists.
MAX_KEYS = 8
"""Keys of one sender that are tried."""

_FORM = re.compile(rf"{HEADER}\.\.([A-Za-z0-9_-]{{86}})")


def signing_input(message: Mapping[str, Any]) -> bytes:
    """Return the bytes to sign for a message, whose numbers are within ±(2^53-1). Raises `rfc8785.CanonicalizationError`."""
    unsigned = {name: value for name, value in message.items() if name != "signature"}
    return HEADER.encode() + b"." + rfc8785.dumps(unsigned)


def sign(content: bytes, identity: Identity) -> str:
    """The signature over a signing input."""
    return f"{HEADER}..{_encode(identity.sign(content))}"


def parse_signature(text: str) -> bytes:
    """The 64 bytes of a signature in its one spelling. Raises `Malformed` (`flow.signature`)."""
    match = _FORM.fullmatch(text)
    signature = base64.urlsafe_b64decode(match[1] + "==") if match else b""
    # One spelling: base64 admits several, and a changed text must not pass as the same message.
    if match is None or _encode(signature) != match[1]:
        raise Malformed(FlowCode.SIGNATURE, "A message's signature is a detached JWS (EdDSA, b64=false) in its one spelling.")
    return signature


def verify(content: bytes, signature: bytes, keys: Iterable[bytes], sender: str) -> bytes:
    """Return the one of the sender's `keys` (raw Ed25519) that signed. CPU-bound: 0.1 ms a key. Raises `Unauthorized`
    (`flow.verification`)."""
    # A DID document may list several keys, as during a rotation; the header names none.
    for key, _ in zip(keys, range(MAX_KEYS), strict=False):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
        except (InvalidSignature, ValueError):
            continue
        return key
    raise Unauthorized(FlowCode.VERIFICATION, f"No authentication key of {sender} made this message's signature.")


def _encode(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


TYPE = "meta-protocol"
# 64 protocols with all details; parsed before the signature is checked, so it is small.
MAX_MESSAGE = 64 * 1024
MAX_APPLICATION = MAX_PAYLOAD

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_Did: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\Adid:[a-z0-9]{1,32}:[!-~]{1,240}\Z")]


@dataclass(frozen=True)
class Foreign:
    """The payload of a protocol's message, as JSON. `transfer` reads and writes it."""

    value: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FlowMessage:
    """One message. `payload` is a `Payload` if and only if `type` is "meta-protocol". `timestamp`: milliseconds since 1970."""

    type: str
    action: str
    message_id: str
    sender: str
    recipient: str
    timestamp: int
    payload: Payload | Foreign
    reply_to: str | None = None
    session_id: str | None = None
    call_context: CallMetadata | None = None


@dataclass(frozen=True)
class SignedMessage:
    """A received message with its signing input, before any verification."""

    message: FlowMessage
    content: bytes
    signature: bytes


class _Message(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    action: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,64}\Z")]
    message_id: Identifier
    sender: _Did
    recipient: _Did
    timestamp: str
    payload: dict[str, Any]
    signature: str = ""
    reply_to: Identifier | None = None
    session_id: Identifier | None = None
    call_context: Any = None


class Claimed(NamedTuple):
    """The sender and the id that a message claims, before anything of it is verified; "" for none."""

    sender: str = ""
    message_id: str = ""


def claimed(message: str | bytes) -> Claimed:
    """Return the claims of a message of this profile, so that an error can name it. Never raises."""
    if not isinstance(message, str) or len(message) > MAX_APPLICATION:
        return Claimed()
    try:
        value = decode_json(message.encode())
    except ValueError:
        return Claimed()
    members = value if isinstance(value, dict) else {}
    return Claimed(_text(members.get("sender"), _Did), _text(members.get("messageId"), Identifier))


def sender_of(message: str | bytes) -> str:
    """The DID that a message of this profile names as its sender, before anything of it is verified; "" for no message."""
    try:
        return parse(message).message.sender if isinstance(message, str) else ""
    except TreatyError:
        return ""


def _text(value: object, form: Any) -> str:
    try:
        text: str = msgspec.convert(value, form)
    except msgspec.ValidationError:
        return ""
    return text


def is_flow(message: str | bytes) -> bool:
    """Whether this first message of a connection begins a negotiation of this profile: JSON text of type "meta-protocol"."""
    # The size goes first: nothing of a stranger is parsed beyond the cap.
    if not isinstance(message, str) or len(message) > MAX_MESSAGE:
        return False
    # Without an escape its type is in its text. Most messages are Hellos, which the Hello profile parses itself.
    if TYPE not in message and "\\" not in message:
        return False
    try:
        value = decode_json(message.encode())
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("type") == TYPE


def parse(text: str, *, limit: int = MAX_APPLICATION) -> SignedMessage:
    """Parse a message of at most `limit` bytes. Raises `TooLarge` (`flow.too-large`), `Malformed` (`flow.*`,
    `protocol.name`) or
    `Refused` (`flow.version`)."""
    if len(text) > limit or len(data := text.encode("utf-8", "surrogatepass")) > limit:
        raise TooLarge(FlowCode.TOO_LARGE, f"A message here has at most {limit} bytes.")
    try:
        value = decode_json(data)
        check_numbers(value)
        envelope = msgspec.convert(value, _Message)
    except (ValueError, msgspec.ValidationError) as error:
        raise Malformed(FlowCode.MESSAGE, f"Not a message of the negotiation flow: {error}.") from error
    # The caller allows more for the messages of a protocol, and the type is known only now.
    if envelope.type == TYPE and len(data) > MAX_MESSAGE:
        raise TooLarge(FlowCode.TOO_LARGE, f"A message of a negotiation has at most {MAX_MESSAGE} bytes.")
    message = FlowMessage(
        type=envelope.type,
        action=envelope.action,
        message_id=envelope.message_id,
        sender=envelope.sender,
        recipient=envelope.recipient,
        timestamp=parse_time(envelope.timestamp),
        payload=_payload(envelope),
        reply_to=envelope.reply_to,
        session_id=envelope.session_id,
        call_context=_call_context(envelope.call_context),
    )
    return SignedMessage(message, signing_input(value), parse_signature(envelope.signature))


def encode(message: FlowMessage, identity: Identity) -> str:
    """Return the signed text. Raises `TooLarge` (`flow.too-large`), or `Malformed` (`flow.offer`) for a value outside JSON."""
    value: dict[str, Any] = {
        "type": message.type,
        "action": message.action,
        "messageId": message.message_id,
        "sender": message.sender,
        "recipient": message.recipient,
        "timestamp": format_time(message.timestamp),
        "payload": message.payload.value if isinstance(message.payload, Foreign) else encode_payload(message.payload),
    }
    if message.reply_to is not None:
        value["replyTo"] = message.reply_to
    if message.session_id is not None:
        value["sessionId"] = message.session_id
    if message.call_context is not None:
        value["callContext"] = call_fields(message.call_context)
    try:
        value["signature"] = sign(signing_input(value), identity)
        data = rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise Malformed(FlowCode.OFFER, f"A parameter cannot be written as JSON: {error}.") from error
    if len(data) > (MAX_MESSAGE if message.type == TYPE else MAX_APPLICATION):
        raise TooLarge(FlowCode.TOO_LARGE, "This message is over its cap.", fix="Offer fewer protocols, or smaller parameters.")
    return data.decode()


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of a time of RFC 3339, with any offset; further decimals are cut. Raises `Malformed`
    (`flow.message`)."""
    match = _TIME.fullmatch(text)
    try:
        moment = datetime.fromisoformat(match[1] + match[3]) - _EPOCH if match else None
    except (ValueError, OverflowError):
        moment = None
    if match is None or moment is None:
        raise Malformed(FlowCode.MESSAGE, f"A time is one of RFC 3339, such as 2026-11-20T14:05:00.123Z, not {text[:40]!r}.")
    return moment // timedelta(milliseconds=1) + int((match[2] or "0").ljust(3, "0")[:3])


def format_time(milliseconds: int) -> str:
    """The time's text: three decimals, or none for a whole second."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    text = moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")
    return text.removesuffix("+00:00") + "Z"


def _call_context(value: object) -> CallMetadata | None:
    """Return the context of a call; None for a member of another form, which may be another profile's."""
    try:
        return None if value is None else parse_call_metadata(value)
    except msgspec.ValidationError:
        return None


def _payload(envelope: _Message) -> Payload | Foreign:
    if envelope.type != TYPE:
        # Without a session the message could belong to any of the connection.
        if not is_name(envelope.type) or envelope.session_id is None:
            raise Malformed(FlowCode.MESSAGE, "A protocol's message has its name as type, and a sessionId.")
        return Foreign(envelope.payload)
    payload = parse_payload(envelope.action, envelope.payload)
    if payload.IS_REPLY and envelope.reply_to is None:
        raise Malformed(FlowCode.MESSAGE, f"{envelope.action} is a reply, and names no message in replyTo.")
    return payload


def check_numbers(value: object) -> None:
    """Check that every number of a JSON value has one form in all languages: 1e16 is an integer in JCS, and as such beyond the
    cap. Raises `ValueError`."""
    if isinstance(value, float) and abs(value) > MAX_INTEGER:
        raise ValueError("a number is beyond 2^53-1")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_numbers(item)
