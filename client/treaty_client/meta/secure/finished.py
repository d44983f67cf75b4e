"""`finished`: the first encrypted message of each side, by which it shows that it derived the same keys.

    {"version": "1.0", "type": "finished", "timestamp": "…", "messageId": "…", "sessionId": "…",
     "sourceDid": "did:…", "destinationDid": "did:…",          of this message's sender and receiver
     "verifyData": {"iv": …, "tag": …, "ciphertext": …}}       see `sealing`

Encrypted, under the sender's key, is the JSON

    {"secretKeyId": "…16 hexadecimal digits", "transcript": "…64 hexadecimal digits"}

`secretKeyId` is the key id of the schedule. `transcript` is SHA-256(JCS([sourceHello, destinationHello, E])) over the exact
texts of both Hellos, as strings, and E, the `finished` itself without `verifyData`: whoever was in between and changed anything
is found out. Version 1.0 of the profile has no transcript.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unauthorized

from ..hello import HELLO_VERSION
from .hello import timestamp
from .sealing import Sealed, seal, unseal

MAX_FINISHED = 4096
NUMBER = 0
"""Its number under the sender's key."""


class _Finished(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    type: str
    session_id: str
    source_did: str
    destination_did: str
    verify_data: Sealed


class _Secret(msgspec.Struct, frozen=True, rename="camel"):
    secret_key_id: str
    transcript: str | None = None


@dataclass(frozen=True)
class Handshake:
    """What both `finished` of a session speak of: the texts of the Hellos, the keys' public name, and whether it is a version
    with a transcript."""

    session_id: str
    source_text: str
    destination_text: str
    key_id: str
    bound: bool

    def finish(self, key: bytes, sender: str, receiver: str, message_id: str, now: float) -> str:
        """This side's `finished`."""
        envelope: dict[str, Any] = {
            "version": HELLO_VERSION,
            "type": "finished",
            "timestamp": timestamp(now),
            "messageId": message_id,
            "sessionId": self.session_id,
            "sourceDid": sender,
            "destinationDid": receiver,
        }
        secret = {"secretKeyId": self.key_id, "transcript": self._transcript(envelope)}
        sealed = seal(key, NUMBER, canonical.dumps(secret), None)
        return canonical.dumps(envelope | {"verifyData": sealed}).decode()

    def check(self, text: str, key: bytes, sender: str, receiver: str) -> str:
        """Check the peer's `finished`, and return its iv, which is spent. Raises `Malformed`, `TooLarge`, `Unauthorized`
        (`secure.finished`, `secure.tampered`)."""
        value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_FINISHED, what="finished message")
        try:
            message = msgspec.convert(value, _Finished)
        except msgspec.ValidationError as error:
            raise Malformed("secure.finished", f"A finished message is due here: {error}.") from error
        said = (message.version, message.type, message.session_id, message.source_did, message.destination_did)
        if said != (HELLO_VERSION, "finished", self.session_id, sender, receiver):
            raise Malformed("secure.finished", "The finished message of this session is due here.")
        plaintext = unseal(key, message.verify_data, None, limit=MAX_FINISHED)
        try:
            secret = msgspec.convert(canonical.parse_json(plaintext, limit=MAX_FINISHED), _Secret)
        except msgspec.ValidationError as error:
            raise Malformed("secure.finished", f"What a finished message encrypts is of another form: {error}.") from error
        envelope = {name: item for name, item in value.items() if name != "verifyData"}
        expected = self._transcript(envelope) if self.bound or secret.transcript is not None else None
        if (secret.secret_key_id, secret.transcript) != (self.key_id, expected):
            raise Unauthorized("secure.finished", "The other side did not see the same Hellos as this one.")
        return message.verify_data.iv

    def _transcript(self, envelope: dict[str, Any]) -> str:
        return canonical.hex_digest(canonical.dumps([self.source_text, self.destination_text, envelope]))
