"""Points of the curve edwards25519 (RFC 8032 §5.1), to make signatures that no honest signer makes. Slow, and not for secrets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the prime-order subgroup
_D = -121665 * pow(121666, -1, P) % P
_ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)


@dataclass(frozen=True)
class Point:
    """A point in affine coordinates."""

    x: int
    y: int

    def __add__(self, other: Point) -> Point:
        product = _D * self.x * other.x * self.y * other.y % P
        return Point(
            (self.x * other.y + other.x * self.y) * pow(1 + product, -1, P) % P,
            (self.y * other.y + self.x * other.x) * pow(1 - product, -1, P) % P,
        )

    def __rmul__(self, factor: int) -> Point:
        total, power = NEUTRAL, self
        while factor:
            total, power, factor = total + power if factor & 1 else total, power + power, factor >> 1
        return total

    def encode(self) -> bytes:
        """Return y with the lowest bit of x above it, as RFC 8032 §5.1.2 says."""
        return (self.y | (self.x & 1) << 255).to_bytes(32, "little")


def point_at(y: int) -> Point | None:
    """Return the point with this y and an even x, if there is one."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    for x in (root, root * _ROOT_OF_MINUS_ONE % P):
        if (x * x - square) % P == 0:
            return Point(P - x if x & 1 else x, y)
    return None


def point_of_order_8() -> Point:
    """Return a point that generates the eight points of small order."""
    for y in range(2, 100):
        point = point_at(y)
        small = ORDER * point if point else NEUTRAL
        if 4 * small != NEUTRAL:
            return small
    raise AssertionError("one of the first points has a component of order 8")


def decode(data: bytes) -> Point:
    """Return the point that these 32 bytes encode (RFC 8032 §5.1.3)."""
    number = int.from_bytes(data, "little")
    point = point_at(number % 2**255)
    assert point is not None
    return Point(P - point.x, point.y) if number >> 255 else point


NEUTRAL = Point(0, 1)
BASE = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def challenge(r: bytes, key: bytes, message: bytes) -> int:
    """Return k of RFC 8032 §5.1.7."""
    return int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % ORDER
