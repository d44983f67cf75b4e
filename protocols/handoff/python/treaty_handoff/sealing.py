"""Encrypt stored messages: AES-256 in Galois/counter mode (NIST SP 800-38D).

Sealed data are the version 1, 4 bytes that tell the key (the start of its SHA-256), 12 random bytes, and the ciphertext with its
tag. The place where the data are stored is authenticated, too: data that were moved to another place do not open.
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from treaty_consensus.errors import Malformed, Untrusted

from .codes import HandoffCode

_VERSION = b"\x01"
_KEY, _NAME, _NONCE = 32, 4, 12


class Seal:
    """Seals with the first key, and opens with all: after a change of the key, the former one stays until nothing needs it."""

    def __init__(self, key: bytes, *older_keys: bytes) -> None:
        """Use keys of 32 bytes. Raises `Malformed`."""
        if any(len(each) != _KEY for each in (key, *older_keys)):
            raise Malformed(HandoffCode.SETTINGS, f"A key has {_KEY} bytes.", fix="Make one: head -c 32 /dev/urandom > FILE")
        self._ciphers = {hashlib.sha256(each).digest()[:_NAME]: AESGCM(each) for each in (key, *older_keys)}

    def close(self, data: bytes, place: str) -> bytes:
        """Return the sealed data. `place`: where they are stored."""
        name, cipher = next(iter(self._ciphers.items()))
        # 96 random bits: safe for 2^32 messages of one key, NIST SP 800-38D §8.3.
        nonce = os.urandom(_NONCE)
        return _VERSION + name + nonce + cipher.encrypt(nonce, data, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """Return the data. Raises `Untrusted` if they were changed, moved, or sealed with an unknown key."""
        name, nonce = sealed[1 : 1 + _NAME], sealed[1 + _NAME : 1 + _NAME + _NONCE]
        cipher = self._ciphers.get(name)
        if sealed[:1] != _VERSION or cipher is None or len(nonce) != _NONCE:
            raise Untrusted(HandoffCode.SEALED, "The data are not sealed with a key that is known here.")
        try:
            return cipher.decrypt(nonce, sealed[1 + _NAME + _NONCE :], place.encode())
        except InvalidTag as error:
            raise Untrusted(HandoffCode.SEALED, "The sealed data were changed or moved.") from error
