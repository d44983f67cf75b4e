"""Encode and decode frames: the binary messages after the Hellos, each one header byte and a payload.

     0 1 2 3 4 5 6 7
    +---+-----------+----------------
    |PT | reserved  | payload …
    +---+-----------+----------------

    PT  byte   payload
    00  0x00   meta-protocol message: JSON (RFC 8259), see `messages`
    01  0x40   message of the agreed application protocol: any bytes
    10  0x80   natural language: UTF-8 text
    11  0xC0   verification protocol: as agreed, never user data

PT is the two high bits. Reserved bits are sent as 0 and ignored on receipt. A wider header needs a new version in the Hello.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from treaty_consensus.errors import Malformed, TooLarge
from treaty_io.codes import FrameCode

MAX_PAYLOAD = 1024 * 1024
MAX_FRAME = MAX_PAYLOAD + 1


class ProtocolType(IntEnum):
    """The type of a frame's payload: the two high bits of the header."""

    META = 0b00
    APPLICATION = 0b01
    NATURAL_LANGUAGE = 0b10
    VERIFICATION = 0b11


class Frame(NamedTuple):
    """A decoded frame."""

    type: ProtocolType
    payload: bytes


def encode(type: ProtocolType, payload: bytes) -> bytes:
    """Encode a frame. Raises `TooLarge` (`frame.too-large`)."""
    if len(payload) > MAX_PAYLOAD:
        raise TooLarge(FrameCode.TOO_LARGE, f"A frame carries at most {MAX_PAYLOAD} bytes, not {len(payload)}.")
    return bytes([type << 6]) + payload


def decode(message: bytes) -> Frame:
    """Split a binary message. Raises `TooLarge` (`frame.too-large`) or `Malformed` (`frame.form`)."""
    if len(message) > MAX_FRAME:
        raise TooLarge(FrameCode.TOO_LARGE, f"A frame carries at most {MAX_PAYLOAD} bytes, not {len(message) - 1}.")
    if not message:
        raise Malformed(FrameCode.FORM, "The frame is empty; it needs its header byte.")
    return Frame(ProtocolType(message[0] >> 6), message[1:])


def encode_text(text: str) -> bytes:
    """Encode the payload of a PT=10 frame. Raises `Malformed` (`frame.form`)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Malformed(FrameCode.FORM, "Natural language is UTF-8 text.") from error


def decode_text(payload: bytes) -> str:
    """Decode the text of a PT=10 frame. Raises `Malformed` (`frame.form`)."""
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise Malformed(FrameCode.FORM, "Natural language is UTF-8 text.") from error
