"""The bytes that the table `leaves` has for a leaf.

A leaf is an envelope in JSON: its payload and signatures are base64, and the names of the keys stand in it twice. All of it
follows from the payload and the signatures, so a statement is stored as these, in half of the bytes:

    number of signatures (1 byte)   64 bytes of each signature   payload, as raw DEFLATE (RFC 1951) with `DICTIONARY`

Other leaves, and those that a release before this form wrote, are stored as they are. Their first byte is `{`, which is no number
of signatures. A stored leaf never changes.
"""

from __future__ import annotations

import zlib

import msgspec

from treaty_consensus.statement import MAX_PAYLOAD, Statement, leaf_of

DICTIONARY = (
    '{"body":{"card":{"sha256":"","size":},"document":{"sha256":"","size":},"origin":"negotiated","topic":"","uri":"https:///protocols/'
    '","withdrawn":true,"outcome":"failed","to":"did:web:'
    '{"body":{"namespace":"","to":"did:wba:.example"},"by":["did:key:z6Mk#z6Mk"],"issued":17,"log":"","type":"grant"}'
    '{"body":{"seq":0,"to":"did:wba:.com"},"by":["did:wba:.example#key-1"],"issued":17,"log":"","type":"vouch"}'
    '{"body":{"document":"","epoch":0,"nid":"","outcome":"agreed","seen_checkpoint":"\\n\\n— =\\n— /clock =\\n","topic":""},'
    '"by":["did:wba:.com#key-1","did:wba:.example#key-1"],"issued":18,"log":"","type":"report"}'
    '{"body":{"seen_checkpoint":"\\n\\n— =\\n— /clock =\\n","seq":0,"tiers":[["0123456789abcdef"],["none"]],"topic":"commerce/"},'
    '"by":["did:wba:.com#key-1"],"issued":18,"log":"registry.","type":"ballot"}'
).encode()
"""Text that is in many payloads; the most frequent kind is last, where references are shortest. It never changes: without it the
stored leaves cannot be read."""
_RAW = -zlib.MAX_WBITS
_LEVEL = 1  # the higher ones save 3 % of a ballot, for twice the time
_SIGNATURE = 64
_MOST = 8
"""Signatures of a statement that is stored in parts. It has two at most today."""


def stored(leaf: bytes, statement: Statement | None) -> bytes:
    """Return the bytes to store for a leaf. `statement`: the one that was read from it; None for a leaf of another kind."""
    # The log may lose no byte, so a leaf that does not follow from the two stays whole.
    if statement is None or len(statement.signatures) > _MOST or leaf_of(statement.payload, statement.signatures) != leaf:
        return leaf
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, zlib.DEF_MEM_LEVEL, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    payload = deflate.compress(statement.payload) + deflate.flush()
    return b"".join((bytes((len(statement.signatures),)), *statement.signatures, payload))


def restored(data: bytes) -> bytes:
    """Return the leaf that these bytes were stored for. Damaged bytes give other ones, or themselves: their hash tells it."""
    if not data or data[0] > _MOST:
        return data
    begin = 1 + _SIGNATURE * data[0]
    signatures = [data[place : place + _SIGNATURE] for place in range(1, begin, _SIGNATURE)]
    inflate = zlib.decompressobj(_RAW, DICTIONARY)
    try:
        payload = inflate.decompress(data[begin:], MAX_PAYLOAD + 1)
        # Bytes after the end are damage, too.
        return leaf_of(payload, signatures) if inflate.eof and not inflate.unused_data else data
    except (zlib.error, msgspec.MsgspecError, ValueError):
        return data
