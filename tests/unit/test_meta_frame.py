"""Frames: one header byte, four protocol types, reserved bits."""

from __future__ import annotations

import pytest

from treaty_anp import frame
from treaty_anp.frame import MAX_PAYLOAD, Frame, ProtocolType
from treaty_consensus.errors import Malformed, TooLarge

TYPES = {
    0x00: ProtocolType.META,
    0x40: ProtocolType.APPLICATION,
    0x80: ProtocolType.NATURAL_LANGUAGE,
    0xC0: ProtocolType.VERIFICATION,
}


def test_000_01_one_header_byte_two_bits_of_type_six_reserved() -> None:
    for header, type in TYPES.items():
        assert frame.encode(type, b"payload") == bytes([header]) + b"payload"


@pytest.mark.parametrize("reserved", [0, 1, 0b101010, 0b111111])
@pytest.mark.parametrize(("header", "type"), TYPES.items())
def test_000_01_reserved_bits_are_ignored_on_receipt(header: int, type: ProtocolType, reserved: int) -> None:
    assert frame.decode(bytes([header | reserved]) + b"payload") == Frame(type, b"payload")


def test_000_05_verification_is_11() -> None:
    assert frame.encode(ProtocolType.VERIFICATION, b"")[0] >> 6 == 0b11


def test_000_47_an_application_payload_is_any_bytes() -> None:
    payload = bytes(range(256)) + b"\xff\xfe\0"
    assert frame.decode(frame.encode(ProtocolType.APPLICATION, payload)).payload == payload


def test_an_empty_message_is_no_frame() -> None:
    with pytest.raises(Malformed) as refusal:
        frame.decode(b"")
    assert refusal.value.code == "frame.form"


def test_payloads_are_capped_both_ways() -> None:
    largest = bytes(MAX_PAYLOAD)
    assert frame.decode(frame.encode(ProtocolType.APPLICATION, largest)).payload == largest
    for attempt in (
        lambda: frame.encode(ProtocolType.APPLICATION, largest + b"x"),
        lambda: frame.decode(b"\x40" + largest + b"x"),
    ):
        with pytest.raises(TooLarge) as refusal:
            attempt()
        assert refusal.value.code == "frame.too-large"
