"""Sign, parse and verify C2SP signed notes: a text with signatures of named keys over it.

    registry.example LF 1234 LF 47DEQ…= LF         the text, here a checkpoint
    LF
    — registry.example B64(key id || Ed25519 signature) LF
    — registry.example/clock B64(key id || time || Ed25519 signature) LF

    key id     SHA-256(name || LF || type || public key)[:4]
    type 0x01  Ed25519 (RFC 8032) over the text
    type 0x04  a cosignature (C2SP tlog-cosignature): an 8-byte big-endian POSIX time in seconds, at most 2**63 - 1, and Ed25519
    type 0x06  the same with ML-DSA-44; `cosigned` has the signed messages of both

`docs/specification/log.md` specifies keys as text (vkey and skey). A note is UTF-8 without control characters below U+0020
except LF. A name is not empty and contains neither Unicode spaces nor "+". Signatures of unknown keys are ignored.

Stricter than C2SP, so that a note has one meaning: a note fails if a signature of a known key does not verify or occurs
twice, and base64 has one encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from .. import ed25519
from ..canonical import b64decode, b64encode, sha256
from ..codes import NoteCode
from ..errors import Malformed, TooLarge, TreatyError, Untrusted
from . import cosigned

# Twice the size of sixteen post-quantum signatures, the least that a verifier must accept (C2SP signed-note).
MAX_NOTE_BYTES = 256 * 1024
# Lines of unknown keys are ignored, not refused, so their number needs a bound.
MAX_SIGNATURES = 100
MAX_TIME = 2**63 - 1

# A key is read from configuration and statements. Of Ed25519 its only long part is the name; ML-DSA-44 adds 1,752 characters.
_MAX_KEY_TEXT = 1024
_MAX_ML_DSA_KEY_TEXT = 2800
_KEY_ID_BYTES = 4
_SEED_BYTES = 32
_TIME_BYTES = 8
_LINE_START = "— "
_UNCLEAN = re.compile("[\x00-\x09\x0b-\x1f\ud800-\udfff]")  # control characters except LF; lone surrogates


class KeyType(IntEnum):
    """The supported signature types of C2SP signed-note."""

    ED25519 = 0x01
    COSIGNATURE = 0x04
    ML_DSA_44 = 0x06

    @property
    def has_time(self) -> bool:
        """Return whether the type is one of a cosigner, whose signature has a time."""
        return self is not KeyType.ED25519


_PUBLIC_BYTES = {KeyType.ED25519: 32, KeyType.COSIGNATURE: 32, KeyType.ML_DSA_44: cosigned.ML_DSA_PUBLIC}
_SIGNATURE_BYTES = {KeyType.ED25519: 64, KeyType.COSIGNATURE: 64, KeyType.ML_DSA_44: cosigned.ML_DSA_SIGNATURE}


@dataclass(frozen=True)
class VerifierKey:
    """Hold a public key with its name, for one type of signature. Raises `Malformed` (`note.form`)."""

    name: str
    type: KeyType
    public: bytes

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.public) != _PUBLIC_BYTES[self.type]:
            raise _bad_key()

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Read a vkey. Raises `Malformed` (`note.form`), also when the key id does not match name and key."""
        if len(text) > _MAX_ML_DSA_KEY_TEXT or text.count("+") < 2:
            raise _bad_key()
        name, _, encoded = text.split("+", 2)
        key = cls(name, *_parse_key_bytes(encoded))
        if key.type != KeyType.ML_DSA_44 and len(text) > _MAX_KEY_TEXT:
            raise _bad_key()
        # One spelling for each key. This also checks that the key id belongs to name and key.
        if str(key) != text:
            raise _bad_key()
        return key

    def __str__(self) -> str:
        """Return the vkey."""
        return f"{self.name}+{self.id.hex()}+{b64encode(bytes([self.type]) + self.public)}"

    @cached_property
    def id(self) -> bytes:
        """Return the 4-byte key id."""
        return sha256(self.name.encode() + b"\n" + bytes([self.type]) + self.public)[:_KEY_ID_BYTES]

    def verify(self, text: bytes, signature: bytes) -> int | None:
        """Check a signature (without key id) over a note's text; return its time in seconds, or None for a type without time.

        Raises `Untrusted` (`note.signature`).
        """
        time, message = None, text
        if self.type.has_time:
            time, signature = int.from_bytes(signature[:_TIME_BYTES], "big"), signature[_TIME_BYTES:]
        if len(signature) != _SIGNATURE_BYTES[self.type] or (time is not None and time > MAX_TIME):
            raise _bad_signature(f"the signature of {self.name} has the wrong form")
        if time is not None:
            message = _cosigned(self.type, self.name, text, time)
        holds = cosigned.ml_dsa_holds if self.type == KeyType.ML_DSA_44 else ed25519.verify
        if not holds(self.public, signature, message):
            raise _bad_signature(f"the signature of {self.name} does not verify")
        return time


@dataclass(frozen=True)
class SignerKey:
    """Hold a key that signs notes under a name: a seed of 32 secret bytes, for one type of signature.

    Raises `Malformed` (`note.form`). No error quotes the seed.
    """

    name: str
    type: KeyType
    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.seed) != _SEED_BYTES:
            raise _bad_key()

    @classmethod
    def parse(cls, text: str) -> SignerKey:
        """Read an skey. Raises `Malformed` (`note.form`), also when the key id does not match name and key."""
        if len(text) > _MAX_KEY_TEXT or text.count("+") < 4:
            raise _bad_key()
        _, _, name, _, encoded = text.split("+", 4)
        key = cls(name, *_parse_key_bytes(encoded))
        if key.format() != text:
            raise _bad_key()
        return key

    def format(self) -> str:
        """Return the skey. It is a secret, so `str` and `repr` do not show it."""
        return f"PRIVATE+KEY+{self.name}+{self.verifier.id.hex()}+{b64encode(bytes([self.type]) + self.seed)}"

    @cached_property
    def verifier(self) -> VerifierKey:
        """Return the public half."""
        return VerifierKey(self.name, self.type, self._private.public_key().public_bytes_raw())

    def sign(self, text: bytes, *, time: int | None = None) -> bytes:
        """Return a signature (without key id) over a note's text.

        `time`: POSIX seconds for a cosignature; ignored by the log's own type.

        Raises `Malformed` (`note.form`) when a cosignature has no time or one out of range.
        """
        if not self.type.has_time:
            return self._private.sign(text)
        if time is None or not 0 <= time <= MAX_TIME:
            raise Malformed(NoteCode.FORM, "A cosignature needs its time, in POSIX seconds.")
        try:
            message = _cosigned(self.type, self.name, text, time)
        except Untrusted as error:
            raise Malformed(NoteCode.FORM, "An ML-DSA-44 cosigner signs only checkpoints.") from error
        return time.to_bytes(_TIME_BYTES, "big") + self._private.sign(message)

    @cached_property
    def _private(self) -> cosigned.PrivateKey:
        return cosigned.private_key(self.seed, ml_dsa=self.type == KeyType.ML_DSA_44)


class Signature(NamedTuple):
    """Name a verified signature: its key, and the time of a cosignature (POSIX seconds) as the key claims it."""

    key: VerifierKey
    time: int | None


@dataclass(frozen=True)
class Note:
    """Hold an opened note: its text, its verified signatures (at least one), and its bytes."""

    text: str
    signatures: tuple[Signature, ...]
    raw: bytes

    def signature_of(self, key: VerifierKey) -> Signature | None:
        """Return the verified signature of `key`, or None."""
        return next((signature for signature in self.signatures if signature.key == key), None)


def sign(text: str, signers: Sequence[SignerKey], *, time: int | None = None) -> bytes:
    """Return a note of `text` with the signatures of `signers`, in their order.

    `time`: POSIX seconds, for cosigners.

    Raises `Malformed` (`note.form`), or `TooLarge` over the caps.
    """
    check_text(text)
    return _assemble(text, [], signers, time)


def sign_lines(text: str, signers: Sequence[SignerKey], *, time: int | None = None) -> bytes:
    """Return the signature lines of `signers`, in their order, to add them to a note of `text`. Raises the errors of `sign`."""
    note = sign(text, signers, time=time)
    return note[len(text.encode()) + 1 :]


def add_signatures(note: bytes, signers: Sequence[SignerKey], *, time: int | None = None) -> bytes:
    """Return the note with signatures of `signers` added after the present ones. A present signature of the same key is
    replaced.

    The present signatures are not verified.

    Raises the errors of `sign`, and `Malformed` or `TooLarge` when `note` is not a note.
    """
    text, lines = _parse(note)
    # A second signature of one key would fail the whole note, so a renewed one replaces the earlier one.
    replaced = {(signer.name, signer.verifier.id) for signer in signers}
    return _assemble(text, [line for line in lines if (line.name, line.key_id) not in replaced], signers, time)


def open_note(note: bytes, keys: Iterable[VerifierKey]) -> Note:
    """Verify a note by trusted keys. Lines of other keys are ignored.

    Raises `Malformed` or `TooLarge` when this is not a note; `Untrusted` (`note.signature`) when the signature of a known key
    does not verify or occurs twice, when none of the keys signed, or when two keys share name and key id.
    """
    verifiers: dict[tuple[str, bytes], VerifierKey] = {}
    for key in keys:
        # A key id has four bytes, so two keys of one name can share it. A line would then be ambiguous.
        if verifiers.setdefault((key.name, key.id), key) != key:
            raise _bad_signature(f"two trusted keys are called {key.name}+{key.id.hex()}")
    text, lines = _parse(note)
    verified: dict[VerifierKey, Signature] = {}
    for line in lines:
        signer = verifiers.get((line.name, line.key_id))
        if signer is None:
            continue
        if signer in verified:
            raise _bad_signature(f"{signer.name} signed twice")
        verified[signer] = Signature(signer, signer.verify(text.encode(), line.signature))
    if not verified:
        raise _bad_signature("none of the trusted keys signed it")
    return Note(text, tuple(verified.values()), note)


def signature_lines(note: bytes, keys: Iterable[VerifierKey]) -> bytes:
    """Return the signature lines of these keys, in the note's order, to add them to another note of the same text.

    Raises the errors of `open_note`.
    """
    opened = open_note(note, keys)
    ids = {(signature.key.name, signature.key.id) for signature in opened.signatures}
    return b"".join(line.encode() for line in _parse(note)[1] if (line.name, line.key_id) in ids)


def text_of(note: bytes) -> str:
    """Return the text of a note, without verifying it. Raises `Malformed` or `TooLarge`."""
    return _parse(note)[0]


def signers_of(note: bytes) -> list[tuple[str, bytes]]:
    """Return the name and the key id of each signature line, without verifying it. Raises `Malformed` or `TooLarge`."""
    return [(line.name, line.key_id) for line in _parse(note)[1]]


def check_text(text: str) -> None:
    """Check that `text` can be the text of a note. Raises `Malformed` (`note.form`)."""
    if not text.endswith("\n") or not _is_clean(text):
        raise Malformed(NoteCode.FORM, "A note's text must end in a newline and contain no other control characters.")


class _Line(NamedTuple):
    name: str
    key_id: bytes
    signature: bytes

    def encode(self) -> bytes:
        return f"{_LINE_START}{self.name} {b64encode(self.key_id + self.signature)}\n".encode()


def _parse(note: bytes) -> tuple[str, list[_Line]]:
    """Return the text and the signature lines of a note, not verified."""
    if len(note) > MAX_NOTE_BYTES:
        raise TooLarge(NoteCode.FORM, f"A note has at most {MAX_NOTE_BYTES} bytes.")
    try:
        content = note.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_note("it is not UTF-8") from error
    # The last empty line ends the text: a text may contain empty lines itself.
    text_end = content.rfind("\n\n") + 1
    if text_end == 0 or not content.endswith("\n") or not _is_clean(content):
        raise _bad_note("text, empty line and signature lines are not all there, or it has control characters")
    lines = content[text_end + 1 : -1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise TooLarge(NoteCode.FORM, f"A note has at most {MAX_SIGNATURES} signatures.")
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
        raise Malformed(NoteCode.FORM, "A note needs one or more signing keys, each once.")
    if len(lines) + len(added) > MAX_SIGNATURES:
        raise TooLarge(NoteCode.FORM, f"A note has at most {MAX_SIGNATURES} signatures.")
    note = signed + b"\n" + b"".join(line.encode() for line in [*lines, *added])
    if len(note) > MAX_NOTE_BYTES:
        raise TooLarge(NoteCode.FORM, f"A note has at most {MAX_NOTE_BYTES} bytes.")
    return note


def _parse_key_bytes(encoded: str) -> tuple[KeyType, bytes]:
    """Return the type and the bytes of an encoded public key or seed."""
    try:
        data = b64decode(encoded, limit=1 + cosigned.ML_DSA_PUBLIC)
    except TreatyError as error:
        raise _bad_key() from error
    # Only the types that can be verified here.
    if not data or data[0] not in list(KeyType):
        raise _bad_key()
    return KeyType(data[0]), data[1:]


def _cosigned(type_: KeyType, name: str, text: bytes, time: int) -> bytes:
    """Return the message of a cosignature. Raises `Untrusted` when this type cannot sign such a text."""
    if type_ == KeyType.COSIGNATURE:
        return cosigned.ed25519_message(text, time)
    try:
        return cosigned.ml_dsa_message(name, text, time)
    except (ValueError, TreatyError) as error:
        raise _bad_signature(f"{name} cosigns only checkpoints") from error


def _check_name(name: str) -> None:
    if not name or "+" in name or not _is_clean(name) or any(character.isspace() for character in name):
        raise Malformed(NoteCode.FORM, "A key's name must not be empty or contain spaces, plus signs or control characters.")


def _is_clean(text: str) -> bool:
    return _UNCLEAN.search(text) is None


def _bad_key() -> Malformed:
    return Malformed(
        NoteCode.FORM,
        "This is not a note key.",
        fix="A verifier key has the form NAME+KEYID+BASE64. Copy all of it from the page of the log's operator.",
    )


def _bad_note(why: str) -> Malformed:
    return Malformed(NoteCode.FORM, f"This is not a signed note: {why}.")


def _bad_signature(why: str) -> Untrusted:
    return Untrusted(
        NoteCode.SIGNATURE,
        f"Do not trust this note: {why}.",
        fix="Compare the key that you trust with the key that the log's operator publishes elsewhere.",
    )
