"""Frames of a WebSocket on their way to its parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treaty_agent.transport.unparsed_frames import UnparsedFrames


def frame(size: int, *, is_masked: bool) -> bytes:
    """Return a binary frame with so many bytes of payload."""
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x7f" + size.to_bytes(8)
    mask = b"mask" if is_masked else b""
    return b"\x82" + bytes([length[0] | (0x80 if is_masked else 0)]) + length[1:] + mask + b"\xff" * size


def taken(frames: UnparsedFrames, data: bytes, most: int) -> list[bytes]:
    """Add bytes that were read, and take until no frame waits."""
    frames.held += data
    pieces = [frames.take(most)]
    while frames.are_waiting:
        pieces.append(frames.take(most))
    return pieces


@given(
    sizes=st.lists(st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536]), max_size=12),
    reads=st.lists(st.integers(1, 70_000), max_size=6),
    most=st.integers(1, 4),
    is_masked=st.booleans(),
)
def test_each_byte_is_taken_once_and_few_frames_at_a_time(sizes: list[int], reads: list[int], most: int, is_masked: bool) -> None:
    whole = [frame(size, is_masked=is_masked) for size in sizes]
    sent, begins = b"".join(whole), [sum(map(len, whole[:number])) for number in range(len(whole))]
    frames, pieces, start = UnparsedFrames(), list[bytes](), 0
    for size in [*reads, len(sent)]:
        pieces += taken(frames, sent[start : start + size], most)
        start += size
    assert b"".join(pieces) == sent
    at = 0
    for piece in pieces:
        assert sum(at <= begin < at + len(piece) for begin in begins) <= most
        at += len(piece)


def test_a_payload_does_not_wait_until_it_is_complete() -> None:
    frames = UnparsedFrames()
    assert taken(frames, frame(1_000_000, is_masked=True)[:500_000], 1) == [frame(1_000_000, is_masked=True)[:500_000]]
    assert not frames.held
