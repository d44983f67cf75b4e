"""Every format of the log round-trips, has one spelling, and answers arbitrary bytes with a TreatyError only."""

from __future__ import annotations

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT, MAX_SIZE, verify_consistency, verify_inclusion
from treaty_consensus.log.note import MAX_TIME, KeyType, SignerKey, VerifierKey, add_signatures, open_note, sign
from treaty_consensus.log.proof import Receipt
from treaty_consensus.log.tiles import Bundle, Tile, decode_bundle, encode_bundle, parse_path, truncated, width_at

LOG = SignerKey("log.example", KeyType.ED25519, bytes(range(32)))
CLOCK = SignerKey("log.example/clock", KeyType.COSIGNATURE, bytes(range(32, 64)))

hashes = st.binary(min_size=32, max_size=32)
sizes = st.one_of(st.integers(0, 300), st.integers(0, MAX_SIZE))
clean = st.characters(codec="utf-8", min_codepoint=0x20)
lines = st.text(clean, min_size=1, max_size=40)
names = st.text(clean, min_size=1, max_size=40).filter(
    lambda name: "+" not in name and not any(character.isspace() for character in name)
)
texts = st.lists(st.text(clean, max_size=40), min_size=1, max_size=6).map(lambda parts: "".join(f"{part}\n" for part in parts))
signers = st.builds(SignerKey, names, st.sampled_from(KeyType), hashes)
any_text = signers.filter(lambda key: key.type != KeyType.ML_DSA_44)  # its signature covers the fields of a checkpoint
checkpoints = st.builds(Checkpoint, lines, sizes, hashes, st.lists(lines, max_size=3).map(tuple))
receipts = st.builds(
    Receipt,
    st.integers(0, MAX_SIZE - 1),
    st.lists(hashes, max_size=63).map(tuple),
    checkpoints.map(lambda checkpoint: sign(checkpoint.format(), [LOG])),
    st.none() | st.binary(min_size=1, max_size=100),
)
widths = st.integers(1, 256)
tiles = st.builds(Tile, st.integers(0, 63), st.integers(0, 2**55 - 1), widths) | st.builds(
    Bundle, st.integers(0, 2**55 - 1), widths
)
mutations = st.tuples(st.integers(0), st.sampled_from(["delete", "replace", "insert"]), st.binary(min_size=1, max_size=2))


def mutated(data: bytes, mutation: tuple[int, str, bytes]) -> bytes:
    place, how, new = mutation
    place %= len(data) + 1
    rest = data[place:] if how == "insert" else data[place + 1 :]
    return data[:place] + (b"" if how == "delete" else new) + rest


@given(tiles)
@settings(deadline=None)
def test_tile_paths_round_trip(tile: Tile | Bundle) -> None:
    assert parse_path(tile.path) == tile


@given(tiles, mutations)
@settings(deadline=None)
def test_a_tile_has_one_path(tile: Tile | Bundle, mutation: tuple[int, str, bytes]) -> None:
    path = mutated(tile.path.encode(), mutation).decode("latin-1")
    try:
        parsed = parse_path(path)
    except TreatyError:
        return
    assert parsed.path == path


@given(tiles, sizes)
@settings(deadline=None)
def test_the_width_of_a_tile_counts_its_complete_hashes(tile: Tile | Bundle, size: int) -> None:
    level = tile.level if isinstance(tile, Tile) else 0
    first = tile.index * 256
    width = width_at(tile, size)
    assert 0 <= width <= 256
    assert width == 0 or (first + width) * 256**level <= size
    assert width == 256 or (first + width + 1) * 256**level > size


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=256), st.data())
@settings(deadline=None, max_examples=examples(50))
def test_bundles_round_trip_and_truncate(entries: list[bytes], data: st.DataObject) -> None:
    bundle = encode_bundle(entries)
    assert decode_bundle(bundle, len(entries)) == entries
    width = data.draw(st.integers(1, len(entries)))
    assert truncated(Bundle(0, width), bundle) == encode_bundle(entries[:width])


@given(st.binary(max_size=600), widths)
@settings(deadline=None)
def test_a_bundle_that_decodes_has_one_encoding(data: bytes, width: int) -> None:
    try:
        entries = decode_bundle(data, width)
    except TreatyError:
        return
    assert encode_bundle(entries) == data
    assert len(entries) == width


@given(checkpoints)
@settings(deadline=None)
def test_checkpoints_round_trip(checkpoint: Checkpoint) -> None:
    assert Checkpoint.parse(checkpoint.format()) == checkpoint


@given(checkpoints, mutations)
@settings(deadline=None)
def test_a_checkpoint_has_one_text(checkpoint: Checkpoint, mutation: tuple[int, str, bytes]) -> None:
    text = mutated(checkpoint.format().encode(), mutation).decode("utf-8", "surrogateescape")
    try:
        parsed = Checkpoint.parse(text)
    except TreatyError:
        return
    assert parsed.format() == text


@given(signers)
@settings(deadline=None)
def test_keys_round_trip(signer: SignerKey) -> None:
    assert SignerKey.parse(signer.format()) == signer
    assert VerifierKey.parse(str(signer.verifier)) == signer.verifier


@given(texts, st.lists(any_text, min_size=1, max_size=4, unique_by=lambda key: key.verifier), st.integers(0, MAX_TIME))
@settings(deadline=None)
def test_notes_open_with_every_key_that_signed(text: str, keys: list[SignerKey], time: int) -> None:
    note = sign(text, keys, time=time)
    opened = open_note(note, [key.verifier for key in keys])
    assert opened.text == text
    assert [signature.key for signature in opened.signatures] == [key.verifier for key in keys]
    assert all(signature.time == (time if signature.key.type == KeyType.COSIGNATURE else None) for signature in opened.signatures)
    for key in keys:
        assert open_note(note, [key.verifier]).text == text
    grown = add_signatures(note, [LOG])
    assert open_note(grown, [LOG.verifier]).text == text
    assert grown.startswith(note)


@given(texts, st.lists(mutations, min_size=1, max_size=3))
@settings(deadline=None)
def test_no_mutated_note_opens_with_another_text(text: str, changes: list[tuple[int, str, bytes]]) -> None:
    note = sign(text, [LOG])
    changed = note
    for mutation in changes:
        changed = mutated(changed, mutation)
    try:
        opened = open_note(changed, [LOG.verifier])
    except TreatyError:
        return
    assert opened.text == text
    assert changed == note or changed.startswith(note[:-1])


@given(receipts)
@settings(deadline=None)
def test_receipts_round_trip(receipt: Receipt) -> None:
    assert Receipt.parse(receipt.format()) == receipt


@given(receipts, mutations)
@settings(deadline=None)
def test_a_receipt_has_one_spelling(receipt: Receipt, mutation: tuple[int, str, bytes]) -> None:
    data = mutated(receipt.format(), mutation)
    try:
        parsed = Receipt.parse(data)
    except TreatyError:
        return
    assert parsed.format() == data


@given(st.binary(max_size=200) | texts.map(str.encode))
@settings(deadline=None, max_examples=examples(300))
def test_arbitrary_bytes_are_no_note_and_no_receipt(data: bytes) -> None:
    for attempt in (
        lambda: open_note(data, [LOG.verifier]),
        lambda: open_note(data + b"\n\n" + data, [LOG.verifier]),
        lambda: add_signatures(data, [LOG]),
        lambda: open_checkpoint(data, LOG.verifier, CLOCK.verifier),
        lambda: Receipt.parse(data),
        lambda: Receipt.parse(b"c2sp.org/tlog-proof@v1\n" + data),
        lambda: LOG.verifier.verify(data, data),
        lambda: CLOCK.verifier.verify(data, data),
    ):
        with pytest.raises(TreatyError):
            attempt()


@given(st.text(max_size=100))
@settings(deadline=None, max_examples=examples(300))
def test_arbitrary_text_is_no_key_no_path_and_no_checkpoint(text: str) -> None:
    parsers = (VerifierKey.parse, SignerKey.parse, parse_path, Checkpoint.parse)
    for parse in parsers:
        for candidate in (text, f"{text}+{text}+{text}", f"/tile/{text}/{text}", f"{text}\n{text}\n{text}\n"):
            with pytest.raises(TreatyError):
                parse(candidate)


others = hashes.filter(lambda value: value not in (bytes(32), EMPTY_ROOT))


@given(st.integers(-5, 2**70), st.integers(-5, 2**70), st.lists(st.binary(max_size=40) | hashes, max_size=70), others)
@settings(deadline=None)
def test_arbitrary_proofs_are_refused(first: int, second: int, proof: list[bytes], value: bytes) -> None:
    with pytest.raises(TreatyError):
        verify_inclusion(first, second, value, proof, bytes(32))
    with pytest.raises(TreatyError):
        verify_consistency(first, second, value, bytes(32), proof)


@given(st.binary(max_size=600), widths)
@settings(deadline=None)
def test_truncation_of_arbitrary_bytes(data: bytes, width: int) -> None:
    for tile in (Tile(0, 0, width), Bundle(0, width)):
        try:
            content = truncated(tile, data)
        except TreatyError:
            continue
        assert data.startswith(content)
        assert isinstance(tile, Tile) or len(decode_bundle(content, width)) == width
