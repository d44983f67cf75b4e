"""Receipts: the bytes of a tlog-proof, and that nothing but the truth verifies."""

from __future__ import annotations

import pytest

from treaty_consensus.canonical import b64encode
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import MAX_SIZE, inclusion_nodes, inclusion_proof, leaf_hash
from treaty_consensus.log.note import MAX_NOTE_BYTES, KeyType, SignerKey, sign
from treaty_consensus.log.proof import MAX_EXTRA_BYTES, Receipt, ReceiptWriter
from treaty_consensus.log.tiles import TreeEdge, node_hashes

LOG = SignerKey("log.example", KeyType.ED25519, bytes(range(32)))
CLOCK = SignerKey("log.example/clock", KeyType.COSIGNATURE, bytes(range(32, 64)))
NOW = 1_800_000_000
ENTRIES = [b"entry %d" % number for number in range(11)]
EDGE, TILES = TreeEdge().appended(leaf_hash(entry) for entry in ENTRIES)
HEAD = Checkpoint("log.example", EDGE.size, EDGE.root())
NOTE = sign(HEAD.format(), [LOG, CLOCK], time=NOW)


def receipt(index: int, extra: bytes | None = None) -> Receipt:
    hashes = node_hashes(inclusion_nodes(index, EDGE.size), EDGE.size, TILES)
    return Receipt(index, tuple(inclusion_proof(index, EDGE.size, hashes)), NOTE, extra)


def test_a_writer_of_many_receipts_writes_the_same_bytes() -> None:
    writer, receipts = ReceiptWriter(NOTE), [receipt(index) for index in range(len(ENTRIES))]
    assert [writer.write(each.index, each.hashes) for each in receipts] == [each.format() for each in receipts]
    assert writer.write(0, []) == Receipt(0, (), NOTE).format()


@pytest.mark.parametrize("index", range(len(ENTRIES)))
def test_a_receipt_verifies_for_its_entry_alone(index: int) -> None:
    parsed = Receipt.parse(receipt(index).format())
    assert parsed == receipt(index)
    signed = parsed.verify(ENTRIES[index], LOG.verifier, CLOCK.verifier)
    assert (signed.checkpoint, signed.time, signed.note) == (HEAD, NOW, NOTE)
    for entry in (*ENTRIES[:index], *ENTRIES[index + 1 :], b"", leaf_hash(ENTRIES[index])):
        with pytest.raises(Untrusted) as refused:
            parsed.verify(entry, LOG.verifier, CLOCK.verifier)
        assert refused.value.code == "log.inclusion"


def test_the_bytes_of_a_receipt() -> None:
    with_extra = receipt(10, b"context")
    hashes = "".join(f"{b64encode(value)}\n" for value in with_extra.hashes)
    expected = f"c2sp.org/tlog-proof@v1\nextra Y29udGV4dA==\nindex 10\n{hashes}\n".encode() + NOTE
    assert with_extra.format() == expected
    assert Receipt.parse(expected) == with_extra
    assert with_extra.verify(ENTRIES[10], LOG.verifier).checkpoint == HEAD


def test_the_only_leaf_has_an_empty_proof() -> None:
    note = sign(Checkpoint("log.example", 1, leaf_hash(b"first")).format(), [LOG])
    only = Receipt(0, (), note)
    assert only.format() == b"c2sp.org/tlog-proof@v1\nindex 0\n\n" + note
    Receipt.parse(only.format()).verify(b"first", LOG.verifier)
    with pytest.raises(Untrusted):
        only.verify(b"second", LOG.verifier)


HASH = b64encode(bytes(32))
REST = f"{HASH}\n\n".encode() + NOTE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"c2sp.org/tlog-proof@v1",
        b"c2sp.org/tlog-proof@v1\n",
        b"c2sp.org/tlog-proof@v1\n\n" + NOTE,
        b"c2sp.org/tlog-proof@v1\nindex 0\n",
        b"c2sp.org/tlog-proof@v1\nindex 0\n\n",
        b"c2sp.org/tlog-proof@v2\nindex 0\n" + REST,
        b"C2SP.org/tlog-proof@v1\nindex 0\n" + REST,
        b" c2sp.org/tlog-proof@v1\nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\r\nindex 0\r\n" + REST,
        b"c2sp.org/tlog-proof@v1\n" + REST,
        b"c2sp.org/tlog-proof@v1\n0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex \n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 00\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 01\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex -0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex  0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0 \n" + REST,
        b"c2sp.org/tlog-proof@v1\nIndex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex one\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 9223372036854775807\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 9223372036854775808\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex " + b"9" * 5000 + b"\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex \xd9\xa3\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nextra \nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nextra\nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nextra !!\nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nextra YQ\nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nextra YR==\nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nextra YQ==\nextra YQ==\nindex 0\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\nextra YQ==\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\n" + b64encode(bytes(31)).encode() + b"\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\n" + b64encode(bytes(33)).encode() + b"\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\n" + b64encode(bytes(64)).encode() + b"\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\n " + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\n" + HASH[:-1].encode() + b"\n" + REST,
        b"c2sp.org/tlog-proof@v1\nindex 0\n" + (HASH.encode() + b"\n") * 63 + REST,
    ],
)
def test_other_spellings_are_no_receipt(data: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        Receipt.parse(data)
    assert refused.value.code == "log.form"


def test_the_longest_proof_is_read() -> None:
    data = b"c2sp.org/tlog-proof@v1\nindex 5\n" + (HASH.encode() + b"\n") * 62 + REST
    assert len(Receipt.parse(data).hashes) == 63


def test_caps() -> None:
    largest = Receipt(0, (), NOTE, b"x" * MAX_EXTRA_BYTES)
    assert Receipt.parse(largest.format()) == largest
    with pytest.raises(TooLarge):
        Receipt.parse(largest.format() + b"\n" * 1_000_000)
    with pytest.raises(Malformed):
        Receipt.parse(largest.format().replace(b"extra ", b"extra AAAA"))
    with pytest.raises(TooLarge):
        Receipt(0, (), b"x" * (MAX_NOTE_BYTES + 1))


@pytest.mark.parametrize(
    ("index", "hashes", "checkpoint", "extra"),
    [
        (-1, (), NOTE, None),
        (MAX_SIZE, (), NOTE, None),
        (0, (b"short",), NOTE, None),
        (0, (bytes(32),) * 64, NOTE, None),
        (0, (), b"", None),
        (0, (), NOTE, b""),
        (0, (), NOTE, b"x" * (MAX_EXTRA_BYTES + 1)),
    ],
)
def test_a_receipt_that_could_not_be_parsed_is_not_made(
    index: int, hashes: tuple[bytes, ...], checkpoint: bytes, extra: bytes | None
) -> None:
    with pytest.raises(Malformed):
        Receipt(index, hashes, checkpoint, extra)


def test_a_receipt_under_another_key_is_refused() -> None:
    impostor = SignerKey("log.example", KeyType.ED25519, b"i" * 32)
    with pytest.raises(Untrusted):
        receipt(3).verify(ENTRIES[3], impostor.verifier)
    forged = Receipt(3, receipt(3).hashes, sign(HEAD.format(), [impostor]))
    with pytest.raises(Untrusted):
        forged.verify(ENTRIES[3], LOG.verifier)


def test_no_flipped_byte_of_a_receipt_survives() -> None:
    data = receipt(5).format()
    clock_line = data.rindex("— ".encode())
    survivors = 0
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        try:
            signed = Receipt.parse(flipped).verify(ENTRIES[5], LOG.verifier, CLOCK.verifier)
        except TreatyError:
            continue
        # A spoilt name or key ID makes the clock's line a stranger's: the time is gone, the inclusion stands.
        survivors += 1
        assert place > clock_line
        assert (signed.checkpoint, signed.time) == (HEAD, None)
    assert survivors < len(CLOCK.name) + 8
