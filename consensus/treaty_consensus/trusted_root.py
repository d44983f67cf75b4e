"""Add the rotated keys of a log to the Sigstore trusted root that its genesis pins.

The genesis pins the root with the log's first key. An entry that is made after a rotation is in a checkpoint of the new key, so
verifiers need that key too. It follows from the root and the rotations alone: every reader computes the same bytes.
"""

from __future__ import annotations

from hashlib import sha256

from . import canonical
from .log.checkpoint import LogKeys
from .log.note import VerifierKey

MAX_TRUSTED_ROOT = 64 * 1024
_ED25519_SPKI = bytes.fromhex("302a300506032b6570032100")
"""RFC 8410: the SubjectPublicKeyInfo of an Ed25519 key, before its 32 bytes."""


def with_log_keys(root: bytes, keys: LogKeys) -> bytes:
    """Return the pinned trusted root with each later key of the log; the same bytes without a rotation.

    Raises `Malformed` or `TooLarge` when the root is not JSON of a trusted root with a log.
    """
    log_keys = list(dict.fromkeys(term.log for term in keys.terms))
    if len(log_keys) == 1:
        return root
    value = canonical.loads(root, limit=MAX_TRUSTED_ROOT, name="trusted root")
    first = value["tlogs"][0]
    later = [
        {
            **first,
            "publicKey": {**first["publicKey"], "rawBytes": canonical.b64encode(_ED25519_SPKI + key.public)},
            "logId": {"keyId": canonical.b64encode(log_id(key))},
        }
        for key in log_keys[1:]
    ]
    return canonical.dumps({**value, "tlogs": [first, *later]})


def without_rotations(root: bytes) -> bytes:
    """Return the bytes that the genesis pins, of a trusted root with later keys of the log. Raises as `with_log_keys`."""
    value = canonical.loads(root, limit=MAX_TRUSTED_ROOT, name="trusted root")
    return canonical.dumps({**value, "tlogs": value["tlogs"][:1]})


def log_id(key: VerifierKey) -> bytes:
    """Return the log's id in Rekor v2: the untruncated C2SP signed-note key id of its Ed25519 key, 32 bytes."""
    # C2SP signed-note: name, newline, type 0x01, key. A note truncates it to four bytes, Rekor v2 does not.
    return sha256(f"{key.name}\n".encode() + b"\x01" + key.public).digest()
