"""Whatever is done to the bytes of a handler package, it is refused with a TreatyError or is the same package."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from handler_packages import FILENAME, MANIFEST, metadata, package, zipped
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_client.handlers import parse_vector
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import build_wheel, parse_filename, parse_manifest, read_wheel
from treaty_consensus.handler.archive import read_archive, write_archive
from treaty_handler import decode_json, encode_json

_, BUILT = build_wheel({"__init__.py": b"handler = 1\n"}, metadata())
FILES = dict(read_wheel(FILENAME, BUILT).files)
DEFLATED = zipped(FILES, zipfile.ZIP_DEFLATED)

VECTORS = [path.read_text() for path in (Path(__file__).parents[2] / "protocols" / "product-info").glob("1.*/vectors/*.json")]

names = st.from_regex(r"[A-Za-z0-9._+-]{1,8}(/[A-Za-z0-9._+-]{1,8}){0,2}", fullmatch=True)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("wheel", [BUILT, DEFLATED], ids=["stored", "deflated"])
def test_every_byte_matters_or_changes_nothing(wheel: bytes) -> None:
    accepted = 0
    for position in range(len(wheel)):
        for flip in (0x01, 0x80):
            changed = bytearray(wheel)
            changed[position] ^= flip
            try:
                read = read_wheel(FILENAME, bytes(changed))
            except TreatyError:
                continue
            accepted += 1
            assert read.files == FILES
    # Per entry, the maker's version, the internal attributes and most of the mode may be anything: they say nothing to us.
    assert 0 < accepted < 14 * 2 * len(FILES)


@pytest.mark.parametrize("wheel", [BUILT, DEFLATED], ids=["stored", "deflated"])
def test_every_prefix_is_refused(wheel: bytes) -> None:
    for length in range(len(wheel)):
        with pytest.raises(TreatyError):
            read_wheel(FILENAME, wheel[:length])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_spliced_wheels(data: st.DataObject) -> None:
    wheel = data.draw(st.sampled_from([BUILT, DEFLATED]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(wheel)))
        stop = data.draw(st.integers(start, min(len(wheel), start + 64)))
        piece = data.draw(st.binary(max_size=48) | st.just(wheel[start : start + 46]))
        wheel = wheel[:start] + piece + wheel[stop:]
    with suppress(TreatyError):
        assert read_wheel(FILENAME, wheel).files == FILES


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda tail: b"PK\3\4" + tail + b"PK\5\6" + bytes(18)))
def test_any_bytes(data: bytes) -> None:
    with suppress(TreatyError):
        read_archive(data)
    with pytest.raises(TreatyError):
        read_wheel(FILENAME, data)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"treaty_handler_[a-z_.-]{1,6}-[0-9.a-z!+]{1,8}-py3-none-any\.whl"))
def test_any_file_name(filename: str) -> None:
    try:
        name, version = parse_filename(filename)
    except TreatyError:
        return
    assert f"{name.replace('-', '_')}-{version}-py3-none-any.whl" == filename


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=200), max_size=8))
def test_archives_round_trip(files: dict[str, bytes]) -> None:
    try:
        data = write_archive(files)
    except TreatyError:
        folded = [name.lower() for name in files]
        dots = any(part in (".", "..") for name in files for part in name.split("/"))
        assert dots or len(set(folded)) < len(folded)
        return
    assert read_archive(data) == files


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_manifest(data: st.DataObject) -> None:
    whole = {"interface": 1, "protocol": {"uri": package().manifest.protocol_uri, "sha256": "0" * 64}, **MANIFEST}
    text = json.dumps(whole)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 40)))
    piece = data.draw(st.sampled_from(["", "{}", "[]", "null", '"$ref":', "#/$defs/x", "1e5", "true,"]) | st.text(max_size=10))
    with suppress(TreatyError):
        parse_manifest((text[:start] + piece + text[stop:]).encode("utf-8", "surrogatepass"))


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_json_that_handlers_read_round_trips(value: object) -> None:
    assert decode_json(encode_json(value)) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode) | json_values.map(lambda v: json.dumps(v).encode()))
def test_json_that_anybody_wrote_is_a_value_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        assert decode_json(encode_json(decode_json(data))) == decode_json(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_vector(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(VECTORS))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 30)))
        piece = data.draw(st.sampled_from(["", "{}", "[]", "null", '"peer":1,', "1e999", '"base64":"=",']) | st.text(max_size=8))
        text = text[:start] + piece + text[stop:]
    with suppress(TreatyError):
        assert parse_vector("x.json", text.encode("utf-8", "surrogatepass")).steps
