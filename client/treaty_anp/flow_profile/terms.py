"""Define the parameters that the session itself keeps. All other parameters belong to the handlers, which get them in `Opened`.

    maxMessageSize      bytes of one handler's message in either direction
    responseTimeout     milliseconds that a call waits
    chunkSize           bytes of one message of the wire, at least 512; a longer message is cut (`transfer`)
    compressionFormat   "gzip", "deflate" or "none" (`transfer`)
    encryptionLevel     "AES-128-GCM", the cipher of the encrypted connection, or "none"

Only values that happen may be agreed. So an offer with another value is refused when it is registered, and an encryption is
agreed only on an encrypted connection. The peer cannot remove it: a rule for `encryptionLevel` is required unless "none" is among
its values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from treaty_consensus.errors import Malformed
from treaty_io.codes import FlowCode

from .parameters import Choice, Json, Range, Rule, Rules, Unsupported

CHUNK_SIZE, COMPRESSION, ENCRYPTION = "chunkSize", "compressionFormat", "encryptionLevel"
MIN_CHUNK = 512
"""Bytes. Each chunk costs a signature and an envelope of half a kilobyte, so a peer must not be able to ask for tiny ones."""
NONE = "none"
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
COMPRESSIONS = ("gzip", "deflate", NONE)
CIPHER = "AES-128-GCM"
"""The one cipher of the E2EE profile."""


@dataclass(frozen=True)
class Unkept:
    """The rule of a parameter that this connection cannot keep: no value satisfies it, and it may not be left out."""

    name: str
    required: bool = True

    @property
    def preferred(self) -> Json:
        """Raise `Unsupported`: there is no value to ask for."""
        raise Unsupported(self.name, None, [])

    @property
    def supported(self) -> Json:
        """The values to name to a peer: none."""
        return []

    def clamp(self, name: str, value: Json) -> Json:
        """Raise `Unsupported`."""
        raise Unsupported(name, value, [])


@dataclass(frozen=True)
class RoleName:
    """The rule of the initiator's role: any name that a manifest may give to a role."""

    required: bool = False

    @property
    def preferred(self) -> Json:
        """Raise `Unsupported`: only the initiator names its role."""
        raise Unsupported("role", None, [])

    @property
    def supported(self) -> Json:
        """The values to name to a peer: the manifest has them."""
        return []

    def clamp(self, name: str, value: Json) -> Json:
        """Return the role. Raises `Unsupported`."""
        if not isinstance(value, str) or not _ROLE.fullmatch(value):
            raise Unsupported(name, value, [])
        return value


def check_kept(rules: Rules) -> None:
    """Check that a session can keep all values of an owner's rules. Raises `Malformed` (`flow.offer`)."""
    for name, (holds, fix) in _KEPT.items():
        rule = rules.get(name)
        if rule is not None and not holds(rule):
            raise Malformed(FlowCode.OFFER, f"No session keeps all values of the rule for {name}.", fix=fix)


def kept(rules: Rules, *, encrypted: bool) -> Rules:
    """Return the rules as far as a connection can keep them."""
    rule = rules.get(ENCRYPTION)
    if not isinstance(rule, Choice):
        return rules
    # Without this, a peer that drops the parameter would remove the encryption without a word.
    rule = replace(rule, required=rule.required or NONE not in rule.values)
    # An agreed level that the connection does not have would be a false promise to the owner.
    values = [value for value in rule.values if encrypted or value == NONE]
    return {**rules, ENCRYPTION: replace(rule, values=values) if values else Unkept(ENCRYPTION)}


def _is_chunk_size(rule: Rule) -> bool:
    values = (rule.low, rule.high) if isinstance(rule, Range) else rule.values if isinstance(rule, Choice) else ()
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= MIN_CHUNK for value in values)


def _is_of(allowed: tuple[str, ...]) -> Callable[[Rule], bool]:
    return lambda rule: isinstance(rule, Choice) and all(value in allowed for value in rule.values)


_KEPT: Mapping[str, tuple[Callable[[Rule], bool], str]] = {
    CHUNK_SIZE: (_is_chunk_size, f"Use whole numbers of at least {MIN_CHUNK}."),
    COMPRESSION: (_is_of(COMPRESSIONS), f"Use a Choice of {', '.join(COMPRESSIONS)}."),
    ENCRYPTION: (_is_of((CIPHER, NONE)), f"Use a Choice of {CIPHER} and {NONE}."),
}
