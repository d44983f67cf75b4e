"""`ed25519.verify` accepts what OpenSSL accepts, also where libraries are known to differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import nacl.bindings
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from edwards25519 import BASE, NEUTRAL, ORDER, P, Point, challenge, decode, point_of_order_8

from treaty_consensus import ed25519

Case = tuple[bytes, bytes, bytes]
SMALL = [factor * point_of_order_8() for factor in range(8)]
# y of 0 and 1 written as p and p + 1, with both signs of x.
NOT_CANONICAL = [(P + y | sign << 255).to_bytes(32, "little") for y in (0, 1, 3, 18) for sign in (0, 1)]
LENGTHS = [(31, 64), (33, 64), (32, 63), (32, 65), (0, 64), (32, 0)]


def by_openssl(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def scalar(seed: str) -> int:
    return int.from_bytes(hashlib.sha512(seed.encode()).digest(), "little") % ORDER


SECRET, NONCE = scalar("secret"), scalar("nonce")
KEY, R = SECRET * BASE, NONCE * BASE


def sign(message: bytes, *, key_part: Point = NEUTRAL, r_part: Point = NEUTRAL, more: int = 0) -> Case:
    """Sign with components of small order in the key and in R, and `more` added to S."""
    key, r = (KEY + key_part).encode(), (R + r_part).encode()
    s = (NONCE + challenge(r, key, message) * SECRET) % ORDER + more
    return key, r + s.to_bytes(32, "little"), message


def mixed_orders() -> Iterator[Case]:
    for a, key_part in enumerate(SMALL):
        for b, r_part in enumerate(SMALL):
            yield sign(b"%d %d" % (a, b), key_part=key_part, r_part=r_part)


def small_orders() -> Iterator[Case]:
    """Keys and R of small order, S = 0: valid for every message for which [k]A + R is neutral."""
    for key in [point.encode() for point in SMALL] + NOT_CANONICAL:
        for r in [point.encode() for point in SMALL] + NOT_CANONICAL:
            for message in (b"0", b"1", b"2", b"3"):
                yield key, r + bytes(32), message


def other_forms() -> Iterator[Case]:
    for multiple in (1, 2, 7, 15):
        yield sign(b"S + a multiple of the order", more=multiple * ORDER)
    key, signature, message = sign(b"plain")
    yield key, signature[:63] + bytes([signature[63] | 0x80]), message
    yield key, signature[:63] + bytes([signature[63] | 0x20]), message
    for place in range(64):
        yield key, signature[:place] + bytes([signature[place] ^ 1]) + signature[place + 1 :], message
    for wrong in NOT_CANONICAL:
        yield wrong, signature, message
        yield key, wrong + signature[32:], message
    yield b"\xff" * 32, signature, message
    yield bytes([2]) + bytes(31), signature, message


@pytest.mark.parametrize("cases", [mixed_orders, small_orders, other_forms])
def test_it_accepts_what_openssl_accepts(cases: object) -> None:
    assert callable(cases)
    results = [(case, ed25519.verify(*case), by_openssl(*case)) for case in cases()]
    assert [case for case, ours, theirs in results if ours != theirs] == []
    assert len(results) > 60


def test_the_cases_are_those_in_which_libraries_differ() -> None:
    accepted = [by_openssl(*case) for case in mixed_orders()]
    # A component in the key cancels for some challenges, and one in R alone never does.
    assert any(accepted[8:])
    assert accepted[:8] == [True] + [False] * 7
    assert any(by_openssl(*case) for case in small_orders())


def test_an_honest_signature_is_accepted_and_no_other_message() -> None:
    key = Ed25519PrivateKey.generate()
    public, signature = key.public_key().public_bytes_raw(), key.sign(b"text")
    assert ed25519.verify(public, signature, b"text")
    assert not ed25519.verify(public, signature, b"texts")


@pytest.mark.parametrize(("key_bytes", "signature_bytes"), LENGTHS)
def test_other_lengths_are_not_valid(key_bytes: int, signature_bytes: int) -> None:
    assert not ed25519.verify(bytes(key_bytes), bytes(signature_bytes), b"text")


def test_a_byte_of_the_message_does_not_complete_a_signature() -> None:
    key = Ed25519PrivateKey.generate()
    signature = key.sign(b"text")
    assert not ed25519.verify(key.public_key().public_bytes_raw(), signature[:63], signature[63:] + b"text")


def test_the_probe_is_valid_with_the_cofactor_only() -> None:
    key, signature, message = ed25519.WITH_COFACTOR
    s = int.from_bytes(signature[32:], "little")
    difference = s * BASE + (ORDER * 8 - challenge(signature[:32], key, message)) * decode(key)
    assert difference.encode() != signature[:32]
    assert 8 * difference == 8 * decode(signature[:32])
    assert not by_openssl(*ed25519.WITH_COFACTOR)


def test_a_libsodium_that_checks_with_the_cofactor_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nacl.bindings, "crypto_sign_open", lambda signed, key: signed[64:])
    ed25519.has_libsodium.cache_clear()
    key, signature, message = sign(b"text")
    try:
        assert not ed25519.verify(key, signature, message + b"s")
    finally:
        monkeypatch.undo()
        ed25519.has_libsodium.cache_clear()
    assert ed25519.has_libsodium()
