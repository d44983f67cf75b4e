"""Records: what carries every message after `finished`, JSON in a text message of at most `MAX_RECORD` bytes.

    {"version": "1.0", "type": "message", "timestamp": "…", "messageId": "…16 hexadecimal digits: its number",
     "sourceDid": "did:…", "destinationDid": "did:…",          of this message's sender and receiver
     "secretKeyId": "…",                                       the keys' public name
     "more": true,                                             only where the message goes on in the next record
     "text": true,                                             only in a record of a text message
     "encryptedData": {"iv": …, "tag": …, "ciphertext": …}}    see `sealing`

Encrypted is a frame (`meta.frame`), or a part of at most 640 KiB of one. The type `close` is the sender's last record;
encrypted is its reason for closing, or nothing.

Version 1.1: everything but `encryptedData`, as JCS, is authenticated with it, and the iv is the record's number (1, 2, 3, …),
which the reader expects. So a record that was changed, left out, repeated or moved is refused, and so is a connection cut
without `close`.

Version 1.0: nothing but the ciphertext is authenticated, and any iv is good once. A message is one record, and there is neither
`close` nor text. Whoever is in between can leave records out and change their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Refused, TooLarge, Unauthorized, Unavailable

from ..frame import MAX_FRAME
from ..hello import HELLO_VERSION
from .hello import timestamp
from .sealing import Sealed, iv_of, seal, unseal

MAX_PART = 640 * 1024
MAX_RECORD = MAX_FRAME
MAX_VALUES = 1_024
"""Values of a record, those included whose names are ignored."""
MAX_RECORDS = 2**18
"""Records under one key: together less than the 2^34.5 blocks up to which AES-GCM is safe (as RFC 8446 §5.5 reckons)."""
MAX_REASON = 120


class Message(NamedTuple):
    """A whole message of the peer."""

    content: str | bytes


class Close(NamedTuple):
    """The peer closes, for this reason or ""."""

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
    """One direction of a session: its key, the DIDs of sender and receiver, and whether its records are bound to their place."""

    key: bytes = field(repr=False)
    key_id: str
    sender: str
    receiver: str
    bound: bool


@dataclass
class Sealer:
    """This side's records."""

    direction: Direction
    _number: int = 0

    def seal(self, content: str | bytes, now: float) -> list[str]:
        """The records of a message. Raises `TooLarge` (`frame.too-large`), `Unavailable` (`secure.expired`), and in version 1.0
        `Refused` (`secure.text`)."""
        data = content.encode() if isinstance(content, str) else content
        limit = MAX_FRAME if self.direction.bound else MAX_PART
        if len(data) > limit:
            raise TooLarge("frame.too-large", f"A message here has at most {limit} bytes, not {len(data)}.")
        flags = {"text": True} if isinstance(content, str) else {}
        if flags and not self.direction.bound:
            raise Refused("secure.text", "Version 1.0 of the E2EE profile carries no text messages.")
        starts = range(0, max(len(data), 1), MAX_PART)
        return [
            self._record("message", data[start : start + MAX_PART], flags | ({"more": True} if start != starts[-1] else {}), now)
            for start in starts
        ]

    def close(self, reason: str, now: float) -> list[str]:
        """This side's last record, if the version has one."""
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
    """The peer's records, in the order in which they come. `spent`: the ivs that its other messages used."""

    direction: Direction
    spent: set[str]
    _number: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _is_text: bool = False

    def open(self, text: str) -> Message | Close | None:
        """What a record completes, or None when its message goes on. Nothing is to be opened after something was refused.

        Raises `TooLarge`, `Malformed` (`secure.record`, `canonical.*`), `Unauthorized` (`secure.order`, `secure.replayed`,
        `secure.tampered`), `Unavailable` (`secure.expired`).
        """
        value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_RECORD, what="record", values=MAX_VALUES)
        try:
            record = msgspec.convert(value, _Record)
        except msgspec.ValidationError as error:
            raise Malformed("secure.record", f"A record is due here: {error}.") from error
        way = self.direction
        said = (record.version, record.source_did, record.destination_did, record.secret_key_id)
        if said != (HELLO_VERSION, way.sender, way.receiver, way.key_id) or record.type not in ("message", "close"):
            raise Malformed("secure.record", "A record of this session is due here.")
        self._number += 1
        if self._number > MAX_RECORDS:
            raise expired()
        if not way.bound:
            return self._open_unbound(record)
        if record.encrypted_data.iv != canonical.b64encode(iv_of(self._number)):
            raise Unauthorized("secure.order", "A record was left out, repeated or moved.")
        envelope = {name: item for name, item in value.items() if name != "encryptedData"}
        plaintext = unseal(way.key, record.encrypted_data, canonical.dumps(envelope), limit=MAX_PART)
        if record.type == "close":
            return Close(plaintext.decode("ascii", "replace")[:MAX_REASON])
        return self._join(record, plaintext)

    def _join(self, record: _Record, part: bytes) -> Message | None:
        if self._parts and record.text != self._is_text:
            raise Malformed("secure.record", "A message begins as text and goes on as binary, or the other way round.")
        self._is_text = record.text
        self._parts.append(part)
        if sum(map(len, self._parts)) > MAX_FRAME:
            raise TooLarge("frame.too-large", f"A message has at most {MAX_FRAME} bytes.")
        if record.more:
            if len(part) != MAX_PART:
                raise Malformed("secure.record", "Only the last record of a message is not full.")
            return None
        content = b"".join(self._parts)
        self._parts.clear()
        if not record.text:
            return Message(content)
        try:
            return Message(content.decode())
        except UnicodeDecodeError as error:
            raise Malformed("secure.record", "A text message is UTF-8.") from error

    def _open_unbound(self, record: _Record) -> Message:
        if record.type != "message" or record.more or record.text:
            raise Malformed("secure.record", "Version 1.0 of the E2EE profile has no such record.")
        iv = record.encrypted_data.iv
        if iv in self.spent:
            raise Unauthorized("secure.replayed", "A record was repeated.")
        plaintext = unseal(self.direction.key, record.encrypted_data, None, limit=MAX_PART)
        self.spent.add(iv)
        return Message(plaintext)


def expired() -> Unavailable:
    """What is raised when the keys of a session are used up."""
    return Unavailable("secure.expired", "The keys of this session are used up.", fix="Connect again.")
