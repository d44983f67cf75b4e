"""Encrypt and decrypt records, which carry all messages after `finished`.

docs/specification/e2ee-profile.md, sections 4 and 5, has the format. For example, the first record of a sender:

    {"version": "1.0", "type": "message", "timestamp": "…", "messageId": "0000000000000001", "sourceDid": "did:…",
     "destinationDid": "did:…", "secretKeyId": "…", "encryptedData": {"iv": …, "tag": …, "ciphertext": …}}

Version 1.1 authenticates all members of a record, and its iv is the number that the reader expects. So a changed, missing,
repeated or moved record is refused. Version 1.0 authenticates the ciphertext only and accepts each iv once, so an attacker can
drop and reorder records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Refused, TooLarge, Unauthorized, Unavailable
from treaty_io.codes import FrameCode, SecureCode, SessionCode

from ..frame import MAX_FRAME
from ..hello_profile.hello import HELLO_VERSION
from .hello import timestamp
from .key_schedule import Sealed, iv_of, seal, unseal

# So that a part in base64, inside JSON, is within one message of the transport.
MAX_PART = 640 * 1024
MAX_RECORD = MAX_FRAME
MAX_VALUES = 1_024
"""Values of a record, ignored members included."""
MAX_RECORDS = 2**18
"""Records under one key. Together they are less than 2^34.5 blocks, the safe limit of AES-GCM (computed as in RFC 8446 §5.5)."""
MAX_REASON = 120


class ReceivedMessage(NamedTuple):
    """A complete message of the peer."""

    content: str | bytes


class Close(NamedTuple):
    """The peer closes the session. `reason`: a machine code, or ""."""

    reason: str


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    type: str
    source_did: str
    destination_did: str
    secret_key_id: str
    encrypted_data: Sealed
    more: bool = False
    text: bool = False


@dataclass(frozen=True)
class Direction:
    """One direction of a session: its key, the DIDs of sender and receiver. `bound`: version 1.1, with authenticated order."""

    key: bytes = field(repr=False)
    key_id: str
    sender: str
    receiver: str
    bound: bool


@dataclass
class Sealer:
    """Encrypt this side's records."""

    direction: Direction
    _number: int = 0

    def seal(self, content: str | bytes, now: float) -> list[str]:
        """Encrypt a message as records. `now`: Unix seconds.

        Raises `TooLarge` (`frame.too-large`), `Unavailable` (`session.closed`), and in version 1.0 `Refused`
        (`secure.record`) for a text message.
        """
        data = content.encode() if isinstance(content, str) else content
        limit = MAX_FRAME if self.direction.bound else MAX_PART
        if len(data) > limit:
            raise TooLarge(FrameCode.TOO_LARGE, f"An encrypted message has at most {limit} bytes, not {len(data)}.")
        flags = {"text": True} if isinstance(content, str) else {}
        # Version 1.0 has no flag that tells text from a frame.
        if flags and not self.direction.bound:
            raise Refused(SecureCode.RECORD, "Version 1.0 of the E2EE profile carries no text messages.")
        # At least one record, so that an empty message arrives, too.
        starts = range(0, max(len(data), 1), MAX_PART)
        return [
            self._record("message", data[start : start + MAX_PART], flags | ({"more": True} if start != starts[-1] else {}), now)
            for start in starts
        ]

    def close(self, reason: str, now: float) -> list[str]:
        """Return this side's last record; nothing in version 1.0."""
        if not self.direction.bound:
            return []
        return [self._record("close", reason.encode("ascii", "replace")[:MAX_REASON], {}, now)]

    def _record(self, type: str, plaintext: bytes, flags: dict[str, bool], now: float) -> str:
        self._number += 1
        if self._number > MAX_RECORDS:
            raise expired()
        way = self.direction
        envelope: dict[str, Any] = {
            "version": HELLO_VERSION,
            "type": type,
            "timestamp": timestamp(now),
            "messageId": f"{self._number:016x}",
            "sourceDid": way.sender,
            "destinationDid": way.receiver,
            "secretKeyId": way.key_id,
            **flags,
        }
        sealed = seal(way.key, self._number, plaintext, canonical.dumps(envelope) if way.bound else None)
        return canonical.dumps(envelope | {"encryptedData": sealed}).decode()


@dataclass
class Opener:
    """Decrypt the peer's records in the order of their arrival. `spent`: the ivs that its earlier messages used."""

    direction: Direction
    spent: set[str]
    _number: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _is_text: bool = False

    def open(self, text: str) -> ReceivedMessage | Close | None:
        """Decrypt a record. Return the completed message, or None if the message continues in the next record.

        Do not call it again after an error.

        Raises `TooLarge`, `Malformed` (`secure.record`, `canonical.*`), `Unauthorized` (`secure.record`,
        `secure.replayed`), `Unavailable` (`session.closed`).
        """
        value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_RECORD, name="record", values=MAX_VALUES)
        try:
            record = msgspec.convert(value, _Record)
        except msgspec.ValidationError as error:
            raise Malformed(SecureCode.RECORD, f"The message is not a record: {error}.") from error
        way = self.direction
        # Before decryption: a record reflected to its sender has the DIDs the wrong way round.
        stated = (record.version, record.source_did, record.destination_did, record.secret_key_id)
        if stated != (HELLO_VERSION, way.sender, way.receiver, way.key_id) or record.type not in ("message", "close"):
            raise Malformed(SecureCode.RECORD, "The record does not belong to this session.")
        self._number += 1
        if self._number > MAX_RECORDS:
            raise expired()
        # Version 1.0 has no order that could be checked.
        if not way.bound:
            return self._open_unbound(record)
        # The number is counted here and not read: an attacker can neither move nor leave out a record.
        if record.encrypted_data.iv != canonical.b64encode(iv_of(self._number)):
            raise Unauthorized(SecureCode.RECORD, "A record is missing, repeated or moved.")
        envelope = {name: item for name, item in value.items() if name != "encryptedData"}
        plaintext = unseal(way.key, record.encrypted_data, canonical.dumps(envelope), limit=MAX_PART)
        if record.type == "close":
            return Close(plaintext.decode("ascii", "replace")[:MAX_REASON])
        return self._join(record, plaintext)

    def _join(self, record: _Record, part: bytes) -> ReceivedMessage | None:
        if self._parts and record.text != self._is_text:
            raise Malformed(SecureCode.RECORD, "The records of one message must be all text or all binary.")
        self._is_text = record.text
        self._parts.append(part)
        # Bounded while it grows: the peer says only with the last part that it is the last.
        if sum(map(len, self._parts)) > MAX_FRAME:
            raise TooLarge(FrameCode.TOO_LARGE, f"A message has at most {MAX_FRAME} bytes.")
        if record.more:
            # A message has one division into parts, so its cost is known from its size.
            if len(part) != MAX_PART:
                raise Malformed(SecureCode.RECORD, "Every record of a message except the last must be full.")
            return None
        content = b"".join(self._parts)
        self._parts.clear()
        if not record.text:
            return ReceivedMessage(content)
        try:
            return ReceivedMessage(content.decode())
        except UnicodeDecodeError as error:
            raise Malformed(SecureCode.RECORD, "A text message must be UTF-8.") from error

    def _open_unbound(self, record: _Record) -> ReceivedMessage:
        if record.type != "message" or record.more or record.text:
            raise Malformed(SecureCode.RECORD, "Version 1.0 of the E2EE profile has no such record.")
        iv = record.encrypted_data.iv
        if iv in self.spent:
            raise Unauthorized(SecureCode.REPLAYED, "A record was repeated.")
        plaintext = unseal(self.direction.key, record.encrypted_data, None, limit=MAX_PART)
        # Only after decryption, so that forged records cannot fill the set. `MAX_RECORDS` bounds it.
        self.spent.add(iv)
        return ReceivedMessage(plaintext)


def expired() -> Unavailable:
    """Return the error for a session whose keys have expired."""
    return Unavailable(SessionCode.CLOSED, "The keys of this session are used up.", fix="Connect again.")
