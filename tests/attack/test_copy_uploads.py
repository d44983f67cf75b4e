"""Threat: an upload to a mirror that never ends, or hardly comes. It ends, and keeps nothing in memory."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from treaty_consensus.errors import TreatyError
from treaty_registry.witness import uploads
from treaty_registry.witness.uploads import UploadBody, UploadEnded

PIECE = bytes(1 << 20)


@pytest.mark.threat(73)
async def test_what_follows_the_end_of_compressed_bytes_is_not_kept() -> None:
    count = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal count
        yield gzip.compress(b"head")
        while count < 64:
            count += 1
            yield PIECE

    body = UploadBody(chunks(), gzipped=True)
    assert await body.read(4) == b"head"
    with pytest.raises(UploadEnded):
        await body.read(1)
    assert count <= 1


@pytest.mark.threat(73)
async def test_a_head_of_single_bytes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_PACKAGE", 0.2)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"\0\x40"
        for _ in range(64):
            await asyncio.sleep(0.05)
            yield b"a"

    with pytest.raises(TreatyError) as refused:
        await uploads.read_head(UploadBody(chunks(), gzipped=False))
    assert refused.value.code == "witness.request"
