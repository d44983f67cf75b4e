"""Write and check `finished`, the first encrypted message of each side. It proves that both sides derived the same keys.

docs/specification/e2ee-profile.md, section 3, has the format. For example:

    {"version": "1.0", "type": "finished", "timestamp": "…", "messageId": "…", "sessionId": "…",
     "sourceDid": "did:…", "destinationDid": "did:…", "verifyData": {"iv": …, "tag": …, "ciphertext": …}}

The encrypted transcript covers the exact texts of both Hellos, so every change by an attacker is detected. Version 1.0 of the
profile has no transcript.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_io.codes import SecureCode

from ..hello_profile.hello import HELLO_VERSION
from .hello import timestamp
from .key_schedule import Sealed, seal, unseal

# A few times its size, so that a stranger cannot make this side parse or decrypt more.
MAX_FINISHED = 4096
NUMBER = 0
"""The number of `finished` under the sender's key."""


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
    """The facts that both `finished` of a session confirm.

    `source_text`, `destination_text`: the texts of the Hellos. `key_id`: the public name of the keys. `bound`: version 1.1, with
    a transcript.
    """

    session_id: str
    source_text: str
    destination_text: str
    key_id: str
    bound: bool

    def finish(self, key: bytes, sender: str, receiver: str, message_id: str, now: float) -> str:
        """Return this side's `finished`. `now`: Unix seconds."""
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
        # No additional data: the SDK has none here. The encrypted transcript covers the envelope instead.
        sealed = seal(key, NUMBER, canonical.dumps(secret), None)
        return canonical.dumps(envelope | {"verifyData": sealed}).decode()

    def check(self, text: str, key: bytes, sender: str, receiver: str) -> str:
        """Check the peer's `finished`. Return its iv, which no record may use again.

        Raises `Malformed`, `TooLarge`, `Unauthorized` (`secure.hello`, `secure.record`).
        """
        value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_FINISHED, name="finished message")
        try:
            message = msgspec.convert(value, _Finished)
        except msgspec.ValidationError as error:
            raise Malformed(SecureCode.HELLO, f"The message is not a finished message: {error}.") from error
        stated = (message.version, message.type, message.session_id, message.source_did, message.destination_did)
        # Compared before decryption: a `finished` reflected by an attacker names sender and receiver the wrong way round.
        if stated != (HELLO_VERSION, "finished", self.session_id, sender, receiver):
            raise Malformed(SecureCode.HELLO, "The finished message does not belong to this session.")
        plaintext = unseal(key, message.verify_data, None, limit=MAX_FINISHED)
        try:
            secret = msgspec.convert(canonical.parse_json(plaintext, limit=MAX_FINISHED), _Secret)
        except msgspec.ValidationError as error:
            raise Malformed(
                SecureCode.HELLO, f"The encrypted content of the finished message has another form: {error}."
            ) from error
        envelope = {name: item for name, item in value.items() if name != "verifyData"}
        # A peer of version 1.0 may send a transcript, too; then it must be right.
        expected = self._transcript(envelope) if self.bound or secret.transcript is not None else None
        if (secret.secret_key_id, secret.transcript) != (self.key_id, expected):
            raise Unauthorized(SecureCode.HELLO, "The other side did not see the same Hellos as this one.")
        return message.verify_data.iv

    def _transcript(self, envelope: dict[str, Any]) -> str:
        # The exact texts, not parsed values: two parsers may read one text differently.
        return canonical.hex_digest(canonical.dumps([self.source_text, self.destination_text, envelope]))
