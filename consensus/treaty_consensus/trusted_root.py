"""Add the rotated keys of a log and its authority to the Sigstore trusted root that its genesis pins.

The genesis pins the root with the first keys. An entry that is made after a rotation is in a checkpoint of the new key, and a
certificate is of the authority in force, so verifiers need those too. The root with them follows from the pinned one and the
rotations alone: every reader computes the same bytes. An authority that another one follows ends with the second `until` of that
rotation.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from . import canonical
from .authority import Authority
from .codes import TrustedRootCode
from .errors import Malformed
from .log.checkpoint import LogKeys
from .log.note import VerifierKey

MAX_TRUSTED_ROOT = 128 * 1024  # with 64 later keys of the log and 16 later authorities; a pinned one has 3 KiB
_ED25519_SPKI = bytes.fromhex("302a300506032b6570032100")
"""RFC 8410: the SubjectPublicKeyInfo of an Ed25519 key, before its 32 bytes."""
_AUTHORITY = ("ctlogs", "certificateAuthorities", "timestampAuthorities")
_LISTS = {"tlogs", *_AUTHORITY}


def with_rotations(root: bytes, keys: LogKeys) -> bytes:
    """Return the pinned trusted root with each later key of the log and each later authority; the same bytes without a rotation.

    Raises `Malformed` or `TooLarge` when the root is not JSON of a trusted root with one authority and its log.
    """
    log_keys = list(dict.fromkeys(term.log for term in keys.terms))
    later = [(term.authority, term.until) for term in keys.terms if term.authority]
    if len(log_keys) == 1 and not later:
        return root
    value = canonical.loads(root, limit=MAX_TRUSTED_ROOT, name="trusted root")
    try:
        first = value["tlogs"][0]
        value["tlogs"] = [first, *(_log(first, _ED25519_SPKI + key.public, log_id(key)) for key in log_keys[1:])]
        if later:
            _add_authorities(value, later)
    except (LookupError, TypeError) as error:
        raise Malformed(TrustedRootCode.DIGEST, "The trusted root that the genesis pins is not one of a registry.") from error
    return canonical.dumps(value)


def without_rotations(root: bytes) -> bytes:
    """Return the bytes that the genesis pins, of a trusted root with later keys and authorities. Raises as `with_rotations`."""
    value = canonical.loads(root, limit=MAX_TRUSTED_ROOT, name="trusted root")
    try:
        for name in _LISTS & value.keys():
            value[name] = value[name][:1]
            # The root of one authority has no ends: verifiers also check old signatures.
            for entry in value[name]:
                entry.get("publicKey", entry).get("validFor", {}).pop("end", None)
    except (LookupError, TypeError, AttributeError) as error:
        raise Malformed(TrustedRootCode.DIGEST, "This is not the trusted root of a registry.") from error
    return canonical.dumps(value)


def log_id(key: VerifierKey) -> bytes:
    """Return the log's id in Rekor v2: the untruncated C2SP signed-note key id of its Ed25519 key, 32 bytes."""
    # C2SP signed-note: name, newline, type 0x01, key. A note truncates it to four bytes, Rekor v2 does not.
    return sha256(f"{key.name}\n".encode() + b"\x01" + key.public).digest()


def _add_authorities(value: dict[str, Any], later: list[tuple[Authority, int]]) -> None:
    ctlog, ca, tsa = (value[name][0] for name in _AUTHORITY)
    # The second of `until` counts: timestamps have whole seconds, and a rotation without an overlap is logged within one.
    ends = [_date_time(until + 1) for _, until in later]
    value["ctlogs"], value["certificateAuthorities"], value["timestampAuthorities"] = [ctlog], [ca], [tsa]
    for authority, _ in later:
        key = canonical.b64decode(authority.ct_key, limit=MAX_TRUSTED_ROOT)
        value["ctlogs"].append(_log(ctlog, key, sha256(key).digest()))
        value["certificateAuthorities"].append(_chain(ca, authority.ca))
        value["timestampAuthorities"].append(_chain(tsa, *authority.tsa))
    for name in _AUTHORITY:
        for entry, end in zip(value[name], ends, strict=False):  # the newest has no end
            holder = entry.get("publicKey", entry)
            holder["validFor"] = {**holder["validFor"], "end": end}


def _date_time(seconds: int) -> str:
    """Return POSIX seconds as RFC 3339 has them. The rule of certificates keeps them below the year 10000."""
    days, rest = divmod(seconds, 24 * 3600)
    # Years that begin on the first of March end with the leap day. 719,468 days are from such a year 0 to 1970.
    era, day = divmod(days + 719_468, 146_097)
    of_era = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * of_era + of_era // 4 - of_era // 100
    month = (5 * day + 2) // 153
    year = 400 * era + of_era + (month >= 10)
    date = f"{year:04}-{(month + 2) % 12 + 1:02}-{day - (153 * month + 2) // 5 + 1:02}"
    return f"{date}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"


def _log(first: dict[str, Any], key: bytes, identifier: bytes) -> dict[str, Any]:
    return {
        **first,
        "publicKey": {**first["publicKey"], "rawBytes": canonical.b64encode(key)},
        "logId": {"keyId": canonical.b64encode(identifier)},
    }


def _chain(first: dict[str, Any], *certificates: str) -> dict[str, Any]:
    return {**first, "certChain": {"certificates": [{"rawBytes": each} for each in certificates]}}
