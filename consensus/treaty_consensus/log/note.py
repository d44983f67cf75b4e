"""C2SP signed notes: a text, and the signatures of named keys over it.

    note       = text LF signature-line+             the text itself ends in LF; the last empty line divides
    signature-line = "—" SP name SP base64(key-id || signature) LF        U+2014, padded standard base64
    key-id     = SHA-256(name || LF || type || public key)[:4]
    type 0x01    Ed25519 (RFC 8032) over the text; signature is 64 bytes
    type 0x04    cosignature/v1 (C2SP tlog-cosignature): signature is an 8-byte big-endian POSIX time in seconds,
                 at most 2**63 - 1, and 64 bytes of Ed25519 over "cosignature/v1" LF "time " time LF text
    vkey       = name "+" hex(key-id) "+" base64(type || 32-byte public key)
    skey       = "PRIVATE+KEY+" name "+" hex(key-id) "+" base64(type || 32-byte seed)

A note is UTF-8 without control characters below U+0020 other than LF. A name is not empty and has neither Unicode
spaces nor "+". Every signature line has that form; those of unknown keys are ignored all the same. Stricter than
the specification, as one note should have one reading: a signature by a known key that does not verify, or a
second one by the same key, fails the whole note, and base64 has one spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ..canonical import b64decode, b64encode, sha256
from ..errors import Malformed, TooLarge, TreatyError, Untrusted

MAX_NOTE_BYTES = 256 * 1024  # twice what sixteen post-quantum signatures take, the least a verifier must read
MAX_SIGNATURES = 100
MAX_TIME = 2**63 - 1

_MAX_KEY_TEXT = 1024
_KEY_ID_BYTES = 4
_ED25519_BYTES = 32
_SIGNATURE_BYTES = 64
_TIME_BYTES = 8
_LINE_START = "— "
_UNCLEAN = re.compile("[\x00-\x09\x0b-\x1f\ud800-\udfff]")  # control characters but LF, lone surrogates


class KeyType(IntEnum):
    """The signature types of C2SP signed-note that are understood here."""

    ED25519 = 0x01
    COSIGNATURE = 0x04


@dataclass(frozen=True)
class VerifierKey:
    """The public key behind a name, for one type of signature. Raises `Malformed` when the parts are impossible."""

    name: str
    type: KeyType
    public: bytes

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.public) != _ED25519_BYTES:
            raise _bad_key()

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Read a vkey. Raises `Malformed`, also when the key ID is not that of name and key."""
        if len(text) > _MAX_KEY_TEXT or text.count("+") < 2:
            raise _bad_key()
        name, _, encoded = text.split("+", 2)
        key = cls(name, *_parse_key_bytes(encoded))
        if str(key) != text:
            raise _bad_key()
        return key

    def __str__(self) -> str:
        """The vkey."""
        return f"{self.name}+{self.id.hex()}+{b64encode(bytes([self.type]) + self.public)}"

    @cached_property
    def id(self) -> bytes:
        """The 4-byte key ID."""
        return sha256(self.name.encode() + b"\n" + bytes([self.type]) + self.public)[:_KEY_ID_BYTES]

    def verify(self, text: bytes, signature: bytes) -> int | None:
        """Check a signature (without key ID) over a note's text; return its time in seconds if its type has one.

        Raises `Untrusted("note.signature")`.
        """
        time = None
        if self.type == KeyType.COSIGNATURE:
            time = int.from_bytes(signature[:_TIME_BYTES], "big")
            text, signature = _cosigned(text, time), signature[_TIME_BYTES:]
        if len(signature) != _SIGNATURE_BYTES or (time is not None and time > MAX_TIME):
            raise _bad_signature(f"the signature of {self.name} has the wrong form")
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text)
        except InvalidSignature as error:
            raise _bad_signature(f"the signature of {self.name} does not verify") from error
        return time


@dataclass(frozen=True)
class SignerKey:
    """A key that signs notes under a name: an Ed25519 seed of 32 secret bytes, for one type of signature.

    Raises `Malformed` when the parts are impossible; no error ever quotes the seed.
    """

    name: str
    type: KeyType
    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.seed) != _ED25519_BYTES:
            raise _bad_key()

    @classmethod
    def parse(cls, text: str) -> SignerKey:
        """Read an skey. Raises `Malformed`, also when the key ID is not that of name and key."""
        if len(text) > _MAX_KEY_TEXT or text.count("+") < 4:
            raise _bad_key()
        _, _, name, _, encoded = text.split("+", 4)
        key = cls(name, *_parse_key_bytes(encoded))
        if key.format() != text:
            raise _bad_key()
        return key

    def format(self) -> str:
        """The skey: a secret, therefore not what `str` or `repr` give."""
        return f"PRIVATE+KEY+{self.name}+{self.verifier.id.hex()}+{b64encode(bytes([self.type]) + self.seed)}"

    @cached_property
    def verifier(self) -> VerifierKey:
        """The public half."""
        return VerifierKey(self.name, self.type, self._private.public_key().public_bytes_raw())

    def sign(self, text: bytes, *, time: int | None = None) -> bytes:
        """A signature (without key ID) over a note's text.

        `time`: POSIX seconds for a cosignature, ignored by the other type. Raises `Malformed` when it is needed
        and missing or out of range.
        """
        if self.type == KeyType.ED25519:
            return self._private.sign(text)
        if time is None or not 0 <= time <= MAX_TIME:
            raise Malformed("note.time", "A cosignature carries the time it was made at.")
        return time.to_bytes(_TIME_BYTES, "big") + self._private.sign(_cosigned(text, time))

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


class Signature(NamedTuple):
    """A verified signature: whose, and for a cosignature at what time (POSIX seconds), as its key claims."""

    key: VerifierKey
    time: int | None


@dataclass(frozen=True)
class Note:
    """An opened note: its text, the signatures that were verified (at least one), and its bytes."""

    text: str
    signatures: tuple[Signature, ...]
    raw: bytes

    def signature_of(self, key: VerifierKey) -> Signature | None:
        """The verified signature of `key`, or None when the note has none."""
        return next((signature for signature in self.signatures if signature.key == key), None)


def sign(text: str, signers: Sequence[SignerKey], *, time: int | None = None) -> bytes:
    """A note of `text` and the signatures of `signers`, in their order.

    `time`: POSIX seconds, for the cosigners among them. Raises `Malformed` on a text no note can have, on no
    signer, on one key given twice, and as `SignerKey.sign`; `TooLarge` over the caps.
    """
    check_text(text)
    return _assemble(text, [], signers, time)


def add_signatures(note: bytes, signers: Sequence[SignerKey], *, time: int | None = None) -> bytes:
    """The note with signatures of `signers` added after the present ones; one by the same key is replaced.

    The present signatures are not verified. `time` and what is raised: as `sign`, and `Malformed` or `TooLarge`
    when `note` is no note.
    """
    text, lines = _parse(note)
    replaced = {(signer.name, signer.verifier.id) for signer in signers}
    return _assemble(text, [line for line in lines if (line.name, line.key_id) not in replaced], signers, time)


def open_note(note: bytes, keys: Iterable[VerifierKey]) -> Note:
    """Verify a note by the keys that are trusted.

    Lines of other keys are ignored. Raises `Malformed` or `TooLarge` when this is no note, and
    `Untrusted("note.signature")` when a known key's signature does not verify or occurs twice, when none of the
    keys signed, or when two different keys share name and key ID.
    """
    known: dict[tuple[str, bytes], VerifierKey] = {}
    for key in keys:
        if known.setdefault((key.name, key.id), key) != key:
            raise _bad_signature(f"two trusted keys are called {key.name}+{key.id.hex()}")
    text, lines = _parse(note)
    verified: dict[VerifierKey, Signature] = {}
    for line in lines:
        signer = known.get((line.name, line.key_id))
        if signer is None:
            continue
        if signer in verified:
            raise _bad_signature(f"{signer.name} signed twice")
        verified[signer] = Signature(signer, signer.verify(text.encode(), line.signature))
    if not verified:
        raise _bad_signature("none of the trusted keys signed it")
    return Note(text, tuple(verified.values()), note)


def signature_lines(note: bytes, keys: Iterable[VerifierKey]) -> bytes:
    """The signature lines of these keys, in the note's order: what another note of the same text can take over.

    Raises as `open_note`.
    """
    opened = open_note(note, keys)
    known = {(signature.key.name, signature.key.id) for signature in opened.signatures}
    return b"".join(line.encode() for line in _parse(note)[1] if (line.name, line.key_id) in known)


def text_of(note: bytes) -> str:
    """The text of a note of which nothing is verified yet. Raises `Malformed` or `TooLarge`."""
    return _parse(note)[0]


def check_text(text: str) -> None:
    """Raise `Malformed` unless `text` can be the text of a note."""
    if not text.endswith("\n") or not _is_clean(text):
        raise Malformed("note.text", "A note's text ends in a newline and has no other control characters.")


class _Line(NamedTuple):
    name: str
    key_id: bytes
    signature: bytes

    def encode(self) -> bytes:
        return f"{_LINE_START}{self.name} {b64encode(self.key_id + self.signature)}\n".encode()


def _parse(note: bytes) -> tuple[str, list[_Line]]:
    """The text and the signature lines of a note, nothing verified."""
    if len(note) > MAX_NOTE_BYTES:
        raise TooLarge("note.size", f"A note has at most {MAX_NOTE_BYTES} bytes.")
    try:
        content = note.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_note("it is not UTF-8") from error
    text_end = content.rfind("\n\n") + 1
    if text_end == 0 or not content.endswith("\n") or not _is_clean(content):
        raise _bad_note("text, empty line and signature lines are not all there, or it has control characters")
    lines = content[text_end + 1 : -1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise TooLarge("note.signatures", f"A note has at most {MAX_SIGNATURES} signatures.")
    return content[:text_end], [_parse_line(line) for line in lines]


def _parse_line(line: str) -> _Line:
    name, separator, encoded = line.removeprefix(_LINE_START).partition(" ")
    if not line.startswith(_LINE_START) or not separator:
        raise _bad_note("a signature line is not an em dash, a name and base64")
    try:
        _check_name(name)
        blob = b64decode(encoded, limit=MAX_NOTE_BYTES)
    except TreatyError as error:
        raise _bad_note("a signature line has no proper name or base64") from error
    if len(blob) <= _KEY_ID_BYTES:
        raise _bad_note("a signature is too short")
    return _Line(name, blob[:_KEY_ID_BYTES], blob[_KEY_ID_BYTES:])


def _assemble(text: str, lines: list[_Line], signers: Sequence[SignerKey], time: int | None) -> bytes:
    signed = text.encode()
    added = [_Line(key.name, key.verifier.id, key.sign(signed, time=time)) for key in signers]
    if not added or len({line[:2] for line in added}) != len(added):
        raise Malformed("note.signers", "A note is signed by one key or more, each once.")
    if len(lines) + len(added) > MAX_SIGNATURES:
        raise TooLarge("note.signatures", f"A note has at most {MAX_SIGNATURES} signatures.")
    note = signed + b"\n" + b"".join(line.encode() for line in [*lines, *added])
    if len(note) > MAX_NOTE_BYTES:
        raise TooLarge("note.size", f"A note has at most {MAX_NOTE_BYTES} bytes.")
    return note


def _parse_key_bytes(encoded: str) -> tuple[KeyType, bytes]:
    """The type and the 32 bytes of an encoded public key or seed."""
    try:
        data = b64decode(encoded, limit=1 + _ED25519_BYTES)
    except TreatyError as error:
        raise _bad_key() from error
    if not data or data[0] not in list(KeyType):
        raise _bad_key()
    return KeyType(data[0]), data[1:]


def _cosigned(text: bytes, time: int) -> bytes:
    return b"cosignature/v1\ntime %d\n%b" % (time, text)


def _check_name(name: str) -> None:
    if not name or "+" in name or not _is_clean(name) or any(character.isspace() for character in name):
        raise Malformed("note.name", "A key's name is not empty and has no spaces, plus signs or control characters.")


def _is_clean(text: str) -> bool:
    return _UNCLEAN.search(text) is None


def _bad_key() -> Malformed:
    return Malformed(
        "note.key",
        "This is not a note key.",
        fix="A verifier key reads NAME+KEYID+BASE64; copy it whole from where the log's operator publishes it.",
    )


def _bad_note(why: str) -> Malformed:
    return Malformed("note.malformed", f"This is not a signed note: {why}.")


def _bad_signature(why: str) -> Untrusted:
    return Untrusted(
        "note.signature",
        f"The note is not to be trusted: {why}.",
        fix="Compare the key you trust with the one the log's operator publishes elsewhere.",
    )
